"""Decoding of what clients send, under bounds. Nothing is ever fetched, and formats are an explicit list."""

from __future__ import annotations

import base64
import binascii
import io

import numpy as np
import soxr
from PIL import Image, ImageOps, UnidentifiedImageError

from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ, WIRE_SAMPLE_RATE_HZ
from antiphon.server.g711 import G711Decoder, G711Encoder
from antiphon.wire.input_settings import AudioFormat
from antiphon.wire.limits import Limits, MediaRoom, check

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


class BoundedMedia:
    """`wire.ports.Media` on soxr and Pillow. Stateless, so threads may share it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def audio_part(self, pcm16_24k: bytes) -> AudioPart:
        samples = np.frombuffer(pcm16_24k, "<i2").astype(np.float32) / 32768.0
        resampled = soxr.resample(samples, WIRE_SAMPLE_RATE_HZ, MODEL_SAMPLE_RATE_HZ)
        return AudioPart.of(resampled.astype("<f4").tobytes())

    def input_decoder(self, audio_format: AudioFormat) -> G711Decoder:
        return G711Decoder(audio_format)

    def output_encoder(self, audio_format: AudioFormat) -> G711Encoder:
        return G711Encoder(audio_format)

    def image_part(self, data_url: str, room: MediaRoom) -> ImagePart:
        return self.image_file(self._image_bytes(data_url), room)

    def image_file(self, data: bytes, room: MediaRoom) -> ImagePart:
        rgb = self.picture(data, 1, room)
        return ImagePart.of(rgb.tobytes(), rgb.width, rgb.height)

    def video_part(self, data_urls: list[str], fps: float, room: MediaRoom) -> VideoPart:
        return self.video_frames([self._image_bytes(url) for url in data_urls], fps, room)

    def video_frames(self, frames: list[bytes], fps: float, room: MediaRoom) -> VideoPart:
        pictures: list[bytes] = []
        size: tuple[int, int] | None = None
        for index, data in enumerate(frames):
            picture = self.picture(data, len(frames), room)
            size = size or picture.size
            if picture.size != size:
                got = "x".join(map(str, picture.size))
                raise ProtocolError(f"Frame {index} is {got}; all frames have the size of the first.")
            pictures.append(picture.tobytes())
            self.check_frames(len(pictures))
        assert size is not None, "a video has a frame"
        return VideoPart.of(b"".join(pictures), size, len(pictures), fps)

    def check_frames(self, num_frames: int) -> None:
        """Raises LimitExceeded for a video that is too long."""
        check("max_video_frames", self._limits.max_video_frames, num_frames)

    def picture(self, data: bytes, num_alike: int, room: MediaRoom) -> Image.Image:
        """RGB, upright. Raises LimitExceeded unless so many of its size have room."""
        image = self.opened(data)
        room.check(num_alike * num_rgb_bytes(image.size))
        try:
            return ImageOps.exif_transpose(image).convert("RGB")
        except Exception as error:  # Pillow's decoders raise many kinds; all of them mean a broken file
            raise broken(error) from None

    def _image_bytes(self, data_url: str) -> bytes:
        head, comma, body = data_url.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ProtocolError("An image is a base64 data: URL, 'data:image/png;base64,…'.")
        size_bytes = len(body) * 3 // 4
        if size_bytes > self._limits.max_image_bytes:
            raise LimitExceeded("max_image_bytes", self._limits.max_image_bytes, size_bytes)
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError("The data: URL does not hold valid base64.") from None

    def opened(self, data: bytes) -> Image.Image:
        """The image with only its header read, so that its size is checked before any pixel is decoded."""
        allowed = self._limits.max_image_pixels
        try:
            image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise LimitExceeded("max_image_pixels", allowed, float("inf")) from None
        except UnidentifiedImageError:
            raise ProtocolError(
                f"The image is not one of {', '.join(IMAGE_FORMATS)}, or it is broken."
            ) from None
        except Exception as error:  # headers can be broken in as many ways as bodies
            raise broken(error) from None
        if image.width * image.height > allowed:
            raise LimitExceeded("max_image_pixels", allowed, image.width * image.height)
        return image


def num_rgb_bytes(size: tuple[int, int]) -> int:
    """Of a picture of this width and height."""
    return size[0] * size[1] * 3


def broken(error: Exception) -> ProtocolError:
    return ProtocolError(f"The image cannot be decoded: {type(error).__name__}.")
