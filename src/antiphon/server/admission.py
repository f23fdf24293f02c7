"""Who may open a socket: checked before the handshake, and refused as an HTTP answer that says why."""

from __future__ import annotations

import hmac
import ipaddress
import math
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection

from antiphon.core.errors import AntiphonError, LimitExceeded, Overloaded, ProtocolError, Throttled
from antiphon.server.serving import Serving
from antiphon.wire.errors import error_object, shown

KEY_SUBPROTOCOL = "openai-insecure-api-key."
REALTIME_SUBPROTOCOL = "realtime"
STATUS_BY_CODE = {
    "completion_not_found": 404,
    "forbidden_origin": 403,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "request_timeout": 408,
    "session_not_found": 404,
}
STATUS_BY_LIMIT = {"max_body_bytes": 413, "max_frame_bytes": 413}


def http_error(error: AntiphonError, status: int | None = None) -> JSONResponse:
    """The error as OpenAI-style JSON, with Retry-After where coming back later helps."""
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded | Throttled):
        status = 503 if isinstance(error, Overloaded) else 429
        headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
    body = error_object(error)
    return JSONResponse({"error": body}, status or _status(error, body["type"], body["code"]), headers)


def _status(error: AntiphonError, kind: str, code: str) -> int:
    if isinstance(error, LimitExceeded):
        return STATUS_BY_LIMIT.get(error.limit, 400)
    return STATUS_BY_CODE.get(code, 500 if kind == "server_error" else 400)


def check_socket(request: HTTPConnection, serving: Serving) -> int | None:
    """The client's API key, as `check_key` has it. Raises the reason for which it gets no session."""
    check_origin(request, serving.settings.origins)
    key = check_key(request, serving.settings.api_keys)
    for name in ("intent", "call_id"):
        if name in request.query_params:
            raise ProtocolError(f"{name}: this version serves conversations only.", param=name)
    serving.check_room(key=key)
    check_model(request.query_params.get("model"), serving)
    return key


def check_model(name: str | None, serving: Serving) -> None:
    """Without a name, the one model is meant."""
    served = serving.engine.info.name if serving.engine else ""
    if name is not None and name != served:
        raise ProtocolError(
            f"The model {shown(name)} does not exist; this server serves {shown(served)}.",
            code="model_not_found",
            param="model",
        )


def check_key(request: HTTPConnection, keys: tuple[str, ...]) -> int | None:
    """Which of the configured keys came, as a Bearer token or the way browsers must send it; None where none
    is configured. Raises unless one of them came."""
    if not keys:
        return None
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    offered = token.strip() if scheme.lower() == "bearer" else ""
    for protocol in subprotocols(request):
        if protocol.startswith(KEY_SUBPROTOCOL):
            offered = protocol.removeprefix(KEY_SUBPROTOCOL)
    # every key is compared, so that the time taken says nothing about which one was near
    matches = [hmac.compare_digest(offered.encode(), key.encode()) for key in keys]
    if not any(matches):
        raise ProtocolError("The API key is missing or wrong.", code="invalid_api_key")
    return matches.index(True)


def subprotocols(request: HTTPConnection) -> list[str]:
    """What the client offers, in its order."""
    offered = request.headers.get("sec-websocket-protocol", "")
    return [name.strip() for name in offered.split(",") if name.strip()]


def check_origin(request: HTTPConnection, allowed: tuple[str, ...]) -> None:
    """A web page may drive this server only from its own pages or a configured origin.

    No Origin header means no browser. "Own" counts only for hosts that public DNS cannot point at us, or any
    page could rebind its name to this machine and call itself same-origin.
    """
    origin = request.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if _is_own(origin, request.headers.get("host")):
        return
    raise ProtocolError(
        f"Pages from {shown(origin)} may not use this server; the operator can allow this origin.",
        code="forbidden_origin",
    )


def _is_own(origin: str, host: str | None) -> bool:
    """What is no URL is nobody's."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(parts.netloc) and parts.netloc == host and _is_local_name(parts.hostname or "")


def _is_local_name(host: str) -> bool:
    if "." not in host and ":" not in host:
        return True
    if host.endswith((".localhost", ".local")):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
