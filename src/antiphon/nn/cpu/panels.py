"""Products of fp32 rows with a weight laid out in panels, on CPUs with AVX-512 or AVX2.

A panel is 16 outputs, input by input: the sums of 16 rows (six with AVX2) stay in registers while it is read
once, in order. Each sum is one chain of fused multiply-adds over the inputs in order, in every tile: so a
row's bits don't depend on the rows beside it, nor on the CPU. A weight all of whose numbers are bf16's, as
released checkpoints' are, is kept as them: half the bytes, the same products. Where it is asked for and the
CPU has it, such a weight is multiplied in bf16: rows are rounded to it, two terms are one instruction, and
sums are fp32; where the CPU has AMX, by that (`amx`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.cpu.amx import (
    PIECE_TILES,
    TILE_ROWS,
    TILE_TERMS,
    bytes_of_rows,
    lay_out_rows,
    rows_times_by_amx,
)
from antiphon.nn.cpu.compiler import compiled, has_amx, has_pairs, lanes_of_registers
from antiphon.nn.cpu.kv_prefetch import next_pieces, num_pieces
from antiphon.nn.cpu.large_pages import on_large_pages
from antiphon.nn.cpu.openmp import Loop, job_of, take
from antiphon.nn.cpu.tiles import (
    LANES,
    LINE_BYTES,
    PIECE_TERMS,
    UNROLLED,
    TileForm,
    rounding,
    tile,
)

Ints = NDArray[np.int64]

WHOLE, HALVES, PAIRS = int(TileForm.WHOLE), int(TileForm.HALVES), int(TileForm.PAIRS)

AMX = 1 + max(TileForm)
"""A job's form where weights in pairs are multiplied by AMX."""

DEEPEST = 4096
"""Inputs at most: two panels and eight rows of them fit a core's second cache."""

HAS_TWO = lanes_of_registers() == 16
"""Whether registers hold the sums of eight rows of two panels."""

BLOCK_ROWS = 256 if HAS_TWO else 96
"""Rows that stay in a cache while all panels pass by: with one panel at a time they pass twice as often."""

TILES = (16, 8, 4, 2) if HAS_TWO else (6, 4, 3, 2)
"""Rows of the tiles of one panel, but for one row's. Eight sums of AVX2's eight numbers wait for nothing but
arithmetic: so four rows are as fast as six, and two tiles of four faster than one of six and one of two."""

FROM = 16 if HAS_TWO else 9
"""The largest tile is for so many rows and more."""

FEW_ROWS = 16 if HAS_TWO else BLOCK_ROWS
"""Up to so many are multiplied as they arrive: the weight, not the arithmetic, is what is waited for."""

FEW_ROWS_IN_PAIRS = 7
"""`FEW_ROWS` of weights in pairs: their arithmetic is short, and two panels ask for more memory at a time."""

AHEAD_BYTES = 8192
"""So far ahead the panels of few rows are asked for; in halves half of it, which takes as long to get to."""


def can_lay_out(weight: Tensor) -> bool:
    """Whether this CPU has tiles, and weight [out, in] the sizes."""
    out, depth = weight.shape
    return out % LANES == 0 and depth % UNROLLED == 0 and 0 < depth <= DEEPEST and lanes_of_registers() > 0


