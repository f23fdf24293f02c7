"""A synthetic voice: harmonics under moving formants and a syllable envelope. Silero hears a person."""

from __future__ import annotations

import numpy as np

RATE_HZ = 24_000
SYLLABLE_S = 0.2
VOWELS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (530, 1840, 2480), (300, 870, 2240))
WIDTHS_HZ = (80, 100, 150)


def voice(length_s: float, rate_hz: int = RATE_HZ, pitch_hz: float = 130.0) -> np.ndarray:
    """float32 [n] in [-1, 1]: five syllables a second, another vowel each."""
    times = np.arange(round(length_s * rate_hz)) / rate_hz
    pitch = pitch_hz * (1.0 + 0.15 * np.sin(2 * np.pi * 1.3 * times) + 0.01 * np.sin(2 * np.pi * 5.3 * times))
    phase = 2 * np.pi * np.cumsum(pitch) / rate_hz
    at = times / SYLLABLE_S
    vowels = np.array(VOWELS_HZ, float)[:, :, None]
    here, there = vowels[at.astype(int) % 5], vowels[(at.astype(int) + 1) % 5]
    glide = np.clip((at % 1.0 - 0.6) / 0.4, 0.0, 1.0)[:, None, None]
    formants = ((1 - glide) * here + glide * there)[:, :, 0].T
    wave = np.zeros_like(times)
    for number in range(1, int(4000 / pitch_hz)):
        peaks = [
            1.0 / (1.0 + ((number * pitch - f) / w) ** 2) for f, w in zip(formants, WIDTHS_HZ, strict=True)
        ]
        wave += sum(peaks) * np.sin(number * phase) / number**0.3
    wave *= 0.35 + 0.65 * np.sin(np.pi * (at % 1.0)) ** 0.5
    wave += 0.02 * np.random.default_rng(1).standard_normal(len(times))
    return (0.5 * wave / np.abs(wave).max()).astype(np.float32)


def silence(length_s: float, rate_hz: int = RATE_HZ) -> np.ndarray:
    """float32 [n]: a quiet room."""
    noise = np.random.default_rng(0).standard_normal(round(length_s * rate_hz))
    return (0.0005 * noise).astype(np.float32)


def pcm16(samples: np.ndarray) -> bytes:
    return np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
