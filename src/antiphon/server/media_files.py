"""Decoding of media files under bounds: sound by libsndfile, pictures and animations by Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import soundfile
import soxr
from PIL import Image, ImageSequence

from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.core.counted import counted
from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.units import MAX_AMPLITUDE, MODEL_SAMPLE_RATE_HZ
from antiphon.server.media import BoundedMedia, broken, num_rgb_bytes
from antiphon.wire.limits import Limits, MediaRoom, check

AUDIO_FORMATS = ("WAV", "WAVEX", "MP3", "FLAC", "OGG")
RATES_HZ = (1_000, 400_000)
LEAST_AUDIO_S = 0.1
"""As much as a turn that is committed has at least."""
MAX_CHANNELS = 16
BLOCK_FRAMES = {"FLAC": 256}
VIDEO_FPS = 2.0
"""At which animations are shown to the model: the rate that the reference's own video reader samples at."""
STILL_S = 0.1
"""How long a frame stands that does not say."""
UNSAMPLED = 4
"""How many times as many bytes as one request may hold are decoded in search of the frames that are shown."""


class MediaFiles:
    """`wire.ports.MediaFiles`. Stateless, so threads may share it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pictures = BoundedMedia(limits)

    def audio_file(self, data: bytes) -> AudioPart:
        if not data:
            raise ProtocolError("The audio is an empty file: it has no bytes.")
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                samples = self._read(file)
                rate = file.samplerate
        except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError):
            raise ProtocolError(f"The audio is not one of {_names()}, or it is broken.") from None
        if len(samples) < LEAST_AUDIO_S * rate:
            raise ProtocolError(
                f"The audio is {len(samples) / rate:.3f} s long; it has to be at least {LEAST_AUDIO_S:g} s.",
                code="audio_too_short",
            )
        resampled = soxr.resample(samples, rate, MODEL_SAMPLE_RATE_HZ)
        bounded = np.clip(np.nan_to_num(resampled), -MAX_AMPLITUDE, MAX_AMPLITUDE)
        return AudioPart.of(bounded.astype("<f4").tobytes())

    def image_file(self, data: bytes, room: MediaRoom) -> ImagePart:
        check("max_image_bytes", self._limits.max_image_bytes, len(data))
        return self._pictures.image_file(data, room)

    def video_file(self, data: bytes, room: MediaRoom) -> VideoPart:
        try:
            animation = self._pictures.opened(data)
        except ProtocolError:
            raise ProtocolError(
                "The video is not an animated GIF, PNG or WebP, or it is broken. Other containers are not"
                ' decoded here: send their frames, {"type": "video", "video": [image URLs], "fps": …}.'
            ) from None
        try:
            frames = list(self._sampled(animation, room))
        except LimitExceeded:
            raise
        except Exception as error:  # Pillow's decoders raise many kinds; all of them mean a broken file
            raise broken(error) from None
        return VideoPart.of(b"".join(frames), animation.size, len(frames), VIDEO_FPS)

    def video_frames(self, frames: list[bytes], fps: float, room: MediaRoom) -> VideoPart:
        return self._pictures.video_frames(frames, fps, room)

    def _read(self, file: soundfile.SoundFile) -> np.ndarray:
        """Mono float32. No more is decoded than the limit allows, whatever the header says."""
        if file.format not in AUDIO_FORMATS:
            raise ProtocolError(f"The audio is {file.format}; it has to be one of {_names()}.")
        low, high = RATES_HZ
        if not low <= file.samplerate <= high or file.channels > MAX_CHANNELS:
            channels = counted(file.channels, "channel")
            raise ProtocolError(
                f"The audio has {channels} at {file.samplerate} Hz; allowed are up to {MAX_CHANNELS} at"
                f" {low} to {high}."
            )
        blocks: list[np.ndarray] = []
        num_frames, block = 0, np.empty((BLOCK_FRAMES.get(file.format, 65_536), file.channels), np.float32)
        # to the end, block by block: what a header says of the length of a stream is no more than a guess
        while got := _next_block(file, block, num_frames > 0):
            num_frames += got
            if (audio_s := num_frames / file.samplerate) > (most_s := self._limits.max_audio_s):
                said = f"the recording is longer than {most_s:g} s"
                raise LimitExceeded("max_audio_s", most_s, audio_s, said=said)
            check("max_media_bytes", self._limits.max_media_bytes, num_frames * 4)
            check("max_media_bytes", self._limits.max_media_bytes, num_frames * file.channels * 4 / UNSAMPLED)
            blocks.append(block[:got].mean(axis=1))
        return np.concatenate([np.zeros(0, np.float32), *blocks])

    def _sampled(self, animation: Image.Image, room: MediaRoom) -> Iterator[bytes]:
        """The frame that stands at each tick of VIDEO_FPS, as RGB."""
        frame_bytes = num_rgb_bytes(animation.size)
        end_s, tick, budget = 0.0, 0, UNSAMPLED * self._limits.max_media_bytes
        for frame in ImageSequence.Iterator(animation):
            budget -= frame_bytes
            if budget < 0:
                raise LimitExceeded("max_media_bytes", self._limits.max_media_bytes, float("inf"))
            frame.load()  # some formats know how long a frame stands only then
            end_s += float(frame.info.get("duration") or 0) / 1000 or STILL_S
            if tick / VIDEO_FPS < end_s:
                pixels = frame.convert("RGB").tobytes()
            while tick / VIDEO_FPS < end_s:
                tick += 1
                self._pictures.check_frames(tick)
                room.check(tick * frame_bytes)
                yield pixels


def _next_block(file: soundfile.SoundFile, block: np.ndarray, is_begun: bool) -> int:
    """Frames read into `block`; 0 at the end. libsndfile meets the end of a FLAC of unknown length as an
    error, and what it would have read with it is lost: hence the small blocks."""
    try:
        return file.buffer_read_into(block, "float32")
    except soundfile.LibsndfileError:
        if not is_begun:
            raise
        return 0


def _names() -> str:
    return "WAV, MP3, FLAC and OGG (Vorbis, Opus)"
