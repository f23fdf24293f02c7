"""Compiled loops for a CPU, where numba is installed; whoever uses one has a way with torch operators too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

ALLOWED = {"reassoc", "contract", "nsz", "arcp", "afn"}
"""What the compiler may assume of floats: any order of summation; NaN and infinity stay what they are."""


@cache
def has_compiler() -> bool:
    return find_spec("numba") is not None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code, made at the first call and kept on disk where a place for it can be found."""
    import numba  # pyright: ignore[reportMissingImports]

    options: dict[str, Any] = {"fastmath": ALLOWED, "error_model": "numpy", "nogil": True}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:
        return numba.njit(function, **options)
