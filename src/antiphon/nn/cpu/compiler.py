"""Compiled loops for a CPU, where numba is installed; without it, torch operators do the same."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

from antiphon.nn.cpu.kernels import UNREADABLE, Forgiving, kernels_folder, kind_of_cpu

ALLOWED = {"reassoc", "contract", "nsz", "arcp", "afn"}
"""What the compiler may assume of floats: any order of summation; NaN and infinity stay what they are."""

OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}

ARCH_PRCTL, ASK_FOR_REGISTERS, TILE_REGISTERS = 158, 0x1023, 18
"""Linux's call, and what it is asked: ARCH_REQ_XCOMP_PERM for XFEATURE_XTILEDATA."""

_one_at_a_time = threading.RLock()
"""Numba is told by a setting of the whole process where it keeps code."""


@cache
def has_compiler() -> bool:
    return find_spec("numba") is not None


@cache
def has_feature(name: str) -> bool:
    """Whether kernels may use what LLVM calls so: this CPU has it, and numba was not told of fewer. With a
    compiler only."""
    return f"+{name}" in kind_of_cpu()[1].split(",")


def lanes_of_registers() -> int:
    """fp32 numbers in a vector register: 16 with AVX-512, 8 with AVX2 and FMA, 0 on CPUs without either, for
    which there are no tiles."""
    if has_feature("avx512f"):
        return 16
    return 8 if has_feature("avx2") and has_feature("fma") else 0


def has_pairs() -> bool:
    """Whether compiled loops may multiply in bf16: AVX512-BF16."""
    return has_compiler() and has_feature("avx512f") and has_feature("avx512bf16")


def has_amx_instructions() -> bool:
    """Whether this CPU multiplies tiles in bf16, AMX. With a compiler only."""
    return has_feature("amx-tile") and has_feature("amx-bf16")


@cache
def has_amx() -> bool:
    """Whether compiled loops may use AMX: the CPU has it beside AVX512-BF16, and the kernel allows this
    process its registers, which it is asked for."""
    return has_pairs() and has_amx_instructions() and allows_tiles()


def allows_tiles() -> bool:
    """Ask Linux for the tile registers, for all threads of this process."""
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return False
    try:
        return ctypes.CDLL(None).syscall(ARCH_PRCTL, ASK_FOR_REGISTERS, TILE_REGISTERS) == 0
    except (AttributeError, OSError):
        return False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code, made at the first call and kept on disk where a place for it can be found."""
    return jit(function, ALLOWED)


def compiled_in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code that keeps the order of operations, which makes a result exact. Products and sums may be
    fused."""
    return jit(function, {"contract"})


@contextmanager
def told_of_kernels(tell: Callable[[int], None]) -> Iterator[None]:
    """Within, `tell` hears of every kernel that is compiled because it was not kept: how many it makes. Those
    that one kernel calls count too."""
    if not has_compiler():
        yield
        return
    from numba.core import event  # pyright: ignore[reportMissingImports]

    class Ears(event.Listener):
        count = 0

        def on_start(self, event: object) -> None:
            self.count += 1
            tell(self.count)

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Ears()):
        yield


def jit(function: Callable[..., Any], allowed: set[str]) -> Callable[..., Any]:
    import numba  # pyright: ignore[reportMissingImports]

    made: Any = kept(numba.njit, fastmath=allowed, **OPTIONS)(function)
    made._cache = Forgiving(made._cache)
    return made


def kept(decorator: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    """One of numba's decorators, whose machine code is kept on disk where a place for it can be found.

    Numba takes the code it kept for valid as long as the file of the function is the same, whatever it calls
    in other files. So every state of our sources has a folder of its own.
    """
    from numba.core import config  # pyright: ignore[reportMissingImports]

    settings: Any = config

    def decorate(function: Callable[..., Any]) -> Any:
        if folder := kernels_folder():
            with _one_at_a_time:
                before, settings.CACHE_DIR = settings.CACHE_DIR, folder
                try:
                    return decorator(*arguments, cache=True, **options)(function)
                except (RuntimeError, *UNREADABLE):
                    pass
                finally:
                    settings.CACHE_DIR = before
        return decorator(*arguments, **options)(function)

    return decorate
