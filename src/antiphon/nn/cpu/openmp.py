"""Compiled loops on the threads that torch computes with.

Torch's OpenMP threads go on spinning for a while after each operator, and threads of our own would have to
take their cores from them. So a loop is handed to the same OpenMP runtime by the thread that calls torch, and
finds those threads awake. Threads take a loop's items as they get to them; who takes which changes no result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numba  # pyright: ignore[reportMissingImports]
import numpy as np
from llvmlite import ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]
from numba.extending import intrinsic as numba_intrinsic  # pyright: ignore[reportMissingImports]
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]

from antiphon.nn.cpu.compiler import ALLOWED, compiled, kept

Address = int
"""Where a tensor's data lies; 0 where there is none."""


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiled code calls without its first argument, the compiler's context."""
    return numba_intrinsic(function)


def job_of(addresses: str, sizes: str, numbers: str = "") -> type[ctypes.Structure]:
    """The structure of a job: `next`, the item that is taken next, then the fields named: addresses and sizes
    int64, numbers fp32.
    """
    whole = [(name, ctypes.c_int64) for name in ("next", *addresses.split(), *sizes.split())]
    fields = whole + [(name, ctypes.c_float) for name in numbers.split()]
    return type("Job", (ctypes.Structure,), {"_fields_": fields})


class Loop:
    """`body(pointer to a job)` takes items with `take` until there are none. Compiled when made."""

    def __init__(self, job: type[ctypes.Structure], body: Callable[..., None]) -> None:
        signature = types.void(types.CPointer(numba.from_dtype(np.dtype(job))))
        self._code = kept(numba.cfunc, signature, fastmath=ALLOWED, error_model="numpy")(body)
        self.address: int = self._code.address
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)
        self._together = parallel_region()

    def run(self, job: ctypes.Structure, threads: int) -> None:
        """Returns when all items are done."""
        job.next = 0
        if threads == 1 or self._together is None:
            self._alone(ctypes.addressof(job))
        else:
            self._together(self.address, ctypes.addressof(job), threads, 0)


@cache
def parallel_region() -> Callable[..., None] | None:
    """The runtime's own entry for a parallel region: (function, argument, threads, flags); every thread calls
    the function. GNU's has it, and Intel's under the same name; None where torch has loaded neither.
    """
    try:
        region = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region


@intrinsic
def take(typingctx: Any, job: Any, items: Any) -> Any:
    """The first of the next `items` items of a pointed-to job; they are the caller's own."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.bitcast(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, arguments[1], "monotonic")

    return types.int64(job, types.int64), code


@intrinsic
def pointer_to(typingctx: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), code


@intrinsic
def prefetch(typingctx: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of a contiguous array's element; harmless past its end."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        line = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [line, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), code


@compiled
def floats(address: Address, rows: int, width: int) -> np.ndarray:
    """fp32 [rows, width] at an address."""
    return carray(pointer_to(address), (rows, width), np.float32)


@compiled
def copy(row: np.ndarray, to: np.ndarray) -> None:
    """As many numbers as `to` has, and `row` at least. The compiler takes longer for an assignment to a
    slice, where it makes a check of shapes and words for what does not fit, than for most kernels."""
    for i in range(len(to)):
        to[i] = row[i]


@compiled
def words(address: Address, rows: int, width: int) -> np.ndarray:
    """uint32 [rows, width] at an address."""
    return carray(pointer_to(address), (rows, width), np.uint32)


@compiled
def integers(address: Address, rows: int, width: int) -> np.ndarray:
    """int64 [rows, width] at an address."""
    return carray(pointer_to(address), (rows, width), np.int64)
