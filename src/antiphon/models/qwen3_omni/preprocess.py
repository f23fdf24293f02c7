"""Raw media to what the encoders take: samples to mel frames, pixels to patches.

Equal to the reference processors, without torchvision. It must not know tokens, prompts or the engine.
Both classes hold constants only, so any number of threads may share one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from antiphon.models.qwen3_omni.preprocess_shapes import (
    AudioShape,
    Grid,
    ImageShape,
    audio_fields,
    audio_shape,
    image_fields,
    image_shape,
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
        if not np.isfinite(samples).all():
            raise ValueError("an audio clip has samples that are not finite")
        features = self._extractor(
            samples,
            sampling_rate=self._extractor.sampling_rate,
            padding="longest",
            truncation=False,
            return_attention_mask=False,
            return_tensors="np",
        )["input_features"][0]
        assert features.shape[1] == frames
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
        """The same for row-major bytes."""
        if len(rgb) != width * height * 3:
            raise ValueError(f"an image of {width}x{height} has {width * height * 3} bytes, got {len(rgb)}")
        return self.patches(np.frombuffer(rgb, np.uint8).reshape(height, width, 3))
