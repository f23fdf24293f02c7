"""PCM for what a person says: vowels with formants, a gliding pitch and four syllables a second.

A voice is rendered once, 16 s long; every stretch of speech is a piece of it. So a session costs a copy, not
a synthesis, and the same seed says the same samples to every server. A directory of recordings may stand in.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.core.errors import ConfigError
from antiphon.core.rng import stream
from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ

LOOP_S = 16.0
NUM_SPEAKERS = 4
FADE_S = 0.01
PEAK = 0.5
SYLLABLE_HZ = 4.0
TOP_HZ = 5000.0
VOWELS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (530, 1840, 2480), (570, 840, 2410), (300, 870, 2240))
"""First three formants of a, i, e, o, u."""
BANDWIDTHS_HZ = (80.0, 100.0, 140.0)
PITCHES_HZ = (95.0, 120.0, 150.0, 180.0)

Samples = NDArray[np.float32]


class Voices:
    """The voices people of a run speak with."""

    def __init__(self, loops: list[Samples]) -> None:
        self._loops = [_pcm16(loop) for loop in loops]

    @classmethod
    def synthetic(cls) -> Voices:
        """Half a second of work the first time: ask for them before the run."""
        return cls(list(_synthetic_loops()))

    @classmethod
    def recorded(cls, directory: Path) -> Voices:
        """One voice a sound file of the directory; any rate, first channel. Raises ConfigError."""
        files = sorted(
            path for path in directory.glob("*") if path.suffix.lower() in (".wav", ".flac", ".ogg")
        )
        if not files:
            raise ConfigError(f"voices: no .wav, .flac or .ogg file in {directory}")
        return cls([_read(path) for path in files])

    def speak(self, seconds: float, seed: int, *names: str) -> bytes:
        """PCM16 at 24 kHz, `seconds` long: a piece of the voice of `seed`, where `names` say."""
        loop = self._loops[seed % len(self._loops)]
        start = int(stream(seed, "voice", *names).integers(len(loop)))
        wanted = round(seconds * WIRE_SAMPLE_RATE_HZ)
        piece = np.take(loop, np.arange(start, start + wanted), mode="wrap").astype(np.float32)
        fade = min(round(FADE_S * WIRE_SAMPLE_RATE_HZ), wanted // 2)
        if fade:
            ramp = np.linspace(0, 1, fade, dtype=np.float32)
            piece[:fade] *= ramp
            piece[-fade:] *= ramp[::-1]
        return piece.astype("<i2").tobytes()


@functools.cache
def _synthetic_loops() -> tuple[Samples, ...]:
    return tuple(render(speaker, LOOP_S) for speaker in range(NUM_SPEAKERS))


def silence(seconds: float) -> bytes:
    return bytes(round(seconds * WIRE_SAMPLE_RATE_HZ) * PCM16_BYTES)


def render(speaker: int, seconds: float) -> Samples:
    """The voice of one speaker: harmonics of a gliding pitch, the formants of vowel after vowel."""
    rng = stream(speaker, "speaker")
    ticks = np.arange(round(seconds * WIRE_SAMPLE_RATE_HZ))
    t = (ticks / WIRE_SAMPLE_RATE_HZ).astype(np.float32)
    num_syllables = int(np.ceil(seconds * SYLLABLE_HZ)) + 2
    at = np.arange(num_syllables) / SYLLABLE_HZ
    base_hz = PITCHES_HZ[speaker % len(PITCHES_HZ)]
    pitch_hz = np.interp(t, at, base_hz * rng.uniform(0.7, 1.4, num_syllables)).astype(np.float32)
    vowels = np.asarray(VOWELS_HZ)[rng.integers(len(VOWELS_HZ), size=num_syllables)]
    formants = [np.interp(t, at, vowels[:, n]).astype(np.float32) for n in range(3)]
    wave = _harmonics(pitch_hz, formants) * _envelope(t, rng.uniform(0.7, 1.0, num_syllables))
    wave += _breath(t, rng)
    return (PEAK * wave / np.abs(wave).max()).astype(np.float32)


def _harmonics(pitch_hz: Samples, formants: list[Samples]) -> Samples:
    phase = (2 * np.pi * np.cumsum(pitch_hz, dtype=np.float64) / WIRE_SAMPLE_RATE_HZ) % (2 * np.pi * 5040)
    wave = np.zeros_like(pitch_hz)
    for k in range(1, int(TOP_HZ / pitch_hz.max()) + 1):
        hz = k * pitch_hz
        gain = np.zeros_like(wave)
        for formant, width_hz in zip(formants, BANDWIDTHS_HZ, strict=True):
            gain += 1 / (1 + ((hz - formant) / width_hz) ** 2)
        wave += (gain + 0.02) / np.float32(k) * np.sin((k * phase % (2 * np.pi)).astype(np.float32))
    return wave


def _envelope(t: Samples, loudness: NDArray[np.float64]) -> Samples:
    """Syllables, each of its own loudness, with a dip between two."""
    dip = np.abs(np.sin(np.pi * SYLLABLE_HZ * t))
    return (np.interp(t * SYLLABLE_HZ, np.arange(len(loudness)), loudness) * dip).astype(np.float32)


def _breath(t: Samples, rng: np.random.Generator) -> Samples:
    """Consonants, roughly: noise where the syllables meet."""
    gate = np.clip(1 - 6 * np.abs(np.sin(np.pi * SYLLABLE_HZ * t)), 0, 1)
    return (0.15 * gate * rng.standard_normal(len(t))).astype(np.float32)


def _read(path: Path) -> Samples:
    import soundfile
    import soxr

    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.LibsndfileError) as error:
        raise ConfigError(f"voices: cannot read {path}: {error}") from error
    if not len(samples):
        raise ConfigError(f"voices: {path} is empty")
    return soxr.resample(samples[:, 0], rate, WIRE_SAMPLE_RATE_HZ)


def _pcm16(samples: Samples) -> NDArray[np.int16]:
    return np.rint(np.clip(samples, -1, 1) * 32767).astype(np.int16)
