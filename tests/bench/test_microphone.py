"""The microphone's clock."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from itertools import groupby
from typing import cast

import pytest

from antiphon.bench.microphone import Microphone
from antiphon.bench.wire_client import ConnectionLost, WireClient


class Wire:
    """Keeps when frames of how many seconds came; each write takes `slow_s`."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.frames: list[tuple[float, float]] = []
        self.voiced: list[bool] = []
        self.has_new = asyncio.Event()
        self.slow_s = slow_s
        self.is_lost = False

    async def append_framed(self, frame: bytes) -> None:
        if self.is_lost:
            raise ConnectionLost("gone")
        self.frames.append((time.monotonic(), len(json.loads(frame)["audio"]) * 3 // 4 / 48_000))
        self.voiced.append(any(b64decode(json.loads(frame)["audio"])))
        self.has_new.set()
        await asyncio.sleep(self.slow_s)

    async def until(self, num_frames: int) -> None:
        """So many have come."""
        async with asyncio.timeout(10):
            while len(self.frames) < num_frames:
                self.has_new.clear()
                await self.has_new.wait()


def microphone(wire: Wire, *, is_open: bool) -> tuple[Microphone, asyncio.Task[None]]:
    made = Microphone(cast(WireClient, wire), is_open=is_open)
    return made, asyncio.create_task(made.run())


LATE_S = 0.3
"""A busy machine may be so much. What a slow writer costs would come to more, if it added up."""


@pytest.mark.parametrize("slow_s", [0.0, 0.03])
async def test_a_second_takes_a_second(slow_s: float) -> None:
    """Frames leave when they have been spoken, and a slow writer does not add up."""
    wire = Wire(slow_s)
    speaker, running = microphone(wire, is_open=False)
    start_s = time.monotonic()
    await speaker.say(bytes(24_000))
    assert 0.49 <= time.monotonic() - start_s < 0.5 + slow_s + LATE_S
    assert sum(length_s for _, length_s in wire.frames) == pytest.approx(0.5, abs=0.001)
    for number, (at_s, _) in enumerate(wire.frames[:-1], 1):
        assert -0.01 <= at_s - start_s - 0.04 * number < LATE_S
    running.cancel()


async def test_an_open_microphone_hears_silence_too() -> None:
    wire = Wire()
    speaker, running = microphone(wire, is_open=True)
    await wire.until(3)
    await speaker.say(b"\1" * 4800)
    await wire.until(len(wire.frames) + 3)
    assert [voiced for voiced, _ in groupby(wire.voiced)] == [False, True, False]
    running.cancel()


async def test_a_broken_connection_ends_what_is_said() -> None:
    wire = Wire()
    speaker, running = microphone(wire, is_open=False)
    asyncio.get_running_loop().call_later(0.1, setattr, wire, "is_lost", True)
    with pytest.raises(ConnectionLost):
        await speaker.say(bytes(48_000))
    await running
    with pytest.raises(ConnectionLost):
        await speaker.say(bytes(48_000))
