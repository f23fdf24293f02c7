"""A tile of a product as vector instructions: so many rows by so many vectors of 16 columns in registers.

Vectors are of 16 numbers on every CPU. With AVX-512 each is a register, of which there are 32: room for the
sums of 16 vectors and more. With AVX2 LLVM makes two registers of each, and there are 16: room for six. A sum
is the same chain either way. What a compiler makes of a plain loop reaches a fraction of it.

A weight may be in halves: where all its numbers are bf16's, two terms share a word, the even one its lower
half. They become fp32 in the register: the same numbers, so the same sums. Or they are multiplied as they are
with rows that are rounded to bf16, two terms an instruction, on a CPU that has it (AVX512-BF16).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from llvmlite import ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]

from antiphon.nn.cpu.compiler import has_pairs
from antiphon.nn.cpu.openmp import intrinsic

LANES = 16
"""fp32 numbers in a vector."""

LINE_BYTES = 4 * LANES

UNROLLED = 4
"""Terms of the sums in one round of the loop; the depth of a product is a multiple of it."""

PIECE_BYTES = 4096
"""Memory that is asked for at one address, two lines a round."""

TURN_BITS = 5
"""Rounds that ask for one piece, as a power of two."""

PIECE_TERMS = UNROLLED << TURN_BITS

SECOND_CACHE = 2
"""Where LLVM's prefetch is to put a line: 3 is the first cache, 2 the second."""


class Bfloat(ir.Type):
    """LLVM's bfloat."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bfloat)

    def __hash__(self) -> int:
        return hash(Bfloat)


FLOAT, INT16, INT32, INT64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
VECTOR, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)
PAIRS = ir.VectorType(Bfloat(), 2 * LANES)


class TileForm(IntEnum):
    """What a weight's numbers are, and how they are multiplied.

    WHOLE   fp32
    HALVES  bf16 that become fp32 in the register
    PAIRS   bf16, two terms an instruction, with rows in bf16 and sums in fp32
    """

    WHOLE = 0
    HALVES = 1
    PAIRS = 2

    @property
    def row_bytes(self) -> int:
        """Of one number of a row."""
        return 2 if self is TileForm.PAIRS else 4

    @property
    def line_bytes(self) -> int:
        """Of one term's part of a panel."""
        return LINE_BYTES if self is TileForm.WHOLE else LINE_BYTES // 2


