"""Recordings as this family hears them: how many tokens they are, and their mel frames. 25 tokens a second.

The reference pads every recording with zeros to the longest that its files allow, and keeps the frames that
begin within it. So many zeros are needed as the last frames reach; the rest is not computed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon.models.qwen_media.preprocess_shapes import audio_fields


def num_audio_tokens(frames: int) -> int:
    """A convolution halves the mel frames, and pairs of what is left become tokens."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


class AudioFeatures:
    """Log-mel features, and their count without computing them."""

    def __init__(self, path: Path) -> None:
        from transformers import WhisperFeatureExtractor

        self._extractor = WhisperFeatureExtractor(**audio_fields(path))
        self._hop, self._n_fft = self._extractor.hop_length, self._extractor.n_fft
        self._longest = self._extractor.n_samples

    def frames(self, num_samples: int) -> int:
        """Mel frames of a recording. Raises ValueError for one that cannot be used."""
        if num_samples < 2 * self._hop + 1:
            raise ValueError(f"an audio clip needs at least {2 * self._hop + 1} samples, got {num_samples}")
        if num_samples > self._longest:
            raise ValueError(f"an audio clip may have at most {self._longest} samples, got {num_samples}")
        return -(-num_samples // self._hop)

    def tokens(self, num_samples: int) -> int:
        """LLM positions of a recording. Raises ValueError as `frames` does."""
        return num_audio_tokens(self.frames(num_samples))

    def mel(self, samples: NDArray[np.float32]) -> Tensor:
        """float32 [n] at 16 kHz to float32 [mel bins, frames]. Raises ValueError for what cannot be used."""
        from antiphon.models.qwen_media.preprocess import log_mel

        frames = self.frames(len(samples))
        length = min(frames * self._hop + 2 * self._n_fft, self._longest)
        padded = np.zeros(length, np.float32)
        padded[: len(samples)] = samples
        return log_mel(self._extractor, padded)[:, :frames]
