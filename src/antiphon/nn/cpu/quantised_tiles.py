"""Tiles of a product with a weight in quantised blocks, whose numbers become fp32 in registers.

A number is `scale * quant + lowest`, fused, of scales that a block of inputs shares: the very numbers that
dequantising gives (`lay_out` in `quantised` says why), so a sum is the same chain as over fp32 panels.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from llvmlite import ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]

from antiphon.nn.cpu.openmp import intrinsic
from antiphon.nn.cpu.tiles import FLOAT, INT64, LANES, LINE_BYTES, VECTOR, WORDS, function, spread

BYTES, HALF_FLOATS = ir.VectorType(ir.IntType(8), LANES), ir.VectorType(ir.HalfType(), LANES)

TERMS = 4
"""In one round of the inner loop; inputs of a block are a multiple of it."""


class Form(IntEnum):
    """What a block of a panel holds, for 16 outputs side by side, after llama.cpp's name of it.

    Q8_0   32 inputs: scales fp16; a byte a number, signed
    Q4_0   32 inputs: scales fp16; two numbers a byte, those of an even input below, less 8
    Q4_1   32 inputs: scales and lowest numbers fp16; the same, less nothing
    Q4_K   256 inputs: two factors fp16, then eight times of 32 inputs: scales and lowest numbers, a byte
           each and times those factors; the same
    I8     any inputs: scales and lowest numbers fp32; a byte a number, signed
    F16    any inputs: fp16 numbers, of no scale
    """

    Q8_0 = 0
    Q4_0 = 1
    Q4_1 = 2
    Q4_K = 3
    I8 = 4
    F16 = 5

    @property
    def head_bytes(self) -> int:
        """In front of the numbers of inputs that share scales, for 16 outputs."""
        sizes = {Form.Q8_0: 2, Form.Q4_0: 2, Form.Q4_1: 4, Form.Q4_K: 2, Form.I8: 8, Form.F16: 0}
        return LANES * sizes[self]

    @property
    def whole_head_bytes(self) -> int:
        """In front of a block, beside those."""
        return LANES * 4 if self is Form.Q4_K else 0

    @property
    def per_byte(self) -> int:
        """Inputs whose numbers share bytes."""
        return 1 if self in (Form.Q8_0, Form.I8, Form.F16) else 2

    @property
    def line_bytes(self) -> int:
        """Of one input's numbers, for 16 outputs."""
        return 2 * LANES if self is Form.F16 else LANES // self.per_byte

    @property
    def groups(self) -> int:
        """Of inputs that share scales, in a block."""
        return 8 if self is Form.Q4_K else 1

    def block_bytes(self, group: int) -> int:
        """Of a block whose groups are of so many inputs, for 16 outputs."""
        return self.whole_head_bytes + self.groups * (self.head_bytes + group * self.line_bytes)


def quantised_tile(rows: int, vectors: int, form: Form) -> Callable[..., None]:
    """A function of compiled code (x, weight, depth, group, out, width), addresses and numbers:

    out fp32 [rows, vectors * 16], its rows `width` numbers apart, becomes x fp32 [rows, depth] times as many
    panels of blocks whose groups are of `group` inputs, each sum one chain of fused multiply-adds in the
    order of its terms.
    """

    def product(typingctx: Any, x: Any, weight: Any, depth: Any, group: Any, out: Any, width: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, weight, depth, group, out, width = arguments
            emitter = Sums(builder, (rows, vectors), x, depth)
            walk(builder, form, (weight, vectors), (depth, group), emitter.add)
            emitter.store(out, width)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), code

    return intrinsic(product)


def widening(form: Form) -> Callable[..., None]:
    """A function of compiled code (weight, depth, group, out): a panel's numbers as fp32 [depth, 16]."""

    def product(typingctx: Any, weight: Any, depth: Any, group: Any, out: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weight, depth, group, out = arguments

            def store(term: Any, numbers: list[Any]) -> None:
                place = builder.add(out, builder.mul(term, INT64(LINE_BYTES)))
                builder.store(numbers[0], builder.inttoptr(place, VECTOR.as_pointer()), align=LINE_BYTES)

            walk(builder, form, (weight, 1), (depth, group), store)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), code

    return intrinsic(product)


class Sums:
    """A tile's sums, in registers."""

    def __init__(self, builder: Any, size: tuple[int, int], x: Any, depth: Any) -> None:
        """size: rows and vectors."""
        rows, vectors = size
        self._builder, self._rows = (
            builder,
            [builder.add(x, builder.mul(depth, INT64(4 * row))) for row in range(rows)],
        )
        self._fma = fused(builder)
        self._sums = [[cgutils.alloca_once(builder, VECTOR) for _ in range(vectors)] for _ in range(rows)]
        for total in (total for sums in self._sums for total in sums):
            builder.store(ir.Constant(VECTOR, [0.0] * LANES), total)

    def add(self, term: Any, numbers: list[Any]) -> None:
        """One term, whose weights are these."""
        builder = self._builder
        for row, sums in zip(self._rows, self._sums, strict=True):
            place = builder.inttoptr(builder.add(row, builder.mul(term, INT64(4))), FLOAT.as_pointer())
            factor = spread(builder, builder.load(place, align=4))
            for number, total in zip(numbers, sums, strict=True):
                builder.store(builder.call(self._fma, [factor, number, builder.load(total)]), total)

    def store(self, out: Any, width: Any) -> None:
        builder = self._builder
        for row, sums in enumerate(self._sums):
            start = builder.add(out, builder.mul(width, INT64(4 * row)))
            for vector, total in enumerate(sums):
                place = builder.add(start, INT64(LINE_BYTES * vector))
                builder.store(builder.load(total), builder.inttoptr(place, VECTOR.as_pointer()), align=4)


