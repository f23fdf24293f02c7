"""Attention of single tokens on a CPU, fp32: keys and values are read in place, where they lie in the pages.

One pass a token: its query and key heads are normalised and turned, its key and value are written to their
slot, and it attends to its row's keys. A row's result depends on that row alone, to the bit. Tokens of longer
chunks are only turned and written; what attends for them is torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.attention import PagedBatch
from antiphon.nn.cpu.blocks import attend_blocks, can_take
from antiphon.nn.cpu.compiler import compiled
from antiphon.nn.cpu.kv_prefetch import NO_BLOCKS, blocks_read
from antiphon.nn.cpu.openmp import Loop, copy, floats, integers, job_of, prefetch, take
from antiphon.nn.cpu.rows import exp

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

AHEAD = 4
"""Keys are asked for so many keys before they are needed: the memory's own guess ends with every page."""

LINE = 16
"""fp32 numbers in a cache line."""

Job = job_of(
    "qkv bias weight q out keys values tables rows seen slots cos sin",
    "tokens num_rows width share block_size by_blocks heads kv_heads dim num_slots",
    "eps scale",
)
"""From `tables` to `by_blocks` it is the batch's, the rest a layer's."""

BATCH = Job.tables.offset, Job.heads.offset - Job.tables.offset
"""Where a batch's part begins, and its bytes."""


@compiled
def turn_head(x: Floats, cos: Floats, sin: Floats, out: Floats) -> None:
    """One head x [d] turned by cos and signed sin [d], into out [d]."""
    half = len(x) // 2
    for i in range(half):
        low, high = x[i], x[half + i]
        out[i] = low * cos[i] + high * sin[i]
        out[half + i] = high * cos[half + i] + low * sin[half + i]


@compiled
def norm_and_turn_head(
    x: Floats, weight: Floats, cos: Floats, sin: Floats, eps: np.float32, out: Floats
) -> None:
    """RMSNorm of one head x [d] times weight [d], turned by cos and signed sin [d], into out [d]."""
    dim = len(x)
    half = dim // 2
    squares = np.float32(0)
    for i in range(dim):
        squares += x[i] * x[i]
    scale = np.float32(1) / np.sqrt(squares / np.float32(dim) + eps)
    for i in range(half):
        low, high = x[i] * scale * weight[i], x[half + i] * scale * weight[half + i]
        out[i] = low * cos[i] + high * sin[i]
        out[half + i] = high * cos[half + i] + low * sin[half + i]


