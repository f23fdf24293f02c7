"""Compiled loops for a CPU, where numba is installed; whoever uses one has a way with torch operators too."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ALLOWED = {"reassoc", "contract", "nsz", "arcp", "afn"}
"""What the compiler may assume of floats: any order of summation; NaN and infinity stay what they are."""

KEPT_STATES = 4
"""Of the sources, for which machine code is kept: those used last."""

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

    return kept(numba.njit, fastmath=allowed, **OPTIONS)(function)


def kept(decorator: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    """One of numba's decorators, whose machine code is kept on disk where a place for it can be found.

    Numba takes the code it kept for valid as long as the file of the function is the same, whatever it calls
    in other files. So every state of our sources has a folder of its own.
    """
    from numba.core import config  # pyright: ignore[reportMissingImports]

    settings: Any = config

    def decorate(function: Callable[..., Any]) -> Any:
        before = settings.CACHE_DIR
        settings.CACHE_DIR = before or kernels_folder()
        try:
            return decorator(*arguments, cache=True, **options)(function)
        except RuntimeError:
            return decorator(*arguments, **options)(function)
        finally:
            settings.CACHE_DIR = before

    return decorate


@cache
def kernels_folder() -> str:
    """Of these sources (all of `nn`, and what is called `compiled_` in `models`): below the user's cache."""
    sources = Path(__file__).parents[1]
    paths = [*(sources / "nn").rglob("*.py"), *(sources / "models").rglob("compiled_*.py")]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return str(folder_of(paths, Path(user) / "antiphon" / "kernels")) if os.path.isabs(user) else ""


def folder_of(sources: Iterable[Path], kernels: Path) -> Path:
    """For machine code of these files; folders of earlier states go, but for the last ones."""
    state = hashlib.sha256()
    for path in sorted(sources):
        state.update(path.read_bytes())
    mine = kernels / state.hexdigest()[:16]
    with contextlib.suppress(OSError):
        mine.mkdir(parents=True, exist_ok=True)
        os.utime(mine)
        for old in sorted(kernels.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_STATES]:
            shutil.rmtree(old, ignore_errors=True)
    return mine
