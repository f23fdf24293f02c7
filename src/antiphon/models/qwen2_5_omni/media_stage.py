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
from antiphon.models.qwen2_5_omni.audio import AudioFeatures
from antiphon.models.qwen2_5_omni.config import FRAME_PIXELS
from antiphon.models.qwen2_5_omni.encoders import Encoders, Grid
from antiphon.models.qwen3_omni.media_stage import Encoded, sound_of
from antiphon.models.qwen3_omni.positions import Span
from antiphon.models.qwen3_omni.preprocess import ImagePreprocessor, VideoPreprocessor
from antiphon.models.qwen3_omni.preprocess_shapes import video_shape
from antiphon.models.qwen3_omni.stages import Scale


class MediaStage:
    """Both encoders with their preprocessing. Implements `engine.family.MediaModel`."""

    def __init__(self, encoders: Encoders, checkpoint: Path, scale: Scale) -> None:
        self._encoders = encoders
        self._scale = scale
        self._audio = AudioFeatures(checkpoint)
        self._image = ImagePreprocessor(checkpoint)
        self._video = VideoPreprocessor(checkpoint, video_shape(checkpoint, FRAME_PIXELS))

    def encode(self, media: Sequence[Media]) -> list[Encoded]:
        """Each medium as if alone, in order. A video's sound takes turns with its frames."""
        sounds = {i: sound for i, part in enumerate(media) if (sound := sound_of(part)) is not None}
        mels = [self._audio.mel(np.frombuffer(sound, np.float32)) for sound in sounds.values()]
        heard = dict(zip(sounds, self._encoders.hear(mels), strict=True))
        shown = {i: self._patches(part) for i, part in enumerate(media) if not isinstance(part, AudioPart)}
        grids = {i: grid for i, (_, grid) in shown.items()}
        encoded = self._encoders.see([patches for patches, _ in shown.values()], [*grids.values()])
        seen = dict(zip(shown, encoded, strict=True))
        out: list[Encoded] = []
        for i, part in enumerate(media):
            rows = heard[i] if i not in seen else seen[i]
            if i in seen and i in heard and isinstance(part, VideoPart):
                rows = self._joined(part, grids[i], seen[i], heard[i])
            out.append((rows, ()))
        return out

    def _joined(self, part: VideoPart, grid: Grid, seen: Tensor, heard: Tensor) -> Tensor:
        scale, seconds = self._scale, self._video.shape.seconds_per_grid(part.fps)
        span = Span(0, grid, seconds, scale.merge_size, len(heard), scale.chunk_ticks)
        order = torch.from_numpy(span.order(scale.positions_per_second)).to(heard.device)
        return torch.cat([seen, heard])[order]

    def _patches(self, part: ImagePart | VideoPart) -> tuple[Tensor, Grid]:
        if isinstance(part, ImagePart):
            return self._image.patches_of(part.rgb, part.width, part.height)
        return self._video.patches_of(part.frames, part.width, part.height, part.num_frames)
