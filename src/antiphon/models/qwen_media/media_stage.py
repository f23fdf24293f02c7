"""Encoders as the engine's step runner sees them: media in core's shapes, embeddings out.

Each family brings its own towers. In a file of its own, since it imports transformers' models: a process that
only decodes starts without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.conversation import AudioPart, ImagePart, Media, VideoPart
from antiphon.models.qwen_media.positions import MediumSpan, Scale
from antiphon.models.qwen_media.preprocess import Grid, ImagePreprocessor, VideoPreprocessor

Encoded = tuple[Tensor, tuple[Tensor, ...]]
"""Embeddings [tokens, H] of one medium, and its deepstack rows, each [tokens, H]."""


class Towers(Protocol):
    """A checkpoint's encoders. Each medium is encoded as if alone."""

    def hear(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Mels [bins, frames] of any lengths -> for each the embeddings [tokens, H]."""
        ...

    def see(self, patches: Sequence[Tensor], grids: Sequence[Grid]) -> list[Encoded]:
        """Patches with their grids (t, h, w) -> for each the embeddings and the deepstack rows."""
        ...


class Ears(Protocol):
    def mel(self, samples: NDArray[np.float32]) -> Tensor:
        """float32 [n] at 16 kHz to float32 [bins, frames]. Raises ValueError for what cannot be used."""
        ...


class MediaStage:
    """Encoders with their preprocessing. Implements `engine.family.MediaModel`."""

    def __init__(
        self, towers: Towers, ears: Ears, image: ImagePreprocessor, video: VideoPreprocessor, scale: Scale
    ) -> None:
        self._towers = towers
        self._ears, self._image, self._video = ears, image, video
        self._scale = scale

    def encode(self, media: Sequence[Media]) -> list[Encoded]:
        """Each medium as if alone, in order. A video's sound is sorted in among its frames."""
        sounds = {i: sound for i, part in enumerate(media) if (sound := sound_of(part)) is not None}
        mels = [self._ears.mel(np.frombuffer(sound, np.float32)) for sound in sounds.values()]
        heard = dict(zip(sounds, self._towers.hear(mels), strict=True))
        shown = {i: self._patches(part) for i, part in enumerate(media) if not isinstance(part, AudioPart)}
        grids = {i: grid for i, (_, grid) in shown.items()}
        encoded = self._towers.see([patches for patches, _ in shown.values()], [*grids.values()])
        seen = dict(zip(shown, encoded, strict=True))
        out: list[Encoded] = []
        for i, part in enumerate(media):
            if i not in seen:
                out.append((heard[i], ()))
            elif i in heard and isinstance(part, VideoPart):
                out.append(self._joined(part, grids[i], heard[i], seen[i]))
            else:
                out.append(seen[i])
        return out

    def _patches(self, part: ImagePart | VideoPart) -> tuple[Tensor, Grid]:
        if isinstance(part, ImagePart):
            return self._image.patches_of(part.rgb, part.width, part.height)
        return self._video.patches_of(part.frames, part.width, part.height, part.num_frames)

    def _joined(self, part: VideoPart, grid: Grid, heard: Tensor, seen: Encoded) -> Encoded:
        """Rows of frames and sound by time. Deepstack adds nothing to sound: its rows are zeros."""
        scale, seconds = self._scale, self._video.shape.seconds_per_grid(part.fps)
        span = MediumSpan(0, grid, seconds, scale.merge_size, len(heard), scale.chunk_ticks)
        order = torch.from_numpy(span.order(scale.positions_per_second)).to(heard.device)
        rows, deep = seen
        silence = torch.zeros_like(heard)
        return torch.cat([rows, heard])[order], tuple(torch.cat([layer, silence])[order] for layer in deep)


def sound_of(part: Media) -> bytes | None:
    """float32 bytes at 16 kHz of a recording, or of a video that has sound."""
    if isinstance(part, AudioPart):
        return part.samples
    return part.audio if isinstance(part, VideoPart) else None
