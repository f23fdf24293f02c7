"""A tile of a product as vector instructions: so many rows by so many vectors of 16 columns in registers.

Written for AVX-512, whose registers hold the sums of 16 vectors and more. What a compiler makes of a plain
loop reaches a fraction of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import binding, ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]

from antiphon.nn.openmp import intrinsic

LANES = 16
"""fp32 numbers in a vector."""

LINE_BYTES = 4 * LANES

UNROLLED = 4
"""Terms of the sums in one round of the loop; the depth of a product is a multiple of it."""

SECOND_CACHE = 2
"""Where LLVM's prefetch is to put a line: 3 is the first cache, 2 the second."""

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)


@cache
def has_wide_vectors() -> bool:
    """Whether this CPU has AVX-512."""
    return bool(binding.get_host_cpu_features().get("avx512f", False))


@intrinsic
def prefetch_line(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address, into the second cache; harmless where nothing lies."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        ask = function(builder, "llvm.prefetch.p0", ir.VoidType(), byte, INT32, INT32, INT32)
        builder.call(ask, [builder.inttoptr(arguments[0], byte), INT32(0), INT32(SECOND_CACHE), INT32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), code


def tile(rows: int, vectors: int, ahead_bytes: int = 0) -> Callable[..., None]:
    """A function of compiled code (x, weight, depth, out, width), addresses and numbers:

    out fp32 [rows, vectors * 16], its rows `width` apart, becomes x [rows, depth] times weight [vectors,
    depth, 16], each sum one chain of fused multiply-adds in the order of its terms. With `ahead_bytes` the
    weight is asked for so far ahead, into the second cache: the rows need the first.
    """

    def product(typingctx: Any, x: Any, weight: Any, depth: Any, out: Any, width: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            Emitter(builder, rows, vectors, ahead_bytes).emit(*arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), code

    return intrinsic(product)


class Emitter:
    """Writes a tile's instructions."""

    def __init__(self, builder: Any, rows: int, vectors: int, ahead_bytes: int) -> None:
        self._builder, self._rows, self._vectors, self._ahead = builder, rows, vectors, ahead_bytes
        self._fma = function(builder, "llvm.fma.v16f32", VECTOR, VECTOR, VECTOR, VECTOR)
        byte = ir.IntType(8).as_pointer()
        self._prefetch = function(builder, "llvm.prefetch.p0", ir.VoidType(), byte, INT32, INT32, INT32)
        self._sums = [[cgutils.alloca_once(builder, VECTOR) for _ in range(vectors)] for _ in range(rows)]

    def emit(self, x: Any, weight: Any, depth: Any, out: Any, width: Any) -> None:
        builder = self._builder
        for sums in self._sums:
            for total in sums:
                builder.store(ir.Constant(VECTOR, [0.0] * LANES), total)
        rows = [builder.add(x, builder.mul(depth, INT64(4 * row))) for row in range(self._rows)]
        panels = [builder.add(weight, builder.mul(depth, INT64(64 * v))) for v in range(self._vectors)]
        with cgutils.for_range(builder, builder.udiv(depth, INT64(UNROLLED))) as loop:
            first = builder.mul(loop.index, INT64(UNROLLED))
            for step in range(UNROLLED):
                self._term(rows, panels, builder.add(first, INT64(step)))
        for row, sums in enumerate(self._sums):
            start = builder.add(out, builder.mul(width, INT64(4 * row)))
            for v, total in enumerate(sums):
                place = self._pointer(builder.add(start, INT64(LINE_BYTES * v)), VECTOR)
                builder.store(builder.load(total), place, align=4)

    def _term(self, rows: list[Any], panels: list[Any], term: Any) -> None:
        """Add one term to every sum."""
        builder, across = self._builder, self._builder.mul(term, INT64(LINE_BYTES))
        lines = [builder.add(panel, across) for panel in panels]
        weights = [builder.load(self._pointer(line, VECTOR), align=LINE_BYTES) for line in lines]
        if self._ahead:
            for line in lines:
                byte = self._pointer(builder.add(line, INT64(self._ahead)), ir.IntType(8))
                builder.call(self._prefetch, [byte, INT32(0), INT32(SECOND_CACHE), INT32(1)])
        for row, sums in zip(rows, self._sums, strict=True):
            place = self._pointer(builder.add(row, builder.mul(term, INT64(4))), FLOAT)
            number = spread(builder, builder.load(place, align=4))
            for weight, total in zip(weights, sums, strict=True):
                builder.store(builder.call(self._fma, [number, weight, builder.load(total)]), total)

    def _pointer(self, address: Any, kind: Any) -> Any:
        return self._builder.inttoptr(address, kind.as_pointer())


def function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """An intrinsic of LLVM."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def spread(builder: Any, number: Any) -> Any:
    """A number in every lane."""
    empty = ir.Constant(VECTOR, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(INT32, LANES), [INT32(0)] * LANES)
    return builder.shuffle_vector(builder.insert_element(empty, number, INT32(0)), empty, lanes)