@compiled
def slots_of(table: Ints, seen: int, block_size: int) -> Ints:
    """Where a row's first `seen` keys lie, [seen rounded up to 4]; the last one fills what is over."""
    slots = np.empty((seen + 3) // 4 * 4, np.int64)
    for block in range((seen + block_size - 1) // block_size):
        first, start = table[block] * block_size, block * block_size
        for i in range(min(block_size, seen - start)):
            slots[start + i] = first + i
    slots[seen:] = slots[seen - 1]
    return slots


@compiled
def fetch(pages: Floats, slots: Ints, place: int, kv_heads: int, first: int, count: int) -> None:
    """Ask for `count` KV heads of the four keys from `place` on."""
    dim = pages.shape[1]
    for p in range(place, min(place + 4, len(slots))):
        start = (slots[p] * kv_heads + first) * dim
        for i in range(start, start + count * dim, LINE):
            prefetch(pages, i)


@compiled
def score(q: Floats, keys: Floats, slots: Ints, heads: tuple[int, int, int], scores: Floats) -> None:
    """scores [h, keys]: q [h, d] times the keys [slots * K, d], four at a time; heads is (K, first, count)
    of the KV heads that belong to q.
    """
    kv_heads, first, count = heads
    group, dim = len(q) // count, q.shape[1]
    for p in range(0, len(slots), 4):
        fetch(keys, slots, p + AHEAD, kv_heads, first, count)
        k0, k1 = slots[p] * kv_heads + first, slots[p + 1] * kv_heads + first
        k2, k3 = slots[p + 2] * kv_heads + first, slots[p + 3] * kv_heads + first
        for h in range(len(q)):
            s0 = s1 = s2 = s3 = np.float32(0)
            k = h // group
            for i in range(dim):
                x = q[h, i]
                s0 += x * keys[k0 + k, i]
                s1 += x * keys[k1 + k, i]
                s2 += x * keys[k2 + k, i]
                s3 += x * keys[k3 + k, i]
            scores[h, p], scores[h, p + 1], scores[h, p + 2], scores[h, p + 3] = s0, s1, s2, s3


@compiled
def softmax(scores: Floats, seen: int, scale: np.float32) -> None:
    """Of the first `seen` scores [keys] times scale, in place; the others become 0."""
    highest, total = scores[0], np.float32(0)
    for p in range(seen):
        highest = max(highest, scores[p])
    for p in range(seen):
        scores[p] = exp((scores[p] - highest) * scale)
        total += scores[p]
    for p in range(seen):
        scores[p] /= total
    scores[seen:] = np.float32(0)


@compiled
def mix(shares: Floats, values: Floats, slots: Ints, heads: tuple[int, int, int], out: Floats) -> None:
    """out [h, d]: the values [slots * K, d], each by its share [h, keys], four at a time."""
    kv_heads, first, count = heads
    group, dim = len(out) // count, out.shape[1]
    out[:] = np.float32(0)
    for p in range(0, len(slots), 4):
        fetch(values, slots, p + AHEAD, kv_heads, first, count)
        v0, v1 = slots[p] * kv_heads + first, slots[p + 1] * kv_heads + first
        v2, v3 = slots[p + 2] * kv_heads + first, slots[p + 3] * kv_heads + first
        for h in range(len(out)):
            s0, s1, s2, s3 = shares[h, p], shares[h, p + 1], shares[h, p + 2], shares[h, p + 3]
            k = h // group
            for i in range(dim):
                near = s0 * values[v0 + k, i] + s1 * values[v1 + k, i]
                out[h, i] += near + s2 * values[v2 + k, i] + s3 * values[v3 + k, i]


@compiled
def add_bias(job: Any, x: Floats, head: int) -> None:
    """To one head of x [heads, d], where there is one."""
    if job.bias:
        bias = floats(job.bias, len(x), job.dim)
        for i in range(job.dim):
            x[head, i] += bias[head, i]


@compiled
def turn_one(job: Any, x: Floats, head: int, cos: Floats, sin: Floats, out: Floats) -> None:
    """One query or key head of a token's x [heads, d], normalised where there is a weight for it."""
    add_bias(job, x, head)
    if job.weight:
        weight = floats(job.weight, job.heads + job.kv_heads, job.dim)
        norm_and_turn_head(x[head], weight[head], cos, sin, job.eps, out)
    else:
        turn_head(x[head], cos, sin, out)


@compiled
def turn_token(job: Any, token: int, first: int, keys: Floats, values: Floats, q: Floats) -> None:
    """Query heads of one token into q, key and value of its KV heads from `first` on into their slot."""
    num_heads, kv_heads, dim = job.heads, job.kv_heads, job.dim
    group, width = num_heads // kv_heads, num_heads + 2 * kv_heads
    x = floats(job.qkv, job.tokens * width, dim)[token * width : (token + 1) * width]
    cos, sin = floats(job.cos, job.tokens, dim)[token], floats(job.sin, job.tokens, dim)[token]
    slot = integers(job.slots, 1, job.tokens)[0, token] * kv_heads
    for h in range(first * group, (first + job.share) * group):
        turn_one(job, x, h, cos, sin, q[token * num_heads + h])
    for k in range(first, first + job.share):
        turn_one(job, x, num_heads + k, cos, sin, keys[slot + k])
        at = num_heads + kv_heads + k
        add_bias(job, x, at)
        copy(x[at], values[slot + k])


@compiled
def attend_token(job: Any, token: int, first: int, keys: Floats, values: Floats, q: Floats) -> None:
    """Query heads of one token that belong to the KV heads from `first` on."""
    seen = integers(job.seen, 1, job.tokens)[0, token]
    if seen == 0:
        return
    row = integers(job.rows, 1, job.tokens)[0, token]
    if job.by_blocks:
        attend_blocks(job, token, row, seen, first)
        return
    slots = slots_of(integers(job.tables, job.num_rows, job.width)[row], seen, job.block_size)
    group, heads = job.heads // job.kv_heads, (job.kv_heads, first, job.share)
    start = token * job.heads + first * group
    mine = slice(start, start + job.share * group)
    scores = np.empty((job.share * group, len(slots)), np.float32)
    score(q[mine], keys, slots, heads, scores)
    for h in range(len(scores)):
        softmax(scores[h], seen, job.scale)
    mix(scores, values, slots, heads, floats(job.out, job.tokens * job.heads, job.dim)[mine])


def attend_tokens(pointer: Any) -> None:
    """The loop's body: an item is a token, or a part of its heads where tokens are few."""
    job = carray(pointer, 1)[0]
    keys = floats(job.keys, job.num_slots * job.kv_heads, job.dim)
    values = floats(job.values, job.num_slots * job.kv_heads, job.dim)
    q = floats(job.q, job.tokens * job.heads, job.dim)
    parts = job.kv_heads // job.share
    item = take(pointer, 1)
    while item < job.tokens * parts:
        token, first = item // parts, item % parts * job.share
        turn_token(job, token, first, keys, values, q)
        attend_token(job, token, first, keys, values, q)
        item = take(pointer, 1)


@cache
def attention_loop() -> Loop:
    return Loop(Job, attend_tokens)


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """A batch as the loop reads it: of every token its row, and how many keys it sees, 0 in longer chunks."""

    rows: Tensor  # int64 [n]
    seen: Tensor  # int64 [n]


def singles_of(batch: PagedBatch) -> CountedTokens:
    if batch.is_decode:
        return CountedTokens(torch.arange(len(batch.tables)), batch.starts + 1)
    queries = batch.cu.diff()
    rows = torch.repeat_interleave(torch.arange(len(queries)), queries)
    return CountedTokens(rows, torch.where(queries == 1, batch.starts + 1, 0)[rows])


class SingleTokens:
    """A batch, for the attention of all layers that read through it."""

    def __init__(self, batch: PagedBatch, turns: tuple[Tensor, Tensor], layer: Any, threads: int) -> None:
        """turns: cos and signed sin fp32 [n, d]; layer: any layer's job, for the sizes of its heads."""
        singles, tables, slots = singles_of(batch), batch.tables.contiguous(), batch.slots.contiguous()
        by_blocks = can_take(batch.block_size, layer.dim)
        cos, sin = (turn.contiguous() for turn in turns)
        self._held = singles, tables, slots, cos, sin
        self._part = Job(
            tables=tables.data_ptr(),
            rows=singles.rows.data_ptr(),
            seen=singles.seen.data_ptr(),
            slots=slots.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            tokens=len(slots),
            num_rows=len(tables),
            width=tables.shape[1],
            share=layer.kv_heads if len(slots) >= 2 * threads else 1,
            block_size=batch.block_size,
            by_blocks=by_blocks,
        )
        self._blocks = blocks_read(batch) if by_blocks else NO_BLOCKS

    def put_into(self, job: Any, soon: Any) -> None:
        """A layer's job is now about this batch, and what is asked for before it."""
        soon.blocks, soon.num_blocks = self._blocks.ctypes.data, len(self._blocks)
        first, size = BATCH
        ctypes.memmove(ctypes.addressof(job) + first, ctypes.addressof(self._part) + first, size)


def over_pages(jobs: Sequence[Any], soon: Any, pages: tuple[Tensor, Tensor]) -> None:
    """A layer's jobs, of single tokens and of longer chunks, and what is asked for before them are now about
    these pages [blocks, block_size, K, d]."""
    keys, values = pages
    for told in (*jobs, soon):
        told.keys, told.values = keys.data_ptr(), values.data_ptr()
    for job in jobs:
        job.num_slots = keys.shape[0] * keys.shape[1]
    soon.block_bytes = keys[0].nbytes


def attention_job(qkv: Tensor, heads: tuple[int, int], q: Tensor, out: Tensor) -> Any:
    """A layer's: qkv fp32 [n, (H + 2K) d] with heads (H, K); q [n, H, d] becomes the queries; new keys and
    values go to their slots; out [n, H, d] becomes the attention, but for tokens of longer chunks, which are
    left. `weight` (of the norms, [H + K, d]), `bias` (of qkv) and their epsilon may be set.
    """
    dim = q.shape[-1]
    job = Job(qkv=qkv.data_ptr(), q=q.data_ptr(), out=out.data_ptr(), heads=heads[0], kv_heads=heads[1])
    job.dim, job.scale = dim, dim**-0.5
    return job
