"""A long recording in pieces that a transcriber hears one at a time, cut where it is quietest."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from antiphon.core.conversation import AudioPart
from antiphon.core.ids import content_key
from antiphon.core.model_info import ModelInfo
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ

FIRST_CUT, LAST_CUT = 2 / 3, 59 / 60
"""Between which shares of what is heard at a time a piece ends. Sound behind the last one may still come: the
pieces of a turn that goes on stay as they are, but for the last."""
QUIET_S = 0.3
"""A pause is taken to last so long."""


def pieces_of(part: AudioPart, info: ModelInfo) -> tuple[AudioPart, ...]:
    """The recording, in as many pieces as it takes."""
    most = info.max_recording_s * MODEL_SAMPLE_RATE_HZ
    if part.num_samples <= most:
        return (part,)
    samples = np.frombuffer(part.samples, "<f4")
    cuts = [0]
    while len(samples) - cuts[-1] > most:
        first, last = cuts[-1] + int(FIRST_CUT * most), cuts[-1] + int(LAST_CUT * most)
        cuts.append(first + _quietest(samples[first:last]))
    ends = [*cuts[1:], len(samples)]
    return tuple(_piece(part, part.samples[4 * a : 4 * b]) for a, b in zip(cuts, ends, strict=True))


def _quietest(samples: NDArray[np.float32]) -> int:
    """The middle of the quietest stretch."""
    width = min(int(QUIET_S * MODEL_SAMPLE_RATE_HZ), len(samples))
    power = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    return int(np.argmin(power[width:] - power[:-width])) + width // 2


def _piece(part: AudioPart, samples: bytes) -> AudioPart:
    return msgspec.structs.replace(part, samples=samples, key=content_key(b"audio", samples))
