"""Products of fp32 rows with a weight laid out in panels, on CPUs with AVX-512.

A panel is 16 outputs, input by input: the sums of 16 rows stay in registers while it is read once, in order.
Each sum is one chain of fused multiply-adds over the inputs in order, in every tile: so a row's bits don't
depend on the rows beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from torch import Tensor

from antiphon.nn.compiler import compiled
from antiphon.nn.large_pages import on_large_pages
from antiphon.nn.openmp import Loop, job_of, take
from antiphon.nn.tiles import LANES, LINE_BYTES, UNROLLED, has_wide_vectors, tile

DEEPEST = 4096
"""Inputs at most: two panels and eight rows of them fit a core's second cache."""

FEW_ROWS = 16
"""Up to so many are multiplied as they arrive: the weight, not the arithmetic, is what is waited for."""

BLOCK_ROWS = 256
"""Rows that stay in a cache while all panels pass by."""

AHEAD_BYTES = 8192

first16, first8, first4 = tile(16, 1, AHEAD_BYTES), tile(8, 1, AHEAD_BYTES), tile(4, 1, AHEAD_BYTES)
first2, first1 = tile(2, 1, AHEAD_BYTES), tile(1, 1, AHEAD_BYTES)
next8by2 = tile(8, 2)

Job = job_of("x weight out", "rows depth panels width share shares")


def can_lay_out(weight: Tensor) -> bool:
    """Whether this CPU has the vectors, and weight [out, in] the sizes."""
    out, depth = weight.shape
    return out % LANES == 0 and depth % UNROLLED == 0 and 0 < depth <= DEEPEST and has_wide_vectors()


def lay_out(weight: Tensor) -> Tensor:
    """weight fp32 [out, in] -> its panels [out / 16, in, 16]."""
    out, depth = weight.shape
    panels = on_large_pages(weight.numel()).view(out // LANES, depth, LANES)
    return panels.copy_(weight.view(out // LANES, LANES, depth).transpose(1, 2))


@compiled
def few_rows(x: int, rows: int, weight: int, depth: int, out: int, width: int) -> None:
    """Addresses: x [rows, depth], one panel, out; largest tiles first."""
    while rows >= 16:
        first16(x, weight, depth, out, width)
        rows, x, out = rows - 16, x + 64 * depth, out + 64 * width
    if rows >= 8:
        first8(x, weight, depth, out, width)
        rows, x, out = rows - 8, x + 32 * depth, out + 32 * width
    if rows >= 4:
        first4(x, weight, depth, out, width)
        rows, x, out = rows - 4, x + 16 * depth, out + 16 * width
    if rows >= 2:
        first2(x, weight, depth, out, width)
        rows, x, out = rows - 2, x + 8 * depth, out + 8 * width
    if rows:
        first1(x, weight, depth, out, width)


@compiled
def many_rows(x: int, rows: int, weight: int, depth: int, out: int, width: int) -> None:
    """The same with two panels."""
    while rows >= 8:
        next8by2(x, weight, depth, out, width)
        rows, x, out = rows - 8, x + 32 * depth, out + 32 * width
    if rows:
        few_rows(x, rows, weight, depth, out, width)
        few_rows(x, rows, weight + LINE_BYTES * depth, depth, out + LINE_BYTES, width)


def multiply(pointer: Any) -> None:
    """The loop's body: an item is a share of the panels for a block of rows."""
    job = carray(pointer, 1)[0]
    blocks = (job.rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    item = take(pointer, 1)
    while item < blocks * job.shares:
        row = item // job.shares * BLOCK_ROWS
        rows = min(BLOCK_ROWS, job.rows - row)
        x, out = job.x + 4 * row * job.depth, job.out + 4 * row * job.width
        panel = item % job.shares * job.share
        last = min(panel + job.share, job.panels)
        while panel < last:
            weight, place = job.weight + LINE_BYTES * job.depth * panel, out + LINE_BYTES * panel
            if rows <= FEW_ROWS or panel + 1 == last:
                few_rows(x, rows, weight, job.depth, place, job.width)
                panel += 1
            else:
                many_rows(x, rows, weight, job.depth, place, job.width)
                panel += 2
        item = take(pointer, 1)


@cache
def product_loop() -> Loop:
    return Loop(Job, multiply)


def product_job(x: Tensor, panels: Tensor, out: Tensor, threads: int) -> Any:
    """x fp32 [n, in] times a weight laid out [out / 16, in, 16], into out [n, out], both contiguous. `rows`
    is yet to be said.
    """
    count, depth, _ = panels.shape
    share = share_of(count, threads)
    job = Job(x=x.data_ptr(), weight=panels.data_ptr(), out=out.data_ptr(), depth=depth)
    job.panels, job.width, job.share, job.shares = count, count * LANES, share, -(-count // share)
    return job


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
