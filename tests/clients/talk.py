"""What the scripts here share: arguments, the voice they speak with, and failing in words.

Each script is run by its client's own interpreter, so this needs the standard library only:

    PYTHON SCRIPT URL MODEL WAV

URL is the server's (http://host:port), WAV what the person says: PCM16, mono, 24 kHz.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
import wave
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

LIMIT_S = 150
STEP_S = 0.04
STEP_BYTES = round(STEP_S * 48_000)


@dataclass(frozen=True)
class Arguments:
    url: str
    model: str
    speech: bytes

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1)


def arguments() -> Arguments:
    url, model, path = sys.argv[1:4]
    with wave.open(path) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return Arguments(url, model, file.readframes(file.getnframes()))


class Missed(Exception):
    """What the client should have seen and did not."""


def check(holds: object, message: str) -> None:
    """A requirement on what the client saw; Missed without it."""
    if not holds:
        raise Missed(message)


def silence(length_s: float) -> bytes:
    return bytes(2 * round(length_s * 24_000))


def pieces(pcm: bytes) -> Iterator[bytes]:
    return (pcm[start : start + STEP_BYTES] for start in range(0, len(pcm), STEP_BYTES))


async def microphone(pcm: bytes) -> AsyncIterator[bytes]:
    """The sound in pieces, as fast as a microphone brings them."""
    for piece in pieces(pcm):
        yield piece
        await asyncio.sleep(STEP_S)


async def listen(
    speak: Callable[[bytes], Awaitable[None]], holds: Callable[[], object], what: str, limit_s: float = 40
) -> None:
    """Keep the microphone open in a quiet room until something has been seen; Missed where it is not."""
    try:
        async with asyncio.timeout(limit_s):
            while not holds():
                await speak(silence(STEP_S))
    except TimeoutError:
        raise Missed(f"waited {limit_s:g} s for {what}") from None


async def until(holds: Callable[[], object], what: str, limit_s: float = 40) -> None:
    """Wait until something has been seen; Missed where it is not."""
    try:
        async with asyncio.timeout(limit_s):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise Missed(f"waited {limit_s:g} s for {what}") from None


def run(talk: Callable[[Arguments], Awaitable[None]]) -> None:
    """The whole of a script: status 0, or 1 and what was missed. Leaves at once: a client that failed may
    not be able to close."""

    async def limited() -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await talk(arguments())
        except Exception:
            traceback.print_exc()
            os._exit(1)

    asyncio.run(limited())
