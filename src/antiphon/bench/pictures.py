"""Pictures that people show: made up, of the size the script names."""

from __future__ import annotations

import base64
import functools
import io


@functools.lru_cache(maxsize=64)
def data_url(width: int, height: int) -> str:
    """A colour gradient as a PNG data URL."""
    from PIL import Image

    ramps = Image.linear_gradient("L"), Image.linear_gradient("L").rotate(90), Image.radial_gradient("L")
    picture = Image.merge("RGB", ramps).resize((width, height))
    png = io.BytesIO()
    picture.save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
