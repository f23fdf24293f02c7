"""Events waiting for a client to read them: bounded, in order, one reader. Knows no socket."""

from __future__ import annotations

import asyncio
from collections import deque

from antiphon.core.errors import LimitExceeded


class EventQueue:
    """A queue bounded in bytes. `put` never waits: a full box means the client does not read."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._num_bytes = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Queue an event. Raises LimitExceeded when the box would be over its bound; dropped when closed."""
        if self._is_closed:
            return
        if self._num_bytes + len(event) > self._max_bytes:
            raise LimitExceeded("max_queued_bytes", self._max_bytes, self._num_bytes + len(event))
        self._events.append(event)
        self._num_bytes += len(event)
        self._changed.set()

    def close(self) -> None:
        """Nothing more is taken; what waits is still handed out."""
        self._is_closed = True
        self._changed.set()

    async def get(self) -> bytes | None:
        """The next event, or None when the box is closed and empty."""
        while not self._events:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        self._num_bytes -= len(event)
        return event
