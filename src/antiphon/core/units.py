"""Rates fixed by the wire or by audio itself. Units are in the names."""

from __future__ import annotations

WIRE_SAMPLE_RATE_HZ = 24_000
"""PCM rate towards and from clients (OpenAI Realtime, GA)."""

MODEL_SAMPLE_RATE_HZ = 16_000
"""Rate at which speech enters an encoder."""

PCM16_BYTES = 2

MAX_AMPLITUDE = 1000.0
"""Of samples that should be from -1 to 1: the power of louder ones overflows."""


def pcm16_ms(num_bytes: int, rate_hz: int = WIRE_SAMPLE_RATE_HZ) -> float:
    """Milliseconds of mono 16-bit PCM."""
    return 1000.0 * num_bytes / (PCM16_BYTES * rate_hz)
