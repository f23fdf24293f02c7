"""What clients ask in tests of the HTTP surfaces, and what the engine is told of it."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from antiphon.core.facts import ResponseRequested
from antiphon.wire.guides import AskedGuide
from server.conftest import Running

HI: Any = [{"role": "user", "content": "hi"}]


def asked(served: Running) -> ResponseRequested:
    return served.engine.of(ResponseRequested)[-1]


def wav(seconds: float = 0.5, rate: int = 8000, channels: int = 1, kind: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    samples = np.outer(0.3 * np.sin(np.arange(int(seconds * rate)) / 5), np.ones(channels))
    soundfile.write(buffer, samples, rate, format=kind)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(size: tuple[int, int] = (6, 4), shade: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


class Guides:
    """Any can be followed: there are no tokens to guide."""

    def __init__(self) -> None:
        self.asked: list[AskedGuide] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def check(self, asked: AskedGuide, key: int | None) -> None:
        self.asked.append(asked)
        await self.gate.wait()
