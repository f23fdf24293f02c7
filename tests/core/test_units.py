"""Bytes of sound as milliseconds."""

from __future__ import annotations

from antiphon.core.units import MODEL_SAMPLE_RATE_HZ, pcm16_ms


def test_milliseconds_of_pcm16() -> None:
    assert pcm16_ms(48_000) == 1000.0
    assert pcm16_ms(32_000, MODEL_SAMPLE_RATE_HZ) == 1000.0
    assert pcm16_ms(0) == 0.0
