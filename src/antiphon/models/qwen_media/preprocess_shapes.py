"""How many positions a recording, a clip or a picture takes, from its size alone.

Pure arithmetic on the numbers of preprocessor_config.json: nothing here decodes media, and nothing here
must know tensors, tokenizers or the engine. The rules are those of the reference processors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.core.errors import CheckpointError

Grid = tuple[int, int, int]
MAX_ASPECT_RATIO = 200
MIN_FPS, MAX_FPS = 0.01, 1000.0

CHUNK_FRAMES = 100
"""Mel frames (10 ms each) of one encoder chunk; a full chunk gives 13 tokens."""

CHUNK_TOKENS = 13

FRAME_PIXELS = 128 * 32 * 32, 768 * 32 * 32
"""Fewest and most pixels of a frame after resizing: the reference's processor names them in every call, so
whatever limits a checkpoint's files have for pictures or videos, these count for frames."""


def num_audio_tokens(num_frames: int) -> int:
    """Tokens for `num_frames` mel frames: 13 a full second, and three halvings (rounded up) of the rest."""
    chunks, rest = divmod(num_frames, CHUNK_FRAMES)
    for _ in range(3):
        rest = (rest + 1) // 2
    return chunks * CHUNK_TOKENS + rest


def num_image_tokens(grid: Grid, merge_size: int = 2) -> int:
    """Tokens for a (time, height, width) grid of patches: one per merged square of patches."""
    time, height, width = grid
    return time * height * width // merge_size**2


@dataclass(frozen=True, slots=True)
class AudioShape:
    """From samples to mel frames to LLM positions."""

    hop: int
    n_fft: int

    @property
    def min_samples(self) -> int:
        """The transform mirrors half a window at each end, so a clip must be longer than that."""
        return self.n_fft // 2 + 1

    def frames(self, num_samples: int) -> int:
        """Mel frames of a clip. Raises ValueError for a clip too short to be transformed."""
        if num_samples < self.min_samples:
            raise ValueError(f"an audio clip needs at least {self.min_samples} samples, got {num_samples}")
        return num_samples // self.hop

    def tokens(self, num_samples: int) -> int:
        """LLM positions of a clip. Raises ValueError as `frames` does."""
        return num_audio_tokens(self.frames(num_samples))


@dataclass(frozen=True, slots=True)
class ImageShape:
    """From width and height to a grid of patches to LLM positions."""

    patch: int
    temporal_patch: int
    merge: int
    min_pixels: int
    max_pixels: int

    def grid_of(self, width: int, height: int) -> Grid:
        """(t, h, w) in patches, before merging. Raises ValueError for a picture that cannot be used."""
        if width < 1 or height < 1:
            raise ValueError(f"a picture needs a width and a height, got {width}x{height}")
        ratio = max(width, height) / min(width, height)
        if ratio > MAX_ASPECT_RATIO:
            raise ValueError(
                f"a picture may be at most {MAX_ASPECT_RATIO} times as long as wide, got {width}x{height}"
            )
        rows, columns = self._resized(width, height)
        return 1, rows // self.patch, columns // self.patch

    def tokens(self, grid: Grid) -> int:
        """LLM positions of a picture with this grid."""
        return num_image_tokens(grid, self.merge)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """(height, width): multiples of a merged patch, area within the limits, aspect kept as far as can be.

        Rounding follows the reference to the letter, half to even included.
        """
        unit = self.patch * self.merge
        rows, columns = round(height / unit) * unit, round(width / unit) * unit
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(unit, math.floor(height / shrink / unit) * unit)
            columns = max(unit, math.floor(width / shrink / unit) * unit)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows = math.ceil(height * grow / unit) * unit
            columns = math.ceil(width * grow / unit) * unit
        return rows, columns


