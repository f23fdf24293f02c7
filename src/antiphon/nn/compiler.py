"""Compiled loops for a CPU, where numba is installed; whoever uses one has a way with torch operators too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

ALLOWED = {"reassoc", "contract", "nsz", "arcp", "afn"}
"""What the compiler may assume of floats: any order of summation; NaN and infinity stay what they are."""

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}


@cache
def has_compiler() -> bool:
    return find_spec("numba") is not None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code, made at the first call and kept on disk where a place for it can be found."""
    return jit(function, ALLOWED)


def compiled_in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same where the order of operations is what makes a result exact; products and sums may be fused."""
    return jit(function, {"contract"})


def jit(function: Callable[..., Any], allowed: set[str]) -> Callable[..., Any]:
    import numba  # pyright: ignore[reportMissingImports]

    try:
        return numba.njit(function, cache=True, fastmath=allowed, **OPTIONS)
    except RuntimeError:
        return numba.njit(function, fastmath=allowed, **OPTIONS)
