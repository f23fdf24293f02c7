"""The transcriber's ears: samples to log-mel frames, and those to the states that its decoder attends to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import WhisperFeatureExtractor

from antiphon.core.conversation import AudioPart, Media
from antiphon.core.errors import CheckpointError, ProtocolError
from antiphon.models.cascade.whisper import FRAMES_PER_POSITION, Pair, WhisperEncoder

LOUDEST = 1.0
"""Every recording is brought to this loudness, log10 of the largest power in a mel bin, so that its floor,
and with it silence, is the same in all."""
MOST_GAIN = 3.0
"""By which one may be made louder, in the same measure: noise is no speech. It lifts digital silence to the
floor."""
QUIET_S = 0.5
"""Silence that is encoded behind what was said."""


class WhisperEars:
    """Log-mel frames as transformers' extractor makes them. Holds constants only."""

    def __init__(self, path: Path) -> None:
        """Of a transcriber's directory; raises CheckpointError."""
        try:
            fields = json.loads((path / "preprocessor_config.json").read_text(encoding="utf-8"))
            self._extractor = WhisperFeatureExtractor(**fields)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}/preprocessor_config.json cannot be used: {error}") from error
        self.sample_rate: int = self._extractor.sampling_rate
        self.hop: int = self._extractor.hop_length
        self.samples: int = self._extractor.n_samples

    @property
    def silence(self) -> float:
        """What a frame of silence has in every bin, beside the loudest that a recording has."""
        return (LOUDEST - 4.0) / 4.0

    def check(self, num_samples: int) -> None:
        """Raises ProtocolError for a recording that is empty or longer than a window."""
        if not num_samples:
            raise ProtocolError("the recording is empty")
        if num_samples > self.samples:
            most = self.samples / self.sample_rate
            raise ProtocolError(
                f"the recording lasts {num_samples / self.sample_rate:.1f} s; this model hears {most:g} s "
                "at a time. Send it in parts"
            )

    def window(self, samples: np.ndarray) -> Tensor:
        """float32 [n] -> float32 [bins, frames of a whole window], as transformers makes them."""
        made = self._extractor(samples, sampling_rate=self.sample_rate, return_tensors="np")
        return torch.from_numpy(made["input_features"][0])

    def levelled(self, samples: np.ndarray, num_frames: int) -> Tensor:
        """float32 [n] -> the first frames of that window, float32 [bins, num_frames], with all recordings as
        loud as each other. What is behind them is silence."""
        needed = (num_frames + 4) * self.hop
        padded = np.pad(samples, (0, max(needed - len(samples), 0)))
        made = self._extractor(
            padded, sampling_rate=self.sample_rate, padding="longest", truncation=False, return_tensors="np"
        )["input_features"][0]
        gain = min(LOUDEST / 4.0 + 1.0 - made.max(), MOST_GAIN / 4.0)
        return torch.from_numpy(np.maximum(made[:, :num_frames] + gain, self.silence, dtype=np.float32))


class Hearing:
    """Encodes recordings. Implements `engine.family.MediaModel`."""

    def __init__(self, encoder: WhisperEncoder, ears: WhisperEars, *, silent_tail: bool) -> None:
        """silent_tail: only what was said is encoded; else a whole window is, as in transformers."""
        self._encoder, self._ears = encoder, ears
        self._positions = encoder.config.positions
        self._tail: list[Pair] | None = None
        if silent_tail:
            self.silence, self._tail = encoder.window(self._silent_window())

    def encode(self, media: Sequence[Media]) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
        """Per recording the states [positions, hidden] of what was said in it, or of its whole window. Raises
        ProtocolError for other media, and for a recording that does not fit."""
        return [(self._states(part), ()) for part in media]

    def _states(self, part: Media) -> Tensor:
        if not isinstance(part, AudioPart):
            raise ProtocolError("this model hears and reads: it takes no pictures")
        self._ears.check(part.num_samples)
        samples = np.frombuffer(part.samples, np.float32)
        if not np.isfinite(samples).all():
            raise ProtocolError("the recording has samples that are not finite")
        if self._tail is None:
            return self._encoder.window(self._ears.window(samples))[0]
        ears = self._ears
        said = len(samples) + round(QUIET_S * ears.sample_rate)
        count = min(-(-said // (ears.hop * FRAMES_PER_POSITION)), self._positions)
        frames = FRAMES_PER_POSITION * count
        mel = ears.levelled(samples, frames)
        return self._encoder.head(torch.nn.functional.pad(mel, (0, 1), value=ears.silence), self._tail)

    def _silent_window(self) -> Tensor:
        bins, frames = self._encoder.config.mel_bins, FRAMES_PER_POSITION * self._positions
        return torch.full((bins, frames), self._ears.silence)
