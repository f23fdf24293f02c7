"""Server-sent events, as the stock clients read them."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.core.errors import AntiphonError
from antiphon.wire.errors import error_object

EVENT_STREAM = "text/event-stream"
LAST_EVENT = b"data: [DONE]\n\n"


def sse(payload: Any) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def error_event(error: AntiphonError) -> bytes:
    """What went wrong after the stream began; nothing comes after it."""
    return sse({"error": error_object(error)})
