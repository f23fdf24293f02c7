"""G.711 at 8 kHz, both laws, to and from the wire's 24 kHz. Tables after ITU-T G.711; resampling by soxr."""

from __future__ import annotations

from functools import cache

import numpy as np
import soxr
from numpy.typing import NDArray

from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.wire.audio import pcm16
from antiphon.wire.input_settings import G711_RATE_HZ, AudioFormat

Shorts = NDArray[np.int16]
Bytes = NDArray[np.uint8]

FACTOR = WIRE_SAMPLE_RATE_HZ // G711_RATE_HZ
CONTEXT_SAMPLES, AHEAD_SAMPLES = 64, 16
"""Samples at 8 kHz that the resampler sees before and after those it is asked for: 16 are 2 ms of delay."""


@cache
def expansion(audio_format: AudioFormat) -> Shorts:
    """int16 [256]: the 16-bit value of each code."""
    codes = np.arange(256)
    if audio_format == "audio/pcmu":
        flipped = ~codes & 0xFF
        size = ((((flipped & 0x0F) << 3) + 0x84) << ((flipped & 0x70) >> 4)) - 0x84
        return np.where(flipped & 0x80, -size, size).astype(np.int16)
    flipped = codes ^ 0x55
    segment, step = (flipped & 0x70) >> 4, (flipped & 0x0F) << 4
    size = np.where(segment == 0, step + 8, (step + 0x108) << np.maximum(segment - 1, 0))
    return np.where(flipped & 0x80, size, -size).astype(np.int16)


@cache
def compression(audio_format: AudioFormat) -> Bytes:
    """uint8 [65536]: the code of each 16-bit value, at its place as an unsigned number."""
    values = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int64)
    if audio_format == "audio/pcmu":
        shifted = values >> 2
        mask = np.where(shifted < 0, 0x7F, 0xFF)
        size = np.minimum(np.abs(shifted), 8159) + 0x21
        segment = np.searchsorted(0x40 << np.arange(8), size, "right")
        code = (segment << 4) | ((size >> (segment + 1)) & 0x0F)
        return (np.where(segment > 7, 0x7F, code) ^ mask).astype(np.uint8)
    shifted = values >> 3
    mask = np.where(shifted < 0, 0x55, 0xD5)
    size = np.where(shifted < 0, -shifted - 1, shifted)
    segment = np.searchsorted(0x20 << np.arange(8), size, "right")
    return ((segment << 4 | ((size >> np.maximum(segment, 1)) & 0x0F)) ^ mask).astype(np.uint8)


class G711Decoder:
    """`wire.ports.AudioDecoder`: three samples out for each one in, 2 ms late, no seams between pushes."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._table = expansion(audio_format)
        self._past = np.zeros(CONTEXT_SAMPLES + AHEAD_SAMPLES, np.float32)

    def push(self, audio: bytes) -> bytes:
        new = self._table[np.frombuffer(audio, np.uint8)].astype(np.float32)
        block = np.concatenate([self._past, new])
        self._past = block[len(new) :]
        whole = soxr.resample(block, G711_RATE_HZ, WIRE_SAMPLE_RATE_HZ)
        start = FACTOR * CONTEXT_SAMPLES
        wanted = whole[start : start + FACTOR * len(new)]
        return np.rint(np.clip(wanted, -32768, 32767)).astype("<i2").tobytes()


class G711Encoder:
    """`wire.ports.AudioEncoder`: one stream through one resampler."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._table = compression(audio_format)
        self._resampler = soxr.ResampleStream(WIRE_SAMPLE_RATE_HZ, G711_RATE_HZ, 1, dtype="float32")

    def push(self, samples: bytes) -> bytes:
        return self._encoded(np.frombuffer(samples, "<f4"), last=False)

    def flush(self) -> bytes:
        return self._encoded(np.zeros(0, np.float32), last=True)

    def _encoded(self, samples: NDArray[np.float32], *, last: bool) -> bytes:
        resampled = self._resampler.resample_chunk(samples.astype(np.float32), last=last)
        shorts = np.frombuffer(pcm16(resampled.astype("<f4").tobytes()), "<i2")
        return self._table[shorts.view(np.uint16)].tobytes()
