"""Attention's two products over some neighbouring keys as vector instructions, for one query head or two.

Sums run in an order of their own that depends on nothing but the head's size and the CPU's registers: lane by
lane over the vectors of a head, then over the lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]

from antiphon.nn.cpu.compiler import lanes_of_registers
from antiphon.nn.cpu.openmp import intrinsic
from antiphon.nn.cpu.tiles import FLOAT, INT32, INT64, function, spread

REGISTER = lanes_of_registers() or 8
"""fp32 numbers in a vector: here they are the CPU's own, since a key's sum is one."""

VECTOR, VECTOR_BYTES = ir.VectorType(FLOAT, REGISTER), 4 * REGISTER

FMA = f"llvm.fma.v{REGISTER}f32"

HEAD_VECTORS = 4
"""Vectors of a head that `mixed` holds at a time: a head's size is a multiple of so many."""


def dots(heads: int) -> Callable[..., None]:
    """A function of compiled code (q, keys, stride, dim, scores, width), addresses and numbers, strides and
    width in bytes: scores fp32 [heads, n], its rows `width` apart, become the products of q [heads, dim] with
    n keys [dim], `stride` apart. heads is 1 or 2, n REGISTER / heads.
    """

    def product(typingctx: Any, q: Any, keys: Any, stride: Any, dim: Any, scores: Any, width: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit_dots(builder, heads, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), code

    return intrinsic(product)


def emit_dots(
    builder: Any, heads: int, q: Any, keys: Any, stride: Any, dim: Any, scores: Any, width: Any
) -> None:
    """The instructions of `dots`."""
    fma, count = function(builder, FMA, VECTOR, VECTOR, VECTOR, VECTOR), REGISTER // heads
    sums = zeros(builder, REGISTER)
    queries = [builder.add(q, builder.mul(dim, INT64(4 * head))) for head in range(heads)]
    places = [builder.add(keys, builder.mul(stride, INT64(key))) for key in range(count)]
    with cgutils.for_range(builder, builder.udiv(dim, INT64(REGISTER))) as loop:
        across = builder.mul(loop.index, INT64(VECTOR_BYTES))
        parts = [load(builder, builder.add(query, across)) for query in queries]
        for key, place in enumerate(places):
            numbers = load(builder, builder.add(place, across))
            for head, part in enumerate(parts):
                total = sums[head * count + key]
                builder.store(builder.call(fma, [part, numbers, builder.load(total)]), total)
    total = added_up(builder, [builder.load(total) for total in sums])
    for head in range(heads):
        part = lanes(builder, total, total, range(head * count, (head + 1) * count))
        store(builder, part, builder.add(scores, builder.mul(width, INT64(head))))


def mixed(heads: int) -> Callable[..., None]:
    """A function of compiled code (shares, width, values, stride, count, out, apart), addresses and numbers,
    the strides in bytes: out fp32 [heads, d], its rows `apart`, grows by the sum of `count` values [d],
    `stride` apart, each times its share [heads, count], rows `width` apart. d is HEAD_VECTORS * REGISTER.
    """

    def product(
        typingctx: Any, shares: Any, width: Any, values: Any, stride: Any, count: Any, out: Any, apart: Any
    ) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit_mixed(builder, heads, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), code

    return intrinsic(product)


def emit_mixed(
    builder: Any,
    heads: int,
    shares: Any,
    width: Any,
    values: Any,
    stride: Any,
    count: Any,
    out: Any,
    apart: Any,
) -> None:
    """The instructions of `mixed`."""
    fma = function(builder, FMA, VECTOR, VECTOR, VECTOR, VECTOR)
    parts = [INT64(VECTOR_BYTES * part) for part in range(HEAD_VECTORS)]
    outs = [builder.add(out, builder.mul(apart, INT64(head))) for head in range(heads)]
    places = [builder.add(row, part) for row in outs for part in parts]
    sums = zeros(builder, len(places))
    for total, place in zip(sums, places, strict=True):
        builder.store(load(builder, place), total)
    with cgutils.for_range(builder, count) as loop:
        value = builder.add(values, builder.mul(stride, loop.index))
        vectors = [load(builder, builder.add(value, part)) for part in parts]
        mine = builder.add(shares, builder.mul(loop.index, INT64(4)))
        for head in range(heads):
            place = builder.inttoptr(builder.add(mine, builder.mul(width, INT64(head))), FLOAT.as_pointer())
            share = spread(builder, builder.load(place, align=4), REGISTER)
            for vector, total in zip(vectors, sums[head * HEAD_VECTORS :], strict=False):
                builder.store(builder.call(fma, [share, vector, builder.load(total)]), total)
    for total, place in zip(sums, places, strict=True):
        store(builder, builder.load(total), place)


def highest() -> Callable[..., float]:
    """A function of compiled code (numbers, count), an address and a number: the highest of fp32 [count], a
    multiple of REGISTER and not 0.
    """

    def product(typingctx: Any, numbers: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            numbers, count = arguments
            place = cgutils.alloca_once(builder, VECTOR)
            builder.store(load(builder, numbers), place)
            with cgutils.for_range(builder, builder.udiv(count, INT64(REGISTER))) as loop:
                vector = load(builder, builder.add(numbers, builder.mul(loop.index, INT64(VECTOR_BYTES))))
                builder.store(higher(builder, builder.load(place), vector), place)
            vector = builder.load(place)
            for apart in (REGISTER >> step for step in range(1, REGISTER.bit_length())):
                turned = [INT32((lane + apart) % REGISTER) for lane in range(REGISTER)]
                mask = ir.Constant(ir.VectorType(INT32, REGISTER), turned)
                vector = higher(builder, vector, builder.shuffle_vector(vector, vector, mask))
            return builder.extract_element(vector, INT32(0))

        return types.float32(types.int64, types.int64), code

    return intrinsic(product)


def higher(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def added_up(builder: Any, vectors: list[Any]) -> Any:
    """A vector whose lane i is the sum over the lanes of vector i, of REGISTER: neighbours first."""
    evens, odds = range(0, 2 * REGISTER, 2), range(1, 2 * REGISTER, 2)
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.fadd(lanes(builder, a, b, evens), lanes(builder, a, b, odds)) for a, b in pairs]
    return vectors[0]


def lanes(builder: Any, a: Any, b: Any, which: range) -> Any:
    """These lanes of two vectors side by side."""
    mask = ir.Constant(ir.VectorType(INT32, len(which)), [INT32(lane) for lane in which])
    return builder.shuffle_vector(a, b, mask)


def zeros(builder: Any, count: int) -> list[Any]:
    """Places of so many vectors, which become registers."""
    places = [cgutils.alloca_once(builder, VECTOR) for _ in range(count)]
    for place in places:
        builder.store(ir.Constant(VECTOR, [0.0] * REGISTER), place)
    return places


def load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, VECTOR.as_pointer()), align=4)


def store(builder: Any, vector: Any, address: Any) -> None:
    builder.store(vector, builder.inttoptr(address, vector.type.as_pointer()), align=4)
