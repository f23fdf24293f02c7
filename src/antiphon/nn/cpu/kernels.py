"""Where machine code is kept between runs, and how little it matters if that fails."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

KEPT_STATES = 4
"""Of the sources, for which machine code is kept: those used last."""

UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)
"""What comes of a full disk, of a file that is cut off or somebody else's, and of a folder that went away."""


@cache
def kernels_folder() -> str:
    """Of these sources (all of `nn/cpu`, and `nn/noise.py`, whose numbers are in one of the kernels) on this
    kind of CPU: below NUMBA_CACHE_DIR, or the user's cache.
    Empty: nothing is kept, since there is no place that is ours alone.
    """
    wing = Path(__file__).parent
    paths = *wing.rglob("*.py"), wing.parent / "noise.py"
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    chosen = os.environ.get("NUMBA_CACHE_DIR") or os.path.join(user, "antiphon", "kernels")
    folder = folder_of(paths, Path(chosen), " ".join(kind_of_cpu())) if os.path.isabs(chosen) else None
    return "" if folder is None else str(folder)


def folder_of(sources: Iterable[Path], kernels: Path, cpu: str) -> Path | None:
    """For machine code of these files; folders of earlier states go, but for the last ones. None where
    nothing can be written, or others may write too: what lies there is loaded and run."""
    state = hashlib.sha256(cpu.encode())
    for path in sorted(sources):
        state.update(path.read_bytes())
    mine = kernels / f"antiphon-{state.hexdigest()[:16]}"
    try:
        kernels.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine.mkdir(exist_ok=True, mode=0o700)
        if not (is_ours(kernels) and is_ours(mine)):
            return None
        os.utime(mine)
        for old in sorted(kernels.glob("antiphon-*"), key=lambda path: path.stat().st_mtime)[:-KEPT_STATES]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return None
    return mine


def is_ours(folder: Path) -> bool:
    """We may write there, and nobody else."""
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.geteuid() and not others and os.access(folder, os.W_OK | os.X_OK)


def kind_of_cpu() -> tuple[str, str]:
    """For which machine code is made: LLVM's name of the CPU, and its features, "+avx2,-avx512f,...". This
    machine's, or what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say instead."""
    from llvmlite import binding  # pyright: ignore[reportMissingImports]
    from numba.core import config  # pyright: ignore[reportMissingImports]

    told: Any = config
    name = binding.get_host_cpu_name() if told.CPU_NAME is None else told.CPU_NAME
    if told.CPU_FEATURES is not None:
        return name, told.CPU_FEATURES
    return name, binding.get_host_cpu_features().flatten()


class Forgiving:
    """Numba's cache of one function, of which nothing is loaded or kept where that fails."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load_overload(self, *arguments: Any) -> Any:
        try:
            return self._inner.load_overload(*arguments)
        except UNREADABLE:
            return None

    def save_overload(self, *arguments: Any) -> None:
        try:
            self._inner.save_overload(*arguments)
        except UNREADABLE:
            return
