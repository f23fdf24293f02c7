"""Attention of longer chunks, prompts mostly, on CPUs with tiles: products of them over panels.

An item is some queries of a chunk with the heads that share a KV head. Its keys are laid out in panels as a
weight is, and so are its values: the scores are one product, what is attended another. What a query doesn't
see adds zeros. In pairs all that is multiplied is rounded to bf16; scores, their softmax and sums are fp32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.attention import PagedBatch
from antiphon.nn.cpu.amx import TILE_TERMS, bytes_of_rows, lay_out_rows, rows_times_by_amx
from antiphon.nn.cpu.blocks import softmax
from antiphon.nn.cpu.compiler import compiled, lanes_of_registers
from antiphon.nn.cpu.openmp import Loop, copy, floats, integers, job_of, take, words
from antiphon.nn.cpu.panels import (
    AMX,
    WHOLE,
    form_in_bf16,
    panels_times,
    panels_times_in_pairs,
    round_numbers,
)
from antiphon.nn.cpu.tiles import LANES, LINE_BYTES, pair_lines

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
Ints = NDArray[np.int64]
Places = tuple[int, int, int, int]
"""Addresses of an item's queries, of panels, of scores, and of what is rounded."""

Sizes = tuple[int, int, int]
"""An item's query heads, keys that its last query sees, and as many as a product is padded to."""

MOST_ROWS = 128
"""Query heads of an item: enough for laying out keys and values to be little beside the products."""

Job = job_of(
    "q out keys values tables chunks",
    "num_chunks items longest tokens num_rows width block_size queries heads kv_heads dim num_slots form",
    "scale",
)
"""`chunks` int64 [num_chunks, 5]: row, first token, tokens, keys before them, first item. An item has at most
`queries` queries; `longest` are the keys of the longest row. `form` is a product's, as its job has it."""


def can_take(block_size: int, dim: int) -> bool:
    """Whether this CPU has tiles, and blocks and heads have the sizes."""
    return lanes_of_registers() > 0 and block_size % LANES == 0 and dim % LANES == 0


