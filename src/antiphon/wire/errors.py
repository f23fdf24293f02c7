"""The one shape of an error on every surface: `{type, message, code, param}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antiphon.core.errors import AntiphonError, LimitExceeded, Overloaded, ProtocolError, Throttled
from antiphon.wire.effects import Payload

SHOWN_CHARS = 80
MAX_MESSAGE_CHARS = 2000
"""Of any error: what a client sent may be in it, at any length."""
MAX_PARAM_CHARS = 200
JSON_WORDS = {None: "null", True: "true", False: "false"}


def shown(value: object) -> str:
    """A client's value, safe to repeat in a message."""
    text = ""
    for piece in _repr(value):
        text += piece
        if len(text) > SHOWN_CHARS:
            break
    return cut(text, SHOWN_CHARS)


def cut(text: str, most_chars: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


def _repr(value: Any) -> Iterator[str]:
    """`repr(value)` piece by piece, with JSON's words and no more of a text than can be shown."""
    match value:
        case str() | bytes():
            yield repr(value[: SHOWN_CHARS + 1])
        case list():
            for index, one in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                yield ", " if index else "["
                yield from _repr(one)
            yield "]" if value else "[]"
        case dict():
            for index, (key, one) in enumerate(value.items()):  # pyright: ignore
                yield ", " if index else "{"
                yield from _repr(key)
                yield ": "
                yield from _repr(one)
            yield "}" if value else "{}"
        case None | bool():
            yield JSON_WORDS[value]
        case _:
            yield repr(value)


def error_object(error: AntiphonError) -> Payload:
    """The error as clients read it, over HTTP and in `error` events."""
    kind, code, param = "server_error", "internal_error", None
    match error:
        case ProtocolError():
            kind, code, param = error.kind, error.code, error.param
        case LimitExceeded():
            kind, code, param = "invalid_request_error", "limit_exceeded", error.param or error.limit
        case Overloaded():
            code = error.code
        case Throttled():
            kind, code = "rate_limit_error", "throttled"
        case _:
            pass
    message = cut(str(error), MAX_MESSAGE_CHARS)
    return {"type": kind, "code": code, "message": message, "param": param and param[:MAX_PARAM_CHARS]}
