"""How media stand in a prompt: their measure, and the placeholder ids that the reference writes for them.

Nothing here looks inside a medium, decodes it or runs a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from antiphon.core.conversation import AudioPart, ImagePart, Media, VideoPart
from antiphon.core.errors import ProtocolError
from antiphon.core.facts import Span
from antiphon.models.qwen_media.positions import MediumSpan
from antiphon.models.qwen_media.preprocess_shapes import VideoShape, audio_shape, image_shape, video_shape


class MediaIds(Protocol):
    """Ids of a text vocabulary: what the template writes for media, and the marks around sound in a video."""

    @property
    def audio(self) -> int: ...
    @property
    def image(self) -> int: ...
    @property
    def video(self) -> int: ...
    @property
    def audio_start(self) -> int: ...
    @property
    def audio_end(self) -> int: ...

    @property
    def media(self) -> tuple[int, int, int]: ...


class MediaSpans:
    """Measures and placeholders by the shapes of one checkpoint; raises CheckpointError."""

    def __init__(
        self,
        path: Path,
        tokens: MediaIds,
        positions_per_second: int,
        video: VideoShape | None = None,
        chunk_ticks: int = 0,
    ) -> None:
        """`chunk_ticks`: see `positions.MediumSpan`."""
        self.ids = tokens.media
        self._tokens = tokens
        self._positions_per_second = positions_per_second
        self._chunk_ticks = chunk_ticks
        self._audio, self._image = audio_shape(path), image_shape(path)
        self._video = video or video_shape(path)

    def measure(self, part: Media) -> Span:
        """The part's span, not placed yet. Raises ProtocolError for a medium that cannot be used."""
        try:
            if isinstance(part, AudioPart):
                return Span(part.key, "audio", 0, self._num_sounds(part.samples))
            return self._measure_image(part) if isinstance(part, ImagePart) else self._measure_video(part)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def placeholder(self, span: Span) -> int:
        """The one id that the template writes for such a medium."""
        ids = {"audio": self._tokens.audio, "image": self._tokens.image, "video": self._tokens.video}
        return ids[span.kind]

    def expanded(self, span: Span) -> tuple[list[int], int]:
        """The ids in the place of that one, and which of them is the span's first.

        A video with sound: marks of audio (within those of vision), and between them both by time.
        """
        if span.grid is None or not span.audio_length:
            return [self.placeholder(span)] * span.length, 0
        merge_size = self._video.frame.merge
        sound, ticks = span.audio_length, self._chunk_ticks
        box = MediumSpan(0, span.grid, span.seconds_per_grid, merge_size, sound, ticks)
        seen = box.order(self._positions_per_second) < box.visual_tokens
        ids = np.where(seen, self._tokens.video, self._tokens.audio).tolist()
        return [self._tokens.audio_start, *ids, self._tokens.audio_end], 1

    def tokens_of(self, num_samples: int) -> int:
        """Positions of a recording. Raises ValueError for one that cannot be used."""
        return self._audio.tokens(num_samples)

    def _measure_image(self, part: ImagePart) -> Span:
        grid = self._image.grid_of(part.width, part.height)
        expected = part.width * part.height * 3
        if len(part.rgb) != expected:
            size = f"{part.width}x{part.height}"
            raise ValueError(f"the image is broken: {size} pixels are {expected} bytes, got {len(part.rgb)}")
        return Span(part.key, "image", 0, self._image.tokens(grid), grid)

    def _measure_video(self, part: VideoPart) -> Span:
        grid = self._video.grid_of(part.num_frames, part.width, part.height)
        expected = part.num_frames * part.width * part.height * 3
        if len(part.frames) != expected:
            size = f"{part.num_frames} frames of {part.width}x{part.height}"
            raise ValueError(f"the video is broken: {size} are {expected} bytes, got {len(part.frames)}")
        seconds = self._video.seconds_per_grid(part.fps)
        sound = 0 if part.audio is None else self._num_sounds(part.audio)
        return Span(part.key, "video", 0, self._video.tokens(grid) + sound, grid, seconds, sound)

    def _num_sounds(self, samples: bytes) -> int:
        if len(samples) % 4:
            raise ValueError(f"an audio part of {len(samples)} bytes does not hold whole float32 samples")
        return self.tokens_of(len(samples) // 4)
