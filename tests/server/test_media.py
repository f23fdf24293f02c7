"""Decoding under bounds: good media come out right, bad ones as typed errors, bombs never unfold."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.server.media import BoundedMedia
from antiphon.server.media_files import MediaFiles
from antiphon.wire.limits import Limits, MediaRoom
from server.asking import data_url

ROOM = MediaRoom(Limits(), "")
MEDIA = BoundedMedia(Limits(max_image_pixels=10_000, max_image_bytes=20_000))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def test_audio_is_resampled_to_16_khz() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    part = MEDIA.audio_part((tone * 16_000).astype("<i2").tobytes())
    samples = np.frombuffer(part.samples, "<f4")
    assert len(samples) == 16_000
    wanted = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000) * 16_000 / 32_768
    assert np.abs(samples - wanted)[200:-200].max() < 2e-3


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_images_become_rgb(kind: str) -> None:
    part = MEDIA.image_part(data_url(encoded(Image.new("RGB", (6, 4), (200, 10, 30)), kind)), ROOM)
    assert (part.width, part.height) == (6, 4)
    assert np.abs(np.frombuffer(part.rgb, "u1").reshape(4, 6, 3).astype(int) - (200, 10, 30)).max() < 12


def test_orientation_is_applied() -> None:
    image = Image.new("RGB", (6, 4))
    exif = image.getexif()
    exif[0x0112] = 6
    part = MEDIA.image_part(data_url(encoded(image, "JPEG", exif=exif)), ROOM)
    assert (part.width, part.height) == (4, 6)


@pytest.mark.parametrize("size", [(200, 200), (30_000, 30_000)])
def test_too_many_pixels_are_refused_from_the_header(size: tuple[int, int]) -> None:
    with pytest.raises(LimitExceeded, match="max_image_pixels"):
        MEDIA.image_part(data_url(header_only(size)), ROOM)


def header_only(size: tuple[int, int]) -> bytes:
    """A PNG without pixels."""
    header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def test_pictures_without_room_are_refused_from_the_header() -> None:
    limits = Limits(max_media_bytes=100_000)
    room, url = MediaRoom(limits, "Send less", used=50_000), data_url(header_only((100, 100)))
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        MEDIA.image_part(url, room)
    for refused in (
        lambda: MEDIA.image_part(url, MediaRoom(limits, "Send less", used=70_001)),
        lambda: MEDIA.image_part(url, MediaRoom(limits, "Send less", copies=4)),
        lambda: MEDIA.video_part([url] * 2, 1.0, room),
        lambda: MediaFiles(limits).video_frames([header_only((100, 100))] * 2, 1.0, room),
    ):
        with pytest.raises(LimitExceeded, match=r"max_media_bytes: .* limit of 100000. Send less"):
            refused()
    assert room.used == 50_000


def test_an_animation_without_room_is_refused_as_it_grows() -> None:
    frames = [Image.new("RGB", (10, 10), (red, 0, 0)) for red in range(0, 200, 40)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=500)
    limits = Limits(max_media_bytes=1600)
    assert MediaFiles(limits).video_file(gif, MediaRoom(limits, "")).num_frames == 5
    with pytest.raises(LimitExceeded, match="max_media_bytes: 1800 is"):
        MediaFiles(limits).video_file(gif, MediaRoom(limits, "", used=300))


def test_too_many_bytes() -> None:
    with pytest.raises(LimitExceeded, match="max_image_bytes"):
        MEDIA.image_part(data_url(bytes(30_000)), ROOM)


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png,plain",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,é",
        "data:",
        data_url(b"not an image"),
        data_url(encoded(Image.effect_noise((50, 50), 90))[:900]),
        data_url(encoded(Image.new("RGB", (8, 8)), "TIFF")),
    ],
)
def test_broken_images_are_the_client_s_error(url: str) -> None:
    with pytest.raises(ProtocolError):
        MEDIA.image_part(url, ROOM)


def test_frames_become_a_video() -> None:
    frames = [data_url(encoded(Image.new("RGB", (6, 4), (red, 10, 30)), "PNG")) for red in (0, 250)]
    part = MEDIA.video_part(frames, 0.5, ROOM)
    assert (part.width, part.height, part.num_frames, part.fps) == (6, 4, 2, 0.5)
    assert np.frombuffer(part.frames, "u1").reshape(2, 4, 6, 3)[:, 0, 0, 0].tolist() == [0, 250]
    other = data_url(encoded(Image.new("RGB", (4, 6))))
    with pytest.raises(ProtocolError, match=r"Frame 1 is 4x6; all frames have the size of the first"):
        MEDIA.video_part([frames[0], other], 0.5, ROOM)
    few = BoundedMedia(Limits(max_video_frames=1))
    with pytest.raises(LimitExceeded, match="max_video_frames"):
        few.video_part(frames, 0.5, ROOM)