def walk(
    builder: Any,
    form: Form,
    weight: tuple[Any, int],
    sizes: tuple[Any, Any],
    use: Callable[[Any, list[Any]], None],
) -> None:
    """Instructions that call `use` for every term in order, with its numbers in each panel.

    weight: where the first panel is, and how many; sizes: the depth, and inputs that share scales.
    """
    (address, panels), (depth, group) = weight, sizes
    line_bytes = form.line_bytes
    group_bytes = builder.add(INT64(form.head_bytes), builder.mul(group, INT64(line_bytes)))
    block_bytes = builder.add(INT64(form.whole_head_bytes), builder.mul(group_bytes, INT64(form.groups)))
    blocks = builder.udiv(depth, builder.mul(group, INT64(form.groups)))
    panel_bytes = builder.mul(blocks, block_bytes)
    first = [builder.add(address, builder.mul(panel_bytes, INT64(panel))) for panel in range(panels)]
    with cgutils.for_range(builder, blocks) as block:
        starts = [builder.add(panel, builder.mul(block.index, block_bytes)) for panel in first]
        factors = [factors_of(builder, form, start) for start in starts]
        with cgutils.for_range(builder, INT64(form.groups)) as part:
            place = builder.add(builder.mul(block.index, INT64(form.groups)), part.index)
            term = builder.mul(place, group)
            within = builder.add(INT64(form.whole_head_bytes), builder.mul(part.index, group_bytes))
            heads = [builder.add(start, within) for start in starts]
            scales = [scales_of(builder, form, *each) for each in zip(heads, factors, strict=True)]
            lines = [builder.add(head, INT64(form.head_bytes)) for head in heads]
            with cgutils.for_range(builder, builder.udiv(group, INT64(TERMS))) as turn:
                start = builder.mul(turn.index, INT64(TERMS))
                for step in range(0, TERMS, form.per_byte):
                    at = builder.add(start, INT64(step))
                    quants = [
                        quants_of(builder, form, builder.add(line, builder.mul(at, INT64(line_bytes))))
                        for line in lines
                    ]
                    for later in range(form.per_byte):
                        numbers = [
                            number_of(builder, quant[later], *scale)
                            for quant, scale in zip(quants, scales, strict=True)
                        ]
                        use(builder.add(term, builder.add(at, INT64(later))), numbers)


def factors_of(builder: Any, form: Form, block: Any) -> tuple[Any, Any] | None:
    """What the scales and lowest numbers of all groups of a block are multiplied with."""
    if form is not Form.Q4_K:
        return None
    return half_floats(builder, block), half_floats(builder, builder.add(block, INT64(2 * LANES)))


def scales_of(builder: Any, form: Form, head: Any, factors: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """A group's scale, None where it is 1, and lowest number, None where it is 0."""
    if form is Form.F16:
        return None, None
    if form is Form.Q4_K:
        assert factors is not None
        scale, lowest = (
            builder.fmul(factor, bytes_of(builder, builder.add(head, INT64(LANES * i)), signed=False))
            for i, factor in enumerate(factors)
        )
        return scale, negative(builder, lowest)
    if form is Form.I8:
        places = head, builder.add(head, INT64(LINE_BYTES))
        scale, lowest = (
            builder.load(builder.inttoptr(place, VECTOR.as_pointer()), align=LANES) for place in places
        )
        return scale, lowest
    scale = half_floats(builder, head)
    if form is Form.Q4_0:
        return scale, builder.fmul(scale, ir.Constant(VECTOR, [-8.0] * LANES))
    return scale, half_floats(builder, builder.add(head, INT64(2 * LANES))) if form is Form.Q4_1 else None


def quants_of(builder: Any, form: Form, line: Any) -> list[Any]:
    """The numbers of one input, or of two that share bytes, as fp32."""
    if form is Form.F16:
        return [half_floats(builder, line)]
    if form.per_byte == 1:
        return [bytes_of(builder, line, signed=True)]
    words = builder.zext(load_bytes(builder, line), WORDS)
    low = builder.and_(words, ir.Constant(WORDS, [15] * LANES))
    high = builder.lshr(words, ir.Constant(WORDS, [4] * LANES))
    return [builder.sitofp(number, VECTOR) for number in (low, high)]


def number_of(builder: Any, quant: Any, scale: Any, lowest: Any) -> Any:
    if scale is None:
        return quant
    if lowest is None:
        return builder.fmul(scale, quant)
    return builder.call(fused(builder), [scale, quant, lowest])


def bytes_of(builder: Any, place: Any, *, signed: bool) -> Any:
    """16 bytes at an address, as fp32."""
    wide = builder.sext if signed else builder.zext
    return builder.sitofp(wide(load_bytes(builder, place), WORDS), VECTOR)


def load_bytes(builder: Any, place: Any) -> Any:
    return builder.load(builder.inttoptr(place, BYTES.as_pointer()), align=LANES)


def half_floats(builder: Any, place: Any) -> Any:
    """16 fp16 at an address, as fp32."""
    return builder.fpext(builder.load(builder.inttoptr(place, HALF_FLOATS.as_pointer()), align=LANES), VECTOR)


def negative(builder: Any, numbers: Any) -> Any:
    return builder.fsub(ir.Constant(VECTOR, [-0.0] * LANES), numbers)


def fused(builder: Any) -> Any:
    return function(builder, "llvm.fma.v16f32", VECTOR, VECTOR, VECTOR, VECTOR)
