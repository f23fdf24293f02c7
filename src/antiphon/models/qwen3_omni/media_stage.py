"""The family's encoders as the engine's step runner sees them: media in core's shapes, embeddings out.

In a file of its own, since it brings in transformers' models: who only decodes starts without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antiphon.core.conversation import AudioPart, ImagePart, Media, VideoPart
from antiphon.models.qwen3_omni.encoders import Encoders
from antiphon.models.qwen3_omni.positions import Span
from antiphon.models.qwen3_omni.preprocess import (
    AudioPreprocessor,
    Grid,
    ImagePreprocessor,
    VideoPreprocessor,
)
from antiphon.models.qwen3_omni.stages import Scale

Encoded = tuple[Tensor, tuple[Tensor, ...]]
"""Embeddings [tokens, H] of one medium, and its deepstack rows, each [tokens, H]."""


class MediaStage:
    """Both encoders with their preprocessing."""

    def __init__(self, encoders: Encoders, checkpoint: Path, scale: Scale) -> None:
        self._encoders = encoders
        self._scale = scale
        self._audio = AudioPreprocessor(checkpoint)
        self._image = ImagePreprocessor(checkpoint)
        self._video = VideoPreprocessor(checkpoint)

    def encode(self, media: Sequence[Media]) -> list[Encoded]:
        """Each medium as if alone, in order. A video's sound is sorted in among its frames."""
        sounds = {i: sound for i, part in enumerate(media) if (sound := sound_of(part)) is not None}
        mels = [self._audio.mel(np.frombuffer(sound, np.float32)) for sound in sounds.values()]
        heard = dict(zip(sounds, self._encoders.audio.encode(mels), strict=True))
        shown = {i: self._patches(part) for i, part in enumerate(media) if not isinstance(part, AudioPart)}
        grids = {i: grid for i, (_, grid) in shown.items()}
        encoded = self._encoders.vision.encode([patches for patches, _ in shown.values()], [*grids.values()])
        seen = dict(zip(shown, encoded, strict=True))
        out: list[Encoded] = []
        for i, part in enumerate(media):
            if i not in seen:
                out.append((heard[i], ()))
            elif i in heard and isinstance(part, VideoPart):
                out.append(self._joined(part, grids[i], heard[i], seen[i]))
            else:
                out.append((seen[i][0], tuple(seen[i][1])))
        return out

    def _patches(self, part: ImagePart | VideoPart) -> tuple[Tensor, Grid]:
        if isinstance(part, ImagePart):
            return self._image.patches_of(part.rgb, part.width, part.height)
        return self._video.patches_of(part.frames, part.width, part.height, part.num_frames)

    def _joined(
        self, part: VideoPart, grid: Grid, heard: Tensor, seen: tuple[Tensor, list[Tensor]]
    ) -> Encoded:
        """Rows of frames and sound by time. Deepstack adds nothing to sound: its rows are zeros."""
        seconds = self._video.shape.seconds_per_grid(part.fps)
        span = Span(0, grid, seconds, self._scale.merge_size, len(heard))
        order = torch.from_numpy(span.order(self._scale.positions_per_second)).to(heard.device)
        rows, deep = seen
        silence = torch.zeros_like(heard)
        return torch.cat([rows, heard])[order], tuple(torch.cat([layer, silence])[order] for layer in deep)


def sound_of(part: Media) -> bytes | None:
    """float32 bytes at 16 kHz of a recording, or of a video that has sound."""
    if isinstance(part, AudioPart):
        return part.samples
    return part.audio if isinstance(part, VideoPart) else None
