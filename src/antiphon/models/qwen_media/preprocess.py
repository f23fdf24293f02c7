"""Raw media to what the encoders take: samples to mel frames, pixels to patches.

Equal to the reference processors, without torchvision. It must not know tokens, prompts or the engine.
The classes hold constants only, so any number of threads may share one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor
from transformers.image_utils import PILImageResampling
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from antiphon.core.errors import CheckpointError
from antiphon.models.qwen_media.preprocess_shapes import (
    AudioShape,
    Grid,
    ImageShape,
    VideoShape,
    audio_fields,
    audio_shape,
    image_fields,
    image_shape,
    video_fields,
    video_shape,
)

# How pixels become numbers; sizes are passed apart, because they have two spellings.
_PIXEL_FIELDS = ("image_mean", "image_std", "rescale_factor", "resample", "do_normalize", "do_rescale")


class AudioPreprocessor:
    """Log-mel features as the audio encoder expects them."""

    def __init__(self, path: Path) -> None:
        self._extractor = WhisperFeatureExtractor(**audio_fields(path))
        self.shape: AudioShape = audio_shape(path)

    def mel(self, samples: NDArray[np.float32]) -> torch.Tensor:
        """float32 [n] at 16 kHz to float32 [mel bins, frames].

        A clip is never padded: the reference pads the shorter clips of a request to its longest, which
        would make a clip's features depend on its neighbours. Raises ValueError for a clip that is too
        short or not finite.
        """
        frames = self.shape.frames(samples.shape[0])
        features = log_mel(self._extractor, samples)
        assert features.shape[1] == frames
        return features


def log_mel(extractor: WhisperFeatureExtractor, samples: NDArray[np.float32]) -> torch.Tensor:
    """float32 [n] to float32 [mel bins, frames]. Raises ValueError for samples that are not finite."""
    if not np.isfinite(samples).all():
        raise ValueError("an audio clip has samples that are not finite")
    features = extractor(
        samples,
        sampling_rate=extractor.sampling_rate,
        padding="longest",
        truncation=False,
        return_attention_mask=False,
        return_tensors="np",
    )["input_features"][0]
    return torch.from_numpy(features)


class ImagePreprocessor:
    """Patches as the vision encoder expects them, in merge order."""

    def __init__(self, path: Path) -> None:
        self.shape: ImageShape = image_shape(path)
        fields = image_fields(path)
        self._processor = Qwen2VLImageProcessorPil(
            patch_size=self.shape.patch,
            temporal_patch_size=self.shape.temporal_patch,
            merge_size=self.shape.merge,
            size={"shortest_edge": self.shape.min_pixels, "longest_edge": self.shape.max_pixels},
            **{name: fields[name] for name in _PIXEL_FIELDS if fields.get(name) is not None},
        )

    def grid_of(self, width: int, height: int) -> Grid:
        """(t, h, w) in patches, without looking at a pixel."""
        return self.shape.grid_of(width, height)

    def patches(self, rgb: NDArray[np.uint8]) -> tuple[torch.Tensor, Grid]:
        """uint8 [h, w, 3] to float32 [t * h * w, channels * temporal * patch * patch] and its grid.

        Raises ValueError for a picture that cannot be used.
        """
        if rgb.ndim != 3 or rgb.shape[2] != 3:
            raise ValueError(f"an image must be [height, width, 3], got {list(rgb.shape)}")
        grid = self.shape.grid_of(rgb.shape[1], rgb.shape[0])
        # The layout is named because a picture 3 pixels high is ambiguous to the reference.
        result = self._processor(images=[rgb], input_data_format="channels_last", return_tensors="np")
        assert tuple(result["image_grid_thw"][0]) == grid
        return torch.from_numpy(result["pixel_values"]), grid

    def patches_of(self, rgb: bytes, width: int, height: int) -> tuple[torch.Tensor, Grid]:
        """The patches of row-major bytes."""
        if len(rgb) != width * height * 3:
            raise ValueError(f"an image of {width}x{height} has {width * height * 3} bytes, got {len(rgb)}")
        return self.patches(np.frombuffer(rgb, np.uint8).reshape(height, width, 3))


class VideoPreprocessor:
    """Patches of a video's frames as the vision encoder expects them, in merge order.

    Bit for bit the reference's: it resizes bytes by the same torch function that is called here.
    """

    def __init__(self, path: Path, shape: VideoShape | None = None) -> None:
        self.shape: VideoShape = shape or video_shape(path)
        fields = video_fields(path)
        _check_pixels(path, fields)
        scale = 1.0 / fields.get("rescale_factor", 1 / 255)
        self._mean = torch.tensor(fields.get("image_mean") or OPENAI_CLIP_MEAN)[:, None, None] * scale
        self._std = torch.tensor(fields.get("image_std") or OPENAI_CLIP_STD)[:, None, None] * scale

    def patches(self, frames: NDArray[np.uint8]) -> tuple[Tensor, Grid]:
        """uint8 [t, h, w, 3] to float32 [grid t * h * w, channels * temporal * patch * patch] and the grid.

        Raises ValueError for a video that cannot be used.
        """
        grid = self.shape.grid_of(frames.shape[0], frames.shape[2], frames.shape[1])
        patch = self.shape.frame.patch
        video = torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))
        size = grid[1] * patch, grid[2] * patch
        if video.shape[-2:] != size:
            video = F.interpolate(video, size, mode="bicubic", align_corners=False, antialias=True)
        pixels = video.float().sub_(self._mean).div_(self._std)
        return self._cut(pixels, grid), grid

    def patches_of(self, frames: bytes, width: int, height: int, num_frames: int) -> tuple[Tensor, Grid]:
        """The patches of row-major bytes."""
        shape = num_frames, height, width, 3
        return self.patches(np.frombuffer(frames, np.uint8).reshape(shape))

    def _cut(self, pixels: Tensor, grid: Grid) -> Tensor:
        """float32 [t, 3, h, w] to patches; frames that the last patch lacks repeat the last one."""
        time, rows, columns = grid
        depth, patch, merge = self.shape.frame.temporal_patch, self.shape.frame.patch, self.shape.frame.merge
        missing = time * depth - len(pixels)
        pixels = torch.cat([pixels, pixels[-1:].expand(missing, -1, -1, -1)])
        split = pixels.view(time, depth, 3, rows // merge, merge, patch, columns // merge, merge, patch)
        return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(time * rows * columns, -1)


def _check_pixels(path: Path, fields: dict[str, Any]) -> None:
    """Raises CheckpointError for steps that no released checkpoint changes, and this class does not know."""
    on = all(fields.get(name, True) for name in ("do_resize", "do_rescale", "do_normalize"))
    if not on or fields.get("resample", PILImageResampling.BICUBIC) != PILImageResampling.BICUBIC:
        raise CheckpointError(f"{path}: video frames must be resized (bicubic), rescaled and normalised")
