"""Pictures and clips that people show: made up, of the size the script names."""

from __future__ import annotations

import base64
import functools
import io
from typing import TYPE_CHECKING

from antiphon.core.rng import stream
from antiphon.workload.script import Clip

if TYPE_CHECKING:
    from PIL import Image


@functools.lru_cache(maxsize=64)
def data_url(width: int, height: int) -> str:
    """A colour gradient as a PNG data URL."""
    return _url(_gradient(width, height), "PNG")


@functools.lru_cache(maxsize=64)
def frame_urls(clip: Clip) -> tuple[str, ...]:
    """Its frames as JPEG data URLs of a few kB each: a colour gradient that drifts, from where and how fast
    the clip's seed says."""
    from PIL import ImageChops

    rng, whole = stream(clip.seed, "clip"), _gradient(clip.width, clip.height)
    start, drift = (rng.integers(1, (clip.width, clip.height)).tolist() for _ in range(2))
    return tuple(
        _url(ImageChops.offset(whole, *(a + frame * b for a, b in zip(start, drift, strict=True))), "JPEG")
        for frame in range(clip.num_frames)
    )


def _gradient(width: int, height: int) -> Image.Image:
    from PIL import Image

    ramps = Image.linear_gradient("L"), Image.linear_gradient("L").rotate(90), Image.radial_gradient("L")
    return Image.merge("RGB", ramps).resize((width, height))


def _url(picture: Image.Image, kind: str) -> str:
    encoded = io.BytesIO()
    picture.save(encoded, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(encoded.getvalue()).decode()
