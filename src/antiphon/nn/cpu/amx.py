"""Products of rows with a weight in panels of bf16 by AMX, on a CPU that has it and a kernel that allows it.

An instruction adds 32 terms to the sums of up to 16 rows by 16 columns. A panel in pairs (`tiles`) is such
tiles of columns, one behind the other, as it lies. Rows are rounded to bf16 and laid out in tiles of 32 terms
first. Within a tile the even terms are one chain and the odd ones another, in fp32, and both are added to the
sum; so a row's bits depend on its own numbers alone, whatever rows are in its tile, and differ from those of
`TileForm.PAIRS` by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # pyright: ignore[reportMissingImports]
from numba import types  # pyright: ignore[reportMissingImports]
from numba.core import cgutils  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from antiphon.nn.cpu.compiler import compiled, has_amx_instructions
from antiphon.nn.cpu.kv_prefetch import next_pieces
from antiphon.nn.cpu.openmp import intrinsic
from antiphon.nn.cpu.tiles import (
    INT64,
    LANES,
    LINE_BYTES,
    PIECE_BYTES,
    emit_prefetch,
    function,
    rounding,
)

Ints = NDArray[np.int64]

TILE_ROWS = 16

TILE_TERMS = 32
"""The depth of a product by AMX is a multiple of it."""

TILE_BYTES = TILE_ROWS * LINE_BYTES

SUMS, ROWS, COLUMNS = range(4), range(4, 6), range(6, 8)
"""The eight tile registers: two tiles of rows by two of columns have four of sums."""

AHEAD_BYTES = 4096
"""So far ahead two panels of few rows are asked for."""

ASKED_LINES = 32
"""Lines of a piece that are asked for between two tiles of terms."""

PIECE_TILES = PIECE_BYTES // (LINE_BYTES * ASKED_LINES)
"""Tiles of terms that ask for one piece."""

INT8 = ir.IntType(8)
BYTE = INT8.as_pointer()

round_line = rounding(LANES)


@intrinsic
def configure(typingctx: Any, rows: Any) -> Any:
    """Make this thread's tile registers ready: sums and rows have so many rows, up to TILE_ROWS."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if has_amx_instructions():
            emit_configuration(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), code


def emit_configuration(builder: Any, rows: Any) -> None:
    """The 64 bytes that `ldtilecfg` reads: the palette, two bytes a tile for the bytes of its rows from byte
    16 on, and one for how many rows it has from byte 48 on."""
    words = cgutils.alloca_once(builder, ir.ArrayType(INT64, 8))
    widths = INT64(sum(LINE_BYTES << 16 * place for place in range(4)))
    ours = sum(1 << 8 * tile for tile in (*SUMS, *ROWS))
    whole = sum(TILE_ROWS << 8 * tile for tile in COLUMNS)
    counts = builder.add(builder.mul(rows, INT64(ours)), INT64(whole))
    for place, word in enumerate((INT64(1), INT64(0), widths, widths, INT64(0), INT64(0), counts, INT64(0))):
        builder.store(word, cgutils.gep_inbounds(builder, words, 0, place))
    load = function(builder, "llvm.x86.ldtilecfg", ir.VoidType(), BYTE)
    builder.call(load, [builder.bitcast(words, BYTE)])