def rounding(lanes: int) -> Callable[..., None]:
    """A function of compiled code (x, out), addresses: fp32 x [lanes] as bf16 into out."""

    def product(typingctx: Any, x: Any, out: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, out = arguments
            halves = rounded(builder, x, lanes)
            builder.store(halves, builder.inttoptr(out, halves.type.as_pointer()), align=2)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    return intrinsic(product)


@intrinsic
def pair_lines(typingctx: Any, x: Any, following: Any, out: Any) -> Any:
    """Addresses: two vectors of fp32 as bf16, each number beside its like, the first one's in the lower half
    of a word, into out."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high = (builder.zext(rounded(builder, place, LANES), WORDS) for place in arguments[:2])
        words = builder.or_(low, builder.shl(high, ir.Constant(WORDS, [16] * LANES)))
        builder.store(words, builder.inttoptr(arguments[2], WORDS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), code


def rounded(builder: Any, x: Any, lanes: int) -> Any:
    """The bits of the nearest bf16 of fp32 [lanes] at an address. A CPU without AVX512-BF16 never runs it."""
    bits = ir.VectorType(INT16, lanes)
    if not has_pairs():
        return ir.Constant(bits, [0] * lanes)
    numbers = builder.load(builder.inttoptr(x, ir.VectorType(FLOAT, lanes).as_pointer()), align=4)
    return builder.bitcast(builder.fptrunc(numbers, ir.VectorType(Bfloat(), lanes)), bits)


def emit_prefetch(builder: Any, address: Any) -> None:
    """The instruction that asks for the cache line at an address, into the second cache."""
    byte = ir.IntType(8).as_pointer()
    ask = function(builder, "llvm.prefetch.p0", ir.VoidType(), byte, INT32, INT32, INT32)
    builder.call(ask, [builder.inttoptr(address, byte), INT32(0), INT32(SECOND_CACHE), INT32(1)])


@intrinsic
def prefetch_line(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address, into the second cache; harmless where nothing lies."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), code


def tile(
    rows: int, vectors: int, ahead_bytes: int = 0, form: TileForm = TileForm.WHOLE
) -> Callable[..., None]:
    """A function of compiled code (x, weight, depth, out, width, pieces), addresses and numbers:

    out fp32 [rows, vectors * 16], its rows `width` apart, becomes x [rows, depth] times weight [vectors,
    depth, 16], each sum one chain of fused multiply-adds in the order of its terms; in pairs
    x is bf16, and a link of the chain two terms. With `ahead_bytes` the weight is asked for so far ahead,
    into the second cache: the rows need the first. At `pieces` stand the addresses of pieces of other memory
    that is needed soon, one for each PIECE_TERMS terms or part of them, which are asked for between the
    terms; 0 for none.
    """

    def product(typingctx: Any, x: Any, weight: Any, depth: Any, out: Any, width: Any, pieces: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            Emitter(builder, (rows, vectors), ahead_bytes, form).emit(*arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), code

    return intrinsic(product)


class Emitter:
    """Writes a tile's instructions."""

    def __init__(self, builder: Any, size: tuple[int, int], ahead_bytes: int, form: TileForm) -> None:
        """size: rows and vectors."""
        self._builder, self._ahead, self._form = builder, ahead_bytes, form
        self._rows, self._vectors = size
        self._fma = function(builder, "llvm.fma.v16f32", VECTOR, VECTOR, VECTOR, VECTOR)
        self._sums = [
            [cgutils.alloca_once(builder, VECTOR) for _ in range(self._vectors)] for _ in range(self._rows)
        ]

    def emit(self, x: Any, weight: Any, depth: Any, out: Any, width: Any, pieces: Any) -> None:
        builder = self._builder
        for sums in self._sums:
            for total in sums:
                builder.store(ir.Constant(VECTOR, [0.0] * LANES), total)
        rows = [
            builder.add(x, builder.mul(depth, INT64(self._form.row_bytes * row))) for row in range(self._rows)
        ]
        panel_bytes = builder.mul(depth, INT64(self._form.line_bytes))
        panels = [builder.add(weight, builder.mul(panel_bytes, INT64(v))) for v in range(self._vectors)]
        pieces, stride = self._pieces(pieces, x)
        with cgutils.for_range(builder, builder.udiv(depth, INT64(UNROLLED))) as loop:
            first = builder.mul(loop.index, INT64(UNROLLED))
            self._ask_for_piece(pieces, stride, loop.index)
            for step in range(0, UNROLLED, 2):
                self._two_terms(rows, panels, builder.add(first, INT64(step)))
        for row, sums in enumerate(self._sums):
            start = builder.add(out, builder.mul(width, INT64(4 * row)))
            for v, total in enumerate(sums):
                place = self._pointer(builder.add(start, INT64(LINE_BYTES * v)), VECTOR)
                builder.store(builder.load(total), place, align=4)

    def _two_terms(self, rows: list[Any], panels: list[Any], term: Any) -> None:
        """Add two terms to every sum."""
        following = self._builder.add(term, INT64(1))
        if self._form is TileForm.WHOLE:
            for one in (term, following):
                self._add_term(rows, one, [self._part(panel, one, VECTOR) for panel in panels])
            return
        words = [self._part(panel, term, WORDS) for panel in panels]
        if self._form is TileForm.PAIRS:
            self._add_pair(rows, term, words)
            return
        self._add_term(rows, term, [self._widened(word, "shl", 16) for word in words])
        self._add_term(rows, following, [self._widened(word, "and_", 0xFFFF0000) for word in words])

    def _part(self, panel: Any, term: Any, kind: Any) -> Any:
        """A panel's numbers from a term on, and the same line further on is asked for."""
        builder = self._builder
        line = builder.add(panel, builder.mul(term, INT64(self._form.line_bytes)))
        if self._ahead:
            emit_prefetch(builder, builder.add(line, INT64(self._ahead)))
        return builder.load(self._pointer(line, kind), align=LINE_BYTES)

    def _widened(self, words: Any, how: str, number: int) -> Any:
        """One of the two bf16 of each word as fp32."""
        wide = getattr(self._builder, how)(words, ir.Constant(WORDS, [number] * LANES))
        return self._builder.bitcast(wide, VECTOR)

    def _add_term(self, rows: list[Any], term: Any, weights: list[Any]) -> None:
        """Add one term to every sum."""
        builder = self._builder
        for row, sums in zip(rows, self._sums, strict=True):
            place = self._pointer(builder.add(row, builder.mul(term, INT64(4))), FLOAT)
            number = spread(builder, builder.load(place, align=4))
            for weight, total in zip(weights, sums, strict=True):
                builder.store(builder.call(self._fma, [number, weight, builder.load(total)]), total)

    def _add_pair(self, rows: list[Any], term: Any, words: list[Any]) -> None:
        """Add two terms to every sum, in one instruction."""
        builder = self._builder
        add = function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VECTOR, VECTOR, PAIRS, PAIRS)
        weights = [builder.bitcast(word, PAIRS) for word in words]
        for row, sums in zip(rows, self._sums, strict=True):
            place = self._pointer(builder.add(row, builder.mul(term, INT64(2))), INT32)
            pair = builder.bitcast(spread(builder, builder.load(place, align=4)), PAIRS)
            for weight, total in zip(weights, sums, strict=True):
                builder.store(builder.call(add, [builder.load(total), pair, weight]), total)

    def _pieces(self, pieces: Any, x: Any) -> tuple[Any, Any]:
        """Where the first piece's address stands, and how far it is to the next. For no pieces it is x's,
        again and again: its lines are in the first cache."""
        builder, none = self._builder, cgutils.alloca_once(self._builder, INT64)
        builder.store(x, none)
        is_none = builder.icmp_unsigned("==", pieces, INT64(0))
        stride = builder.select(is_none, INT64(0), INT64(8))
        return builder.select(is_none, builder.ptrtoint(none, INT64), pieces), stride

    def _ask_for_piece(self, pieces: Any, stride: Any, turn: Any) -> None:
        """Two lines of the piece whose turn it is."""
        builder, lines = self._builder, PIECE_BYTES >> TURN_BITS
        entry = builder.add(pieces, builder.mul(builder.lshr(turn, INT64(TURN_BITS)), stride))
        piece = builder.load(self._pointer(entry, INT64), align=8)
        within = builder.mul(builder.and_(turn, INT64((1 << TURN_BITS) - 1)), INT64(lines))
        for line in range(0, lines, LINE_BYTES):
            emit_prefetch(builder, builder.add(builder.add(piece, within), INT64(line)))

    def _pointer(self, address: Any, kind: Any) -> Any:
        return self._builder.inttoptr(address, kind.as_pointer())


def function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """An intrinsic of LLVM."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def spread(builder: Any, number: Any, count: int = LANES) -> Any:
    """A number of 32 bits in every lane of so many."""
    empty = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    lanes = ir.Constant(ir.VectorType(INT32, count), [INT32(0)] * count)
    return builder.shuffle_vector(builder.insert_element(empty, number, INT32(0)), empty, lanes)