def lay_out(weight: Tensor) -> Tensor:
    """weight fp32 [out, in] -> its panels [out / 16, in, 16]: fp32, or bf16 where that keeps every number;
    then inputs 2i and 2i + 1 of an output stand side by side.
    """
    out, depth = weight.shape
    rows = weight.view(out // LANES, LANES, depth)
    if not is_bf16(weight):
        panels = on_large_pages(weight.numel()).view(out // LANES, depth, LANES)
        return panels.copy_(rows.transpose(1, 2))
    panels = on_large_pages(weight.numel() // 2).view(torch.bfloat16).view(out // LANES, depth, LANES)
    panels.view(out // LANES, -1, LANES, 2).copy_(rows.unflatten(2, (-1, 2)).transpose(1, 2))
    return panels


def rows_of_panels(panels: Tensor, rows: Tensor) -> Tensor:
    """Rows int64 [n] of the weight that `lay_out` took -> fp32 [n, in]. Raises IndexError."""
    panel, lane = rows // LANES, rows % LANES
    if panels.dtype is torch.bfloat16:
        return panels.view(len(panels), -1, LANES, 2)[panel, :, lane].flatten(1).float()
    return panels[panel, :, lane]


def is_bf16(weight: Tensor) -> bool:
    """Whether fp32 numbers are all bf16's."""
    return not bool((weight.contiguous().view(torch.int32) & 0xFFFF).any())


AMX_BLOCK_BYTES = 1 << 20
"""Of a block of rows in tiles at most: half a core's second cache."""

Job = job_of("x weight out soon", "rows depth panels width share shares form block before after parts")
"""`block` rows stay in a cache while a share of the panels passes by. `soon`: the address, or 0, of what is
read soon after this and other products (`asking`). Of its pieces this one asks for those that come after
`before` and up to `after` of `parts`.
"""


round_line, round_four = rounding(LANES), rounding(UNROLLED)


def here(form: TileForm) -> TileForm:
    """What is compiled for a form: a CPU without pairs never runs them."""
    return form if has_pairs() or form is not TileForm.PAIRS else TileForm.HALVES


def rows_of_a_panel(form: TileForm) -> Callable[..., None]:
    """`few_rows` of panels of a form."""
    ahead, size = AHEAD_BYTES // LINE_BYTES * form.line_bytes, form.row_bytes
    a, b, c, d = TILES
    firsta, firstb, firstc, firstd, first1 = (tile(rows, 1, ahead, here(form)) for rows in (*TILES, 1))

    @compiled
    def few_rows(x: int, rows: int, weight: int, depth: int, out: int, width: int, pieces: int) -> None:
        """Addresses: x [rows, depth], one panel, out; largest tiles first."""
        while rows >= FROM:
            firsta(x, weight, depth, out, width, pieces)
            rows, x, out, pieces = rows - a, x + a * size * depth, out + 4 * a * width, 0
        while rows >= b:
            firstb(x, weight, depth, out, width, pieces)
            rows, x, out, pieces = rows - b, x + b * size * depth, out + 4 * b * width, 0
        if rows >= c:
            firstc(x, weight, depth, out, width, pieces)
            rows, x, out, pieces = rows - c, x + c * size * depth, out + 4 * c * width, 0
        if rows >= d:
            firstd(x, weight, depth, out, width, pieces)
            rows, x, out, pieces = rows - d, x + d * size * depth, out + 4 * d * width, 0
        if rows:
            first1(x, weight, depth, out, width, pieces)

    return few_rows


few_rows, few_rows_in_halves, few_rows_in_pairs = (rows_of_a_panel(form) for form in TileForm)
next8by2, next8by2_in_halves = tile(8, 2), tile(8, 2, form=TileForm.HALVES)
next8by2_in_pairs = tile(8, 2, AHEAD_BYTES // 2, here(TileForm.PAIRS))


def products_of_panels(form: TileForm, few: Any, next8: Any) -> Callable[..., None]:
    """`panels_times` of panels of a form, by its `few_rows` and `next8by2`."""
    size, line = form.row_bytes, form.line_bytes
    first1by4, first2by2 = tile(1, 4, form=here(form)), tile(2, 2, form=here(form))

    @compiled
    def panels_times(x: int, rows: int, weight: int, depth: int, panels: int, out: int, width: int) -> None:
        """Addresses: x [rows, depth] times panels [panels, depth, 16], into out, its rows `width` apart."""
        while rows == 1 and panels >= 4:
            first1by4(x, weight, depth, out, width, 0)
            panels, weight, out = panels - 4, weight + 4 * line * depth, out + 4 * LINE_BYTES
        while rows == 2 and panels >= 2:
            first2by2(x, weight, depth, out, width, 0)
            panels, weight, out = panels - 2, weight + 2 * line * depth, out + 2 * LINE_BYTES
        while HAS_TWO and panels >= 2:
            left, source, place = rows, x, out
            while left >= 8:
                next8(source, weight, depth, place, width, 0)
                left, source, place = left - 8, source + 8 * size * depth, place + 32 * width
            if left:
                few(source, left, weight, depth, place, width, 0)
                few(source, left, weight + line * depth, depth, place + LINE_BYTES, width, 0)
            panels, weight, out = panels - 2, weight + 2 * line * depth, out + 2 * LINE_BYTES
        while panels:
            few(x, rows, weight, depth, out, width, 0)
            panels, weight, out = panels - 1, weight + line * depth, out + LINE_BYTES

    return panels_times


panels_times = products_of_panels(TileForm.WHOLE, few_rows, next8by2)
panels_times_in_halves = products_of_panels(TileForm.HALVES, few_rows_in_halves, next8by2_in_halves)
panels_times_in_pairs = products_of_panels(TileForm.PAIRS, few_rows_in_pairs, next8by2_in_pairs)


@compiled
def rows_times(
    x: int, rows: int, weight: int, in_halves: bool, depth: int, panels: int, out: int, width: int
) -> None:
    """`panels_times` of panels that are fp32, or halves of the same numbers."""
    if in_halves:
        panels_times_in_halves(x, rows, weight, depth, panels, out, width)
    else:
        panels_times(x, rows, weight, depth, panels, out, width)


@compiled
def rows_of_one(job: Any, x: int, rows: int, weight: int, out: int, pieces: int) -> None:
    """Rows x of one panel."""
    if job.form == PAIRS:
        few_rows_in_pairs(x, rows, weight, job.depth, out, job.width, pieces)
    elif job.form == HALVES:
        few_rows_in_halves(x, rows, weight, job.depth, out, job.width, pieces)
    else:
        few_rows(x, rows, weight, job.depth, out, job.width, pieces)


@compiled
def rows_of_two(
    job: Any, x: int, rows: int, weight: int, out: int, asks: tuple[int, int], pieces: Ints
) -> None:
    """Rows x of two panels."""
    (first, last), row_bytes = asks, (2 if job.form == PAIRS else 4) * job.depth
    while rows >= 8:
        mine = next_pieces(job.soon, first, last, pieces)
        if job.form == PAIRS:
            next8by2_in_pairs(x, weight, job.depth, out, job.width, mine)
        elif job.form == HALVES:
            next8by2_in_halves(x, weight, job.depth, out, job.width, mine)
        else:
            next8by2(x, weight, job.depth, out, job.width, mine)
        rows, x, out, first = rows - 8, x + 8 * row_bytes, out + 32 * job.width, first + len(pieces)
    if rows:
        rows_of_one(job, x, rows, weight, out, 0)
        rows_of_one(job, x, rows, weight + panel_bytes(job), out + LINE_BYTES, 0)


@compiled
def panel_bytes(job: Any) -> int:
    return (LINE_BYTES if job.form == WHOLE else LINE_BYTES // 2) * job.depth


@compiled
def round_numbers(x: int, count: int, out: int) -> None:
    """Addresses: fp32 numbers x as bf16 into out; count is a multiple of 4."""
    lines = count // LANES * LANES
    for i in range(0, lines, LANES):
        round_line(x + 4 * i, out + 2 * i)
    for i in range(lines, count, UNROLLED):
        round_four(x + 4 * i, out + 2 * i)


@compiled
def lay_out_block(job: Any, row: int, out: int) -> int:
    """Where a block of rows, from `row` on, is as its form reads it: at `out` if it is rounded."""
    x, rows = job.x + 4 * row * job.depth, min(job.block, job.rows - row)
    if job.form == AMX:
        lay_out_rows(x, rows, job.depth, out)
    elif job.form == PAIRS:
        round_numbers(x, rows * job.depth, out)
    else:
        return x
    return out


@compiled
def multiply_panels(job: Any, x: int, row: int, panel: int, asks: tuple[int, int], pieces: Ints) -> None:
    """A share of the panels, from `panel` on, for a block of rows, from `row` on, which are at x. Meanwhile
    pieces are asked for, from one up to another, in turns of as many as `pieces` holds."""
    rows, last = min(job.block, job.rows - row), min(panel + job.share, job.panels)
    out = job.out + 4 * row * job.width + LINE_BYTES * panel
    weight, first = job.weight + panel_bytes(job) * panel, asks[0]
    if job.form == AMX:
        count, width = last - panel, job.width
        rows_times_by_amx(x, rows, weight, job.depth, count, out, width, job.soon, asks, pieces)
        return
    few = FEW_ROWS_IN_PAIRS if job.form == PAIRS else FEW_ROWS
    while panel < last:
        if rows <= few or panel + 1 == last:
            rows_of_one(job, x, rows, weight, out, next_pieces(job.soon, first, asks[1], pieces))
            panels, tiles = 1, 1
        else:
            rows_of_two(job, x, rows, weight, out, (first, asks[1]), pieces)
            panels, tiles = 2, rows // 8
        panel, weight, out = panel + panels, weight + panels * panel_bytes(job), out + panels * LINE_BYTES
        first += tiles * len(pieces)


def multiply(pointer: Any) -> None:
    """The loop's body: an item is a share of the panels for a block of rows, and of the pieces."""
    job = carray(pointer, 1)[0]
    items = (job.rows + job.block - 1) // job.block * job.shares
    terms = TILE_TERMS * PIECE_TILES if job.form == AMX else PIECE_TERMS
    pieces = np.empty((job.depth + terms - 1) // terms, np.int64)
    count = num_pieces(job.soon)
    start, end = count * job.before // max(job.parts, 1), count * job.after // max(job.parts, 1)
    each = (end - start + job.shares - 1) // job.shares
    is_rounded = job.form == PAIRS or job.form == AMX  # numba takes longer for a tuple
    room = bytes_of_rows(min(job.rows, job.block), job.depth) if is_rounded else 0
    memory = np.empty(room + LINE_BYTES, np.uint8)
    lines = (memory.ctypes.data + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
    x, laid_out = 0, -1  # which block is at x
    item = take(pointer, 1)
    while item < items:
        block, share = item // job.shares, item % job.shares
        if block != laid_out:
            x, laid_out = lay_out_block(job, block * job.block, lines), block
        first = start + share * each
        last = first if block else min(first + each, end)  # the first block's have been asked for
        multiply_panels(job, x, job.block * block, job.share * share, (first, last), pieces)
        item = take(pointer, 1)
    memory[0] = 0  # an address keeps nothing alive


@cache
def product_loop() -> Loop:
    return Loop(Job, multiply)


def product_job(x: Tensor, panels: Tensor, out: Tensor, threads: int, *, rounds: bool = False) -> Any:
    """x fp32 [n, in] times a weight laid out [out / 16, in, 16], into out [n, out], both contiguous. `rows`
    is yet to be said. rounds: x may be rounded to bf16 where the weight is, on a CPU that `has_pairs`.
    """
    count, depth, _ = panels.shape
    share = share_of(count, threads)
    job = Job(x=x.data_ptr(), weight=panels.data_ptr(), out=out.data_ptr(), depth=depth)
    job.form = WHOLE if panels.dtype is torch.float32 else form_in_bf16(depth) if rounds else HALVES
    job.block = BLOCK_ROWS
    if job.form == AMX:
        job.block = min(BLOCK_ROWS, AMX_BLOCK_BYTES // (2 * depth) // TILE_ROWS * TILE_ROWS)
    job.panels, job.width, job.share, job.shares = count, count * LANES, share, -(-count // share)
    return job


def form_in_bf16(depth: int) -> int:
    """How weights of such a depth are multiplied in bf16, on a CPU that `has_pairs`."""
    return AMX if has_amx() and depth % TILE_TERMS == 0 else PAIRS


def ask_for(jobs: Sequence[Any], soon: Any) -> None:
    """From now on these products ask for what the `Soon` says, each for as large a part as it has of their
    terms. It is changed by what made it, and lives as long as they do."""
    parts, before = sum(job.panels * job.depth for job in jobs), 0
    for job in jobs:
        job.soon, job.parts, job.before = ctypes.addressof(soon), parts, before
        before += job.panels * job.depth
        job.after = before


def times_panels(x: Tensor, panels: Tensor) -> Tensor:
    """x fp32 [..., in] times a weight laid out [out / 16, in, 16] -> [..., out]."""
    count, depth, _ = panels.shape
    flat = x.reshape(-1, depth).contiguous()
    out, threads = flat.new_empty(len(flat), count * LANES), torch.get_num_threads()
    job = product_job(flat, panels, out, threads)
    job.rows = len(flat)
    product_loop().run(job, threads)
    return out.view(*x.shape[:-1], count * LANES)


def share_of(panels: int, threads: int) -> int:
    """Panels that a thread takes at once: an even number, and a few turns each."""
    return max(2, panels // (8 * threads) * 2)