@intrinsic
def release(typingctx: Any) -> Any:
    """Empty this thread's tile registers: the kernel saves none when others have the core."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if has_amx_instructions():
            builder.call(function(builder, "llvm.x86.tilerelease", ir.VoidType()), [])
        return context.get_dummy_value()

    return types.void(), code


def amx_tile(rows: int, panels: int, ahead_bytes: int = 0) -> Callable[..., None]:
    """A function of compiled code (x, weight, depth, out, apart, width, pieces), addresses and numbers:

    x is one tile of rows or two, as `lay_out_rows` has them, weight one panel or two; `apart` are the bytes
    between the sums of two tiles of rows, `width` those between two rows of sums. Needs `configure`. With
    `ahead_bytes` the weight is asked for so far ahead, and what `pieces` says as in `tiles.tile`, but for one
    piece every PIECE_TILES tiles of terms.
    """

    def product(
        typingctx: Any, x: Any, weight: Any, depth: Any, out: Any, apart: Any, width: Any, pieces: Any
    ) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if has_amx_instructions():
                AmxEmitter(builder, rows, panels, ahead_bytes).emit(*arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), code

    return intrinsic(product)


class AmxEmitter:
    """Writes the instructions of an `amx_tile`."""

    def __init__(self, builder: Any, rows: int, panels: int, ahead_bytes: int) -> None:
        self._builder, self._ahead = builder, ahead_bytes
        self._rows, self._columns = ROWS[:rows], COLUMNS[:panels]
        self._sums = [SUMS[panels * row : panels * (row + 1)] for row in range(rows)]

    def emit(self, x: Any, weight: Any, depth: Any, out: Any, apart: Any, width: Any, pieces: Any) -> None:
        builder = self._builder
        each = builder.mul(depth, INT64(TILE_BYTES // TILE_TERMS))  # of a panel, and of a tile of rows
        for sums in self._sums:
            for total in sums:
                self._call("tilezero", total)
        # two loops: a branch within one costs a fifth of its speed
        with builder.if_else(builder.icmp_unsigned("==", pieces, INT64(0))) as (alone, asking):
            with alone:
                self._add_terms(x, weight, depth, each, None)
            with asking:
                self._add_terms(x, weight, depth, each, pieces)
        for row, sums in enumerate(self._sums):
            for i, total in enumerate(sums):
                place = self._at(out, apart, row, INT64(LINE_BYTES * i))
                self._move("tilestored64", total, place, width)

    def _add_terms(self, x: Any, weight: Any, depth: Any, each: Any, pieces: Any) -> None:
        builder = self._builder
        with cgutils.for_range(builder, builder.udiv(depth, INT64(TILE_TERMS))) as loop:
            if pieces is not None:
                self._ask_for_piece(pieces, loop.index)
            across = builder.mul(loop.index, INT64(TILE_BYTES))
            for i, row in enumerate(self._rows):
                self._move("tileloadd64", row, self._at(x, each, i, across), INT64(LINE_BYTES))
            for i, column in enumerate(self._columns):
                place = self._at(weight, each, i, across)
                for line in range(0, TILE_BYTES if self._ahead else 0, LINE_BYTES):
                    emit_prefetch(builder, builder.add(place, INT64(self._ahead + line)))
                self._move("tileloadd64", column, place, INT64(LINE_BYTES))
                for row, sums in zip(self._rows, self._sums, strict=True):
                    self._call("tdpbf16ps", sums[i], row, column)

    def _at(self, start: Any, each: Any, number: int, across: Any) -> Any:
        return self._builder.add(self._builder.add(start, self._builder.mul(each, INT64(number))), across)

    def _call(self, name: str, *tiles: int) -> None:
        call = function(self._builder, f"llvm.x86.{name}", ir.VoidType(), *[INT8] * len(tiles))
        self._builder.call(call, [INT8(tile) for tile in tiles])

    def _move(self, name: str, tile: int, address: Any, stride: Any) -> None:
        """Between a tile and memory, its rows `stride` apart."""
        call = function(self._builder, f"llvm.x86.{name}", ir.VoidType(), INT8, BYTE, INT64)
        self._builder.call(call, [INT8(tile), self._builder.inttoptr(address, BYTE), stride])

    def _ask_for_piece(self, pieces: Any, tile: Any) -> None:
        """Some lines of the piece whose turn it is."""
        builder = self._builder
        entry = builder.mul(builder.udiv(tile, INT64(PIECE_TILES)), INT64(8))
        piece = builder.load(builder.inttoptr(builder.add(pieces, entry), INT64.as_pointer()), align=8)
        within = builder.mul(builder.urem(tile, INT64(PIECE_TILES)), INT64(ASKED_LINES * LINE_BYTES))
        for line in range(ASKED_LINES):
            emit_prefetch(builder, builder.add(builder.add(piece, within), INT64(LINE_BYTES * line)))


amx2by2, amx1by2, amx1by1 = amx_tile(2, 2), amx_tile(1, 2, AHEAD_BYTES), amx_tile(1, 1)


@compiled
def rows_of_a_tile(rows: int) -> int:
    """So that tiles of so many rows have equally many; the last one may share some with the one before."""
    tiles = max(1, (rows + TILE_ROWS - 1) // TILE_ROWS)
    return (rows + tiles - 1) // tiles


@compiled
def bytes_of_rows(rows: int, depth: int) -> int:
    """Of these rows as `lay_out_rows` has them."""
    return (rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS * 2 * depth


@compiled
def lay_out_rows(x: int, rows: int, depth: int, out: int) -> None:
    """Addresses: fp32 x [rows, depth] as bf16 -> out, tiles [n, depth / 32, 16, 32] of `rows_of_a_tile`."""
    each = rows_of_a_tile(rows)
    for first in range(0, rows, each):
        start = x + 4 * depth * min(first, rows - each)
        for row in range(each):
            for term in range(0, depth, TILE_TERMS):
                source = start + 4 * (depth * row + term)
                place = out + TILE_BYTES // TILE_TERMS * term + LINE_BYTES * row
                round_line(source, place)
                round_line(source + LINE_BYTES, place + LINE_BYTES // 2)
        out += TILE_BYTES // TILE_TERMS * depth


@compiled
def rows_times_by_amx(
    x: int,
    rows: int,
    weight: int,
    depth: int,
    panels: int,
    out: int,
    width: int,
    soon: int,
    asks: tuple[int, int],
    pieces: Ints,
) -> None:
    """Addresses: x, rows that are laid out, times panels [panels, depth, 16], into out, its rows `width`
    apart. Meanwhile pieces of what a `Soon` tells of are asked for, from one up to another, in turns of as
    many as `pieces` holds: one for PIECE_TILES tiles of terms."""
    (first, last), each, line = asks, rows_of_a_tile(rows), 4 * width
    tile_bytes, panel_bytes = TILE_BYTES // TILE_TERMS * depth, LINE_BYTES // 2 * depth
    if rows:
        configure(each)
    while panels and rows:
        row, source = 0, x
        while row < rows:
            mine = next_pieces(soon, first, last, pieces)
            first += len(pieces)
            place = out + line * min(row, rows - each)
            if panels == 1:
                amx1by1(source, weight, depth, place, 0, line, mine)
                row, source = row + each, source + tile_bytes
            elif row + each >= rows:
                amx1by2(source, weight, depth, place, 0, line, mine)
                row, source = row + each, source + tile_bytes
            else:
                apart = line * (min(row + each, rows - each) - row)
                amx2by2(source, weight, depth, place, apart, line, mine)
                row, source = row + 2 * each, source + 2 * tile_bytes
        done = min(panels, 2)
        panels, weight, out = panels - done, weight + done * panel_bytes, out + done * LINE_BYTES
    release()
