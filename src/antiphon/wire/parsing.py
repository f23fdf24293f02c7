"""Frames to typed events. Each way in which a frame can be wrong becomes a ProtocolError with code, param."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from antiphon.core.errors import ProtocolError
from antiphon.wire.client_events import EVENTS, ClientEvent
from antiphon.wire.errors import shown
from antiphon.wire.limits import Limits, check

T = TypeVar("T")

MAX_EVENT_ID_CHARS = 512
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_RANGE = re.compile(r"` (?:of length |matching |multiple of |[<>])")
_FIELD = re.compile(r"field `(?P<field>[^`]*)`")


def decode_object(frame: str | bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object in a text frame."""
    check("max_frame_bytes", limits.max_frame_bytes, len(frame))
    if isinstance(frame, bytes):
        raise ProtocolError("Binary frames carry no events here; send JSON as text.", code="invalid_type")
    try:
        value = msgspec.json.decode(frame)
    except RecursionError:
        raise ProtocolError("The JSON is nested too deeply.", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(f"The frame is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"An event is a JSON object; got {shown(value)}.", code="invalid_type")
    return value  # pyright: ignore[reportUnknownVariableType]


def client_event_id(raw: dict[str, Any]) -> str | None:
    """The client's own id of the event, where it is one that can be echoed."""
    event_id = raw.get("event_id")
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS else None


def typed_event(raw: dict[str, Any]) -> ClientEvent:
    """The event that `raw` spells."""
    if "type" not in raw:
        raise ProtocolError(
            "Missing required parameter: 'type'.", code="missing_required_parameter", param="type"
        )
    kind = raw["type"]
    if not isinstance(kind, str) or kind not in EVENTS:
        supported = ", ".join(EVENTS)
        raise ProtocolError(
            f"Event type {shown(kind)} is not supported. Supported: {supported}.", param="type"
        )
    return converted(raw, EVENTS[kind])


def converted(raw: Any, target: type[T], at: str = "") -> T:
    """`raw` as `target`; `at` is the path of `raw` within its event."""
    try:
        return msgspec.convert(raw, target)
    except msgspec.ValidationError as error:
        raise _protocol_error(str(error), at) from None


def _protocol_error(message: str, at: str) -> ProtocolError:
    """msgspec's sentence as a wire error: what is wrong, and the dotted path of the field."""
    match = _WHERE.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    found = _FIELD.search(what)
    param = ".".join(part for part in (at, path.lstrip("."), found["field"] if found else "") if part)
    if what.startswith("Object missing"):
        return ProtocolError(
            f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
        )
    if what.startswith("Object contains unknown"):
        shown_param = shown(param)
        return ProtocolError(
            f"Unknown parameter: {shown_param}.", code="unknown_parameter", param=param[:200]
        )
    is_type = what.startswith("Expected") and not _RANGE.search(what)
    code = "invalid_type" if is_type else "invalid_value"
    return ProtocolError(f"Invalid '{param}': {what}.", code=code, param=param)
