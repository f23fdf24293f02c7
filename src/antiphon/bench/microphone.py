"""A microphone: a second of audio takes a second, in frames of 40 ms, on absolute deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from antiphon.bench.voice import silence
from antiphon.bench.wire_client import ConnectionLost, WireClient, append_frame
from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ
from antiphon.people.acts import FRAME_S

FRAME_BYTES = round(FRAME_S * WIRE_SAMPLE_RATE_HZ) * PCM16_BYTES
BYTES_PER_S = WIRE_SAMPLE_RATE_HZ * PCM16_BYTES
SILENT_FRAME = append_frame(silence(FRAME_S))


class Microphone:
    """Sends what is said, and silence in between if it `is_open`.

    A frame leaves when its last sample has been spoken.
    """

    def __init__(self, client: WireClient, *, is_open: bool) -> None:
        self._client = client
        self._is_open = is_open
        self._to_say: deque[tuple[bytes, asyncio.Future[None] | None]] = deque()
        self._spoke = asyncio.Event()
        self._lost: ConnectionLost | None = None

    async def say(self, pcm: bytes) -> None:
        """Returns when the last byte was written. Raises ConnectionLost."""
        if self._lost is not None:
            raise self._lost
        if not pcm:
            return
        said = asyncio.get_running_loop().create_future()
        pieces = [pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm), FRAME_BYTES)]
        self._to_say.extend(
            (piece, said if at == len(pieces) - 1 else None) for at, piece in enumerate(pieces)
        )
        self._spoke.set()
        await said

    async def run(self) -> None:
        """Until cancelled; ends quietly when the connection breaks, and so does whatever is being said."""
        due_s = time.monotonic()
        try:
            while True:
                if not self._to_say and not self._is_open:
                    self._spoke.clear()
                    await self._spoke.wait()
                    due_s = time.monotonic()
                due_s = await self._send_next(due_s)
        except ConnectionLost as error:
            self._break_off(error)

    async def _send_next(self, due_s: float) -> float:
        piece, said = self._to_say.popleft() if self._to_say else (b"", None)
        due_s += len(piece) / BYTES_PER_S if piece else FRAME_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        try:
            await self._client.append_framed(append_frame(piece) if piece else SILENT_FRAME)
        except ConnectionLost as error:
            _fail(said, error)
            raise
        if said is not None and not said.done():
            said.set_result(None)
        return due_s

    def _break_off(self, error: ConnectionLost) -> None:
        self._lost = error
        for _, said in self._to_say:
            _fail(said, error)
        self._to_say.clear()


def _fail(said: asyncio.Future[None] | None, error: ConnectionLost) -> None:
    if said is not None and not said.done():
        said.set_exception(error)
