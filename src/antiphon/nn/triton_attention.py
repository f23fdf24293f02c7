"""Paged attention in Triton behind the interface of the reference: nothing is gathered, keys and values are
read through the block tables, where they lie.

One kernel serves all rows. A tile is some queries of one row with all heads that share a KV head, so that a
key is read once for all of them. A row of one query is one tile; its keys are split among programs whose
parts a second kernel puts together (flash-decoding). How a decode batch is split follows from the width of
its tables alone, so that nothing waits for the device.

Arithmetic is fp32 whatever the inputs are; products of fp32 inputs are not rounded to TF32.
Unverified: run in Triton's interpreter and compiled for sm_80 and sm_90, never run on an accelerator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from antiphon.nn.attention import PagedBatch
from antiphon.nn.uploads import upload

SPLIT_TOKENS = 512
"""Keys of one split of a decoding row; more per split where that would be more than MAX_SPLITS."""

MAX_SPLITS = 32
CHUNK_ENTRIES = 64
"""Queries times heads of a tile of a row with many queries; more where one query has more heads."""

MIN_SIDE = 16
"""The least side of a matrix product on tensor cores."""

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of one launch: their rows and the first query of each, int64 [tiles], and the splits of each."""

    rows: Tensor
    firsts: Tensor
    splits: int


@dataclass(frozen=True, slots=True)
class TritonBatch:
    """A batch as the kernels read it; found once a step, used by every layer."""

    singles: Tiles | None
    chunks: Tiles | None


class TritonAttention:
    """The back-end of one stage. Its first call compiles all the variants that later batches may need: nobody
    waits for a compiler in the middle of a conversation."""

    def __init__(self) -> None:
        self._compiled: set[tuple[object, ...]] = set()

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch) -> Tensor:
        shape = q.dtype, *q.shape[1:], *k_pages.shape[1:]
        if shape not in self._compiled:
            compile_variants(q, k_pages, v_pages)
            self._compiled.add(shape)
        return triton_attention(q, k_pages, v_pages, batch)