@dataclass(frozen=True, slots=True)
class VideoShape:
    """From frames to a grid of patches, each `frame.temporal_patch` frames deep, to LLM positions."""

    frame: ImageShape

    def grid_of(self, num_frames: int, width: int, height: int) -> Grid:
        """(t, h, w) in patches, before merging; a last patch that lacks frames repeats the last one.

        Raises ValueError for a video that cannot be used.
        """
        if num_frames < 1:
            raise ValueError("a video needs at least one frame")
        _, rows, columns = self.frame.grid_of(width, height)
        return -(-num_frames // self.frame.temporal_patch), rows, columns

    def seconds_per_grid(self, fps: float) -> float:
        """From one of the grid's t to the next. Raises ValueError for a rate that means nothing."""
        if not MIN_FPS <= fps <= MAX_FPS:
            raise ValueError(f"a video's fps must lie between {MIN_FPS} and {MAX_FPS}, got {fps}")
        return self.frame.temporal_patch / fps

    def tokens(self, grid: Grid) -> int:
        """LLM positions of a video with this grid, its sound not counted."""
        return self.frame.tokens(grid)


def audio_fields(path: Path) -> dict[str, Any]:
    """The feature extractor's fields, wherever the checkpoint keeps them."""
    return _fields(path, "feature_extractor", "n_fft")


def image_fields(path: Path) -> dict[str, Any]:
    """The image processor's fields, wherever the checkpoint keeps them."""
    return _fields(path, "image_processor", "patch_size")


def video_fields(path: Path) -> dict[str, Any]:
    """The video processor's fields; without any of its own it is made of the image processor's."""
    nested = path / "processor_config.json"
    found = [_json(nested).get("video_processor")] if nested.is_file() else []
    own = path / "video_preprocessor_config.json"
    found += [_json(own)] if own.is_file() else []
    for fields in found:
        if isinstance(fields, dict) and "patch_size" in fields:
            return fields
    return image_fields(path)


def audio_shape(path: Path) -> AudioShape:
    """From the checkpoint's files; raises CheckpointError."""
    fields = audio_fields(path)
    hop, n_fft = _whole_numbers(path, fields, ("hop_length", "n_fft"))
    return AudioShape(hop, n_fft)


def image_shape(path: Path) -> ImageShape:
    """From the checkpoint's files; raises CheckpointError."""
    fields = image_fields(path)
    patch, temporal, merge = _whole_numbers(path, fields, ("patch_size", "temporal_patch_size", "merge_size"))
    return ImageShape(patch, temporal, merge, *pixel_limits(fields))


def video_shape(path: Path, pixels: tuple[int, int] = FRAME_PIXELS) -> VideoShape:
    """From the checkpoint's files; raises CheckpointError. `pixels` are the reference's limits of a frame."""
    names = ("patch_size", "temporal_patch_size", "merge_size")
    patch, temporal, merge = _whole_numbers(path, video_fields(path), names)
    return VideoShape(ImageShape(patch, temporal, merge, *pixels))


def pixel_limits(fields: Mapping[str, Any]) -> tuple[int, int]:
    """min_pixels/max_pixels, or the newer size{shortest_edge, longest_edge}; the former win as in the
    reference."""
    size = fields.get("size") or {}
    low = fields.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge")
    high = fields.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge")
    if low is None or high is None:
        raise CheckpointError(
            "the image fields of the checkpoint name no pixel limits; "
            "write min_pixels and max_pixels, or size with shortest_edge and longest_edge"
        )
    return int(low), int(high)


def _fields(path: Path, section: str, witness: str) -> dict[str, Any]:
    """Released checkpoints merge both processors into one flat file; newer tools nest them."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        file = path / name
        if not file.is_file():
            continue
        content = _json(file)
        for fields in (content, content.get(section)):
            if isinstance(fields, dict) and witness in fields:
                return fields
    raise CheckpointError(
        f"{path}: no preprocessor_config.json with the fields of the {section} ({witness}, …)"
    )


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None


def _whole_numbers(path: Path, fields: Mapping[str, Any], names: tuple[str, ...]) -> list[int]:
    missing = [name for name in names if fields.get(name) is None]
    if missing:
        raise CheckpointError(f"{path}: the preprocessor's file has no {', '.join(missing)}")
    return [int(fields[name]) for name in names]
