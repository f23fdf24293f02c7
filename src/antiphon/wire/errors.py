"""The one shape of an error on every surface: `{type, message, code, param}`."""

from __future__ import annotations

from antiphon.core.errors import AntiphonError, LimitExceeded, Overloaded, ProtocolError, Throttled
from antiphon.wire.effects import Payload

SHOWN_CHARS = 80


def shown(value: object) -> str:
    """A client's value, safe to repeat in a message."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def error_object(error: AntiphonError) -> Payload:
    """The error as clients read it, over HTTP and in `error` events."""
    kind, code, param = "server_error", "internal_error", None
    match error:
        case ProtocolError():
            kind, code, param = error.kind, error.code, error.param
        case LimitExceeded():
            kind, code, param = "invalid_request_error", "limit_exceeded", error.limit
        case Overloaded():
            code = error.code
        case Throttled():
            kind, code = "rate_limit_error", "throttled"
        case _:
            pass
    return {"type": kind, "code": code, "message": str(error), "param": param}