@compiled
def lay_out_keys(job: Any, row: int, head: int, count: int, keys: Floats, panels: Floats) -> None:
    """keys [slots * K, d] of one head -> panels [count / 16 * d, 16], count a multiple of 16."""
    table = integers(job.tables, job.num_rows, job.width)[row]
    for first in range(0, count, LANES):
        slot = table[first // job.block_size] * job.block_size + first % job.block_size
        for lane in range(LANES):
            key = keys[(slot + lane) * job.kv_heads + head]
            for i in range(job.dim):
                panels[first // LANES * job.dim + i, lane] = key[i]


@compiled
def lay_out_values(job: Any, row: int, head: int, sizes: Sizes, values: Floats, panels: Floats) -> None:
    """values [slots * K, d] of one head -> panels [d / 16 * padded, 16]; zeros behind them: what another
    request left in the rest of a block may be no number, which a share of 0 does not hide."""
    table, (_, seen, padded) = integers(job.tables, job.num_rows, job.width)[row], sizes
    for place in range(seen):
        slot = table[place // job.block_size] * job.block_size + place % job.block_size
        value = values[slot * job.kv_heads + head]
        for part in range(job.dim // LANES):
            for lane in range(LANES):
                panels[part * padded + place, lane] = value[part * LANES + lane]
    for part in range(job.dim // LANES):
        panels[part * padded + seen : (part + 1) * padded] = np.float32(0)


@compiled
def lay_out_key_pairs(job: Any, row: int, head: int, count: int, panels: Words) -> None:
    """keys of one head as bf16 -> panels [count / 16 * d / 2, 16], a word for two of a key's numbers; zeros
    behind them."""
    table, pairs = integers(job.tables, job.num_rows, job.width)[row], job.dim // 2
    key = np.empty(pairs, np.uint32)
    for first in range(0, count, LANES):
        slot = table[first // job.block_size] * job.block_size + first % job.block_size
        for lane in range(LANES):
            place = ((slot + lane) * job.kv_heads + head) * job.dim
            round_numbers(job.keys + 4 * place, job.dim, key.ctypes.data)
            for i in range(pairs):
                panels[first // LANES * pairs + i, lane] = key[i]
    panels[count // LANES * pairs :] = np.uint32(0)


@compiled
def lay_out_value_pairs(job: Any, row: int, head: int, sizes: Sizes, panels: int) -> None:
    """values of one head as bf16 -> panels, an address, [d / 16 * padded / 2, 16], a word for two neighbours'
    numbers; zeros behind them, as in `lay_out_values`."""
    table, (_, seen, padded) = integers(job.tables, job.num_rows, job.width)[row], sizes
    for place in range(0, seen, 2):
        slot = table[place // job.block_size] * job.block_size + place % job.block_size
        value = job.values + 4 * (slot * job.kv_heads + head) * job.dim
        following = value + 4 * job.kv_heads * job.dim
        for part in range(job.dim // LANES):
            across = LINE_BYTES * part
            pair_lines(value + across, following + across, panels + LINE_BYTES * (part * padded + place) // 2)
    lines = words(panels, job.dim // LANES * padded // 2, LANES)
    for part in range(job.dim // LANES):
        first, behind = (part * padded + seen) // 2, (part * padded + seen + 1) // 2
        for lane in range(LANES * (behind - first)):  # the last value's words: its neighbour is another's
            lines[first, lane] &= np.uint32(0xFFFF)
        lines[behind : (part + 1) * padded // 2] = np.uint32(0)


@compiled
def times_in_bf16(
    job: Any, x: int, spare: int, rows: int, panels: int, depth: int, count: int, out: int
) -> None:
    """Addresses: fp32 x [rows, depth], rounded into `spare`, times panels of pairs [count, depth, 16], into
    out."""
    width = count * LANES
    if job.form == AMX:
        lay_out_rows(x, rows, depth, spare)
        rows_times_by_amx(spare, rows, panels, depth, count, out, width, 0, (0, 0), np.empty(1, np.int64))
    else:
        round_numbers(x, rows * depth, spare)
        panels_times_in_pairs(spare, rows, panels, depth, count, out, width)


@compiled
def score_keys(job: Any, row: int, head: int, sizes: Sizes, places: Places) -> None:
    """The products of the queries with the first keys of a head."""
    (rows, seen, padded), (x, panels, scores, spare) = sizes, places
    keys, count = floats(job.keys, job.num_slots * job.kv_heads, job.dim), padded // LANES
    if job.form != WHOLE:
        held = (seen + LANES - 1) // LANES * LANES
        lay_out_key_pairs(job, row, head, held, words(panels, count * job.dim // 2, LANES))
        times_in_bf16(job, x, spare, rows, panels, job.dim, count, scores)
    else:
        lay_out_keys(job, row, head, padded, keys, floats(panels, count * job.dim, LANES))
        panels_times(x, rows, panels, job.dim, count, scores, padded)


@compiled
def mix_values(job: Any, row: int, head: int, sizes: Sizes, places: Places) -> None:
    """The sums of the first values of a head by the queries' shares, in the place of the queries."""
    (rows, _, padded), (x, panels, shares, spare) = sizes, places
    values, count = floats(job.values, job.num_slots * job.kv_heads, job.dim), job.dim // LANES
    if job.form != WHOLE:
        lay_out_value_pairs(job, row, head, sizes, panels)
        times_in_bf16(job, shares, spare, rows, panels, padded, count, x)
    else:
        lay_out_values(job, row, head, sizes, values, floats(panels, count * padded, LANES))
        panels_times(shares, rows, panels, padded, count, x, job.dim)


@compiled
def padded_to(job: Any, keys: int) -> int:
    """As many keys as the products of so many are padded to."""
    part = TILE_TERMS if job.form == AMX else LANES
    return (keys + part - 1) // part * part


@compiled
def attend_queries(job: Any, chunk: Ints, first: int, head: int, address: int) -> None:
    """Some queries of a chunk, from `first` on, over one KV head, computed in the memory at `address`."""
    count, group = min(job.queries, chunk[2] - first), job.heads // job.kv_heads
    seen, rows = chunk[3] + first + 1, count * group
    padded = padded_to(job, seen + count - 1)
    panels = address + 4 * rows * job.dim
    scores = panels + 4 * padded * job.dim
    sizes, places = (rows, seen + count - 1, padded), (address, panels, scores, scores + 4 * rows * padded)
    x, marks = floats(address, rows, job.dim), floats(scores, rows, padded)
    q = floats(job.q, job.tokens * job.heads, job.dim)
    out = floats(job.out, job.tokens * job.heads, job.dim)
    start = (chunk[1] + first) * job.heads + head * group
    for i in range(count):
        for h in range(group):
            copy(q[start + i * job.heads + h], x[i * group + h])
    score_keys(job, chunk[0], head, sizes, places)
    for r in range(rows):
        softmax(marks[r], seen + r // group, job.scale)
        marks[r, seen + r // group :] = np.float32(0)
    mix_values(job, chunk[0], head, sizes, places)
    for i in range(count):
        for h in range(group):
            copy(x[i * group + h], out[start + i * job.heads + h])


def attend_chunks(pointer: Any) -> None:
    """The loop's body."""
    job = carray(pointer, 1)[0]
    chunks = integers(job.chunks, job.num_chunks, 5)
    rows = job.queries * (job.heads // job.kv_heads)
    padded = padded_to(job, job.longest)
    spare = bytes_of_rows(rows, max(job.dim, padded)) if job.form != WHOLE else 0
    numel = rows * job.dim + padded * job.dim + rows * padded + spare // 4
    memory = np.empty(LANES + numel, np.float32)
    address = (memory.ctypes.data + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    item, c = take(pointer, 1), 0
    while item < job.items:
        while c + 1 < job.num_chunks and chunks[c + 1, 4] <= item:
            c += 1
        part = item - chunks[c, 4]
        attend_queries(job, chunks[c], part // job.kv_heads * job.queries, part % job.kv_heads, address)
        item = take(pointer, 1)
    memory[0] = 0  # an address keeps nothing alive


@cache
def chunk_loop() -> Loop:
    return Loop(Job, attend_chunks)


def chunk_job(q: Tensor, heads: tuple[int, int], out: Tensor, *, rounds: bool = False) -> Any:
    """A layer's: queries fp32 [n, H, d] with heads (H, K) that are turned already, of chunks whose keys and
    values are in their pages; out [n, H, d] becomes the attention of these tokens, others are left. rounds:
    what is multiplied is rounded to bf16, on a CPU that `has_pairs`."""
    job = Job(q=q.data_ptr(), out=out.data_ptr(), heads=heads[0], kv_heads=heads[1], dim=q.shape[-1])
    job.scale, job.form = q.shape[-1] ** -0.5, form_in_bf16(job.dim) if rounds else WHOLE
    job.queries = max(1, MOST_ROWS * heads[1] // heads[0])
    return job


class Chunks:
    """A batch's rows of more than one token, for all layers that read through it."""

    def __init__(self, batch: PagedBatch, layer: Any) -> None:
        """layer: any layer's job, for its sizes."""
        self._table, self._tables = chunks_of(batch, layer.queries, layer.kv_heads), batch.tables.contiguous()
        self.items = int(self._table[-1, 4])
        self._longest = int((self._table[:-1, 2] + self._table[:-1, 3]).max(initial=0))
        self._tokens, self._block_size = len(batch.slots), batch.block_size

    def put_into(self, job: Any) -> None:
        """A layer's job is now about this batch."""
        job.tables, job.chunks = self._tables.data_ptr(), self._table.ctypes.data
        job.num_rows, job.width = self._tables.shape
        job.num_chunks, job.items, job.longest = len(self._table) - 1, self.items, self._longest
        job.tokens, job.block_size = self._tokens, self._block_size


def chunks_of(batch: PagedBatch, queries: int, kv_heads: int) -> Ints:
    """As `Job` has them, and one more for the end: [chunks + 1, 5]."""
    counts = torch.diff(batch.cu).numpy()
    rows = np.flatnonzero(counts > 1)
    parts = -(-counts[rows] // queries) * kv_heads
    table = np.zeros((len(rows) + 1, 5), np.int64)
    table[:-1, 0], table[:-1, 1], table[:-1, 2] = rows, batch.cu.numpy()[rows], counts[rows]
    table[:-1, 3], table[1:, 4] = batch.starts.numpy()[rows], parts.cumsum()
    return table
