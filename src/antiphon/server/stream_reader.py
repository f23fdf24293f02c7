"""Whoever reads a text that is streamed to them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from antiphon.wire.reading import Reader


@dataclass(slots=True, weakref_slot=True)
class StreamReader:
    """session, response: of the engine's reply. is_paced: text is sent no faster than it is read."""

    session: str
    response: str
    reader: Reader
    is_paced: bool
    _reported: asyncio.Event = field(default_factory=asyncio.Event)

    def reported(self, read_chars: int) -> float | None:
        """See `Reader.reported`."""
        told_s = self.reader.reported(read_chars, time.monotonic())
        self._reported.set()
        return told_s

    def hurry(self) -> None:
        """All that is written is sent at once from now on."""
        self.is_paced = False
        self._reported.set()

    async def takes(self, text: str, num_tokens: int) -> None:
        """Wait until it may be sent: what the engine makes meanwhile waits in the exchange."""
        if self.is_paced:
            await self._wants_more()
        self.reader.sent(text, num_tokens, time.monotonic())

    async def _wants_more(self) -> None:
        """Wait until all that was sent is read."""
        while self.is_paced and (left_s := self.reader.wanted_at - time.monotonic()) > 0:
            self._reported.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._reported.wait()
            except TimeoutError:
                pass
