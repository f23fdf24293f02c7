"""Recordings of people, for the test conversation: fetched by version and hash, cut to what is heard at once.

They are sound files of the package moonshine-voice (MIT). It is never installed, and nothing of it is run.
What is said in them stands in human_recordings.yaml.
"""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from antiphon.checkpoint.packages import Package, fetch, read_member

PACKAGE = Package(
    "moonshine-voice",
    "0.1.5",
    "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496",
    19_897_307,
    "MIT",
    "recordings of people",
    tag="py3-none-manylinux_2_34_x86_64",
)
SAID = Path(__file__).with_name("human_recordings.yaml")
FOLDER = Path(__file__).parents[1] / "checkpoints" / "recordings"
MOST_S = 28.0
"""Of one piece; a cascade hears 30 s at once."""
QUIET_S = 0.25
"""How long the quietest place is looked for."""


@dataclass(frozen=True)
class Recording:
    """PCM16 samples, one channel, and what is said in them."""

    name: str
    said: str
    samples: np.ndarray
    rate_hz: int


def recordings(folder: Path = FOLDER) -> list[Recording]:
    """All that human_recordings.yaml lists. Raises CheckpointError where the package can't be had."""
    said: list[dict[str, Any]] = yaml.safe_load(SAID.read_text())
    wheel = fetch([PACKAGE], folder, lambda text: None)[PACKAGE.name]
    return [_read(read_member(wheel, f"moonshine_voice/assets/{one['file']}"), **one) for one in said]


def _read(content: bytes, file: str, said: str) -> Recording:
    with wave.open(io.BytesIO(content)) as sound:
        samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
        return Recording(Path(file).stem, said, samples, sound.getframerate())


def pieces(samples: np.ndarray, rate_hz: int, most_s: float = MOST_S) -> list[np.ndarray]:
    """The samples, cut where the second half of what fits is quietest; nothing is left out."""
    most, size = round(most_s * rate_hz), round(QUIET_S * rate_hz)
    found: list[np.ndarray] = []
    while len(samples) > most:
        powers = np.cumsum(np.square(samples[most // 2 : most].astype(np.float64)))
        at = most // 2 + int(np.argmin(powers[size:] - powers[:-size])) + size // 2
        found.append(samples[:at])
        samples = samples[at:]
    return [*found, samples]