def compile_variants(q: Tensor, k_pages: Tensor, v_pages: Tensor) -> None:
    """Rows of one query whose keys are cut into 1, 2, 4 … MAX_SPLITS, and a row of two queries, all over the
    first block of these pages."""
    block_size = k_pages.shape[1]
    splits = [1 << power for power in range(MAX_SPLITS.bit_length())]
    for queries, length in [(2, 2), *((1, count * SPLIT_TOKENS) for count in splits)]:
        table = np.zeros((1, -(-length // block_size)), np.int64)
        batch = PagedBatch.build([queries], [length - queries], table, block_size, q.device)
        triton_attention(q[:1].expand(queries, -1, -1), k_pages, v_pages, batch)


def triton_attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch) -> Tensor:
    """q [n, H, d] over pages [blocks, block_size, K, d] that hold this step's keys already -> [n, H, d].

    d is a power of two, at most 256. All of q, keys and values are fp32, fp16 or bf16.
    """
    group = q.shape[1] // k_pages.shape[2]
    entries = max(CHUNK_ENTRIES, padded(group))
    if batch.prepared is None:
        batch.prepared = prepare(batch, entries // group)
    prepared: TritonBatch = batch.prepared
    q = q.contiguous()
    out = torch.empty_like(q)
    pages = k_pages, v_pages
    with torch.cuda.device_of(q):  # Triton launches on the current device, wherever its tensors are
        if prepared.singles is not None:
            attend_split(q, pages, batch, prepared.singles, out)
        if prepared.chunks is not None:
            attend_tiles(q, pages, batch, prepared.chunks, entries, out, None)
    return out


def prepare(batch: PagedBatch, queries_per_tile: int) -> TritonBatch:
    device = batch.tables.device
    if batch.is_decode:
        rows = torch.arange(len(batch.tables), device=device)
        return TritonBatch(Tiles(rows, torch.zeros_like(rows), splits_of(batch)), None)
    singles = [row for row, length in enumerate(batch.query_lens) if length == 1]
    chunks = [
        (row, first)
        for row, length in enumerate(batch.query_lens)
        if length > 1
        for first in range(0, length, queries_per_tile)
    ]
    return TritonBatch(
        tiles([(row, 0) for row in singles], splits_of(batch), device), tiles(chunks, 1, device)
    )


def padded(count: int) -> int:
    """The next power of two: what Triton's blocks measure."""
    return 1 << (count - 1).bit_length()


def tiles(places: list[tuple[int, int]], splits: int, device: torch.device) -> Tiles | None:
    """Tiles given as (row, first query)."""
    if not places:
        return None
    rows, firsts = upload(places, device).unbind(1)
    return Tiles(rows.contiguous(), firsts.contiguous(), splits)


def splits_of(batch: PagedBatch) -> int:
    """Among how many programs the keys of a decoding row are divided."""
    return min(MAX_SPLITS, max(1, -(-batch.tables.shape[1] * batch.block_size // SPLIT_TOKENS)))


def attend_split(
    q: Tensor, pages: tuple[Tensor, Tensor], batch: PagedBatch, singles: Tiles, out: Tensor
) -> None:
    """Rows of one query, into their places of out [n, H, d]."""
    tokens, heads, dim = q.shape
    entries = max(MIN_SIDE, padded(heads // pages[0].shape[2]))
    if singles.splits == 1:
        attend_tiles(q, pages, batch, singles, entries, out, None)
        return
    parts = q.new_empty((singles.splits, tokens, heads, dim), dtype=torch.float32)
    logs = q.new_empty((singles.splits, tokens, heads), dtype=torch.float32)
    attend_tiles(q, pages, batch, singles, entries, parts, logs)
    combine[(len(singles.rows), heads)](
        parts,
        logs,
        out,
        batch.cu,
        singles.rows,
        tokens,
        heads,
        singles.splits,
        DIM=dim,
        PADDED_SPLITS=padded(singles.splits),
    )


def attend_tiles(
    q: Tensor,
    pages: tuple[Tensor, Tensor],
    batch: PagedBatch,
    chosen: Tiles,
    entries: int,
    out: Tensor,
    logs: Tensor | None,
) -> None:
    """These tiles, of `entries` queries times heads, into out [n, H, d]; with `logs` [splits, n, H], each
    split into its own part of out [splits, n, H, d]."""
    tokens, heads, dim = q.shape
    keys, values = pages
    assert keys.stride() == values.stride(), "keys and values are laid out alike"
    # a tile of keys and one of values lie in shared memory at once
    width = 32 if dim * q.element_size() > 256 else 64
    attend[(len(chosen.rows), keys.shape[2], chosen.splits)](
        q,
        keys,
        values,
        out,
        out if logs is None else logs,
        batch.cu,
        batch.starts,
        batch.tables,
        chosen.rows,
        chosen.firsts,
        batch.tables.stride(0),
        *keys.stride(),
        tokens,
        batch.tables.shape[1] * batch.block_size,
        dim**-0.5 * LOG2_E,
        HEADS=heads,
        GROUP=heads // keys.shape[2],
        DIM=dim,
        PADDED_DIM=max(MIN_SIDE, dim),
        BLOCK_SIZE=batch.block_size,
        ENTRIES=entries,
        WIDTH=width,
        SPLIT=logs is not None,
    )


@triton.jit(do_not_specialize=["table_stride", "num_tokens", "capacity"])
def attend_kernel(
    q,
    k_pages,
    v_pages,
    out,
    logs,
    cu,
    starts,
    tables,
    tile_rows,
    tile_firsts,
    table_stride,
    block_stride,
    token_stride,
    head_stride,
    dim_stride,
    num_tokens,
    capacity,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One tile, one KV head, one split of its keys: softmax on the run, in base 2 (`scale` has log2 e)."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(tile_rows + tile)
    first = tl.load(cu + row)
    num_queries = tl.load(cu + row + 1) - first
    cached = tl.load(starts + row)

    entry = tl.arange(0, ENTRIES)
    query = tl.load(tile_firsts + tile) + entry // GROUP
    # a tile takes whole queries: entries past the last of them are padding
    real = (entry < ENTRIES // GROUP * GROUP) & (query < num_queries)
    dims = tl.arange(0, PADDED_DIM)
    here = dims < DIM
    place = (first + query) * HEADS + kv_head * GROUP + entry % GROUP
    x = tl.load(q + place[:, None] * DIM + dims[None, :], mask=real[:, None] & here[None, :], other=0.0)

    last_query = tl.minimum(tl.load(tile_firsts + tile) + ENTRIES // GROUP, num_queries)
    length = cached + last_query
    per_split = tl.cdiv(tl.cdiv(capacity, tl.num_programs(2)), WIDTH) * WIDTH
    begin = split * per_split
    end = tl.minimum(begin + per_split, length)

    most = tl.full([ENTRIES], float("-inf"), tl.float32)
    mass = tl.zeros([ENTRIES], tl.float32)
    total = tl.zeros([ENTRIES, PADDED_DIM], tl.float32)
    for at in range(begin, end, WIDTH):
        key = at + tl.arange(0, WIDTH)
        known = key < length
        block = tl.load(tables + row * table_stride + key // BLOCK_SIZE, mask=known, other=0)
        slot = block * block_stride + (key % BLOCK_SIZE) * token_stride + kv_head * head_stride
        where = slot[:, None] + dims[None, :] * dim_stride
        inside = known[:, None] & here[None, :]
        k = tl.load(k_pages + where, mask=inside, other=0.0)
        scores = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
        seen = known[None, :] & (key[None, :] <= (cached + query)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(most, tl.max(scores, 1))
        # a row that has seen nothing yet has a peak of -inf, which must not be subtracted from itself
        level = tl.where(peak == float("-inf"), 0.0, peak)
        shares = tl.exp2(scores - level[:, None])
        fade = tl.exp2(most - level)
        mass = mass * fade + tl.sum(shares, 1)
        v = tl.load(v_pages + where, mask=inside, other=0.0)
        total = total * fade[:, None] + tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        most = peak

    divisor = tl.where(mass == 0.0, 1.0, mass)
    into = place
    if SPLIT:
        into = split.to(tl.int64) * num_tokens * HEADS + place
        tl.store(logs + into, tl.where(mass == 0.0, float("-inf"), most + tl.log2(divisor)), mask=real)
    result = (total / divisor[:, None]).to(out.dtype.element_ty)
    tl.store(out + into[:, None] * DIM + dims[None, :], result, mask=real[:, None] & here[None, :])


@triton.jit(do_not_specialize=["num_tokens", "num_splits"])
def combine_kernel(
    parts,
    logs,
    out,
    cu,
    tile_rows,
    num_tokens,
    num_heads,
    num_splits,
    DIM: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
):
    """One query and head: the splits' parts, each weighted by the mass that it saw."""
    token = tl.load(cu + tl.load(tile_rows + tl.program_id(0)))
    splits, dims = tl.arange(0, PADDED_SPLITS), tl.arange(0, DIM)
    place = token * num_heads + tl.program_id(1)
    where = splits.to(tl.int64) * num_tokens * num_heads + place
    mine = splits < num_splits
    log = tl.load(logs + where, mask=mine, other=float("-inf"))
    weight = tl.exp2(log - tl.max(log, 0))
    part = tl.load(parts + where[:, None] * DIM + dims[None, :], mask=mine[:, None], other=0.0)
    result = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + place * DIM + dims, result.to(out.dtype.element_ty))


# a kernel is launched by indexing it with its grid, which type checkers don't know
attend: Any = attend_kernel
combine: Any = combine_kernel
