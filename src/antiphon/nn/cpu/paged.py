"""Paged attention on a CPU: keys and values are read where they lie instead of being gathered first.

On a CPU the reference's copies cost more than its arithmetic. Blocks that lie side by side are a view of the
pages. So a long row's table is cut into runs of neighbouring blocks; long runs are viewed, what is left is
gathered; the order of keys is free, because a decoding row sees them all. Rows that are short or mostly
scattered are gathered together, in groups of about the same length whose copies stay in the cache, head by
head: so that two plain batched products do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.attention import Chunk, PagedBatch, attend_chunk

VIEWED_TOKENS = 64
"""Shorter runs are cheaper gathered than looked at one by one."""

LONG_ROW_TOKENS = 1024
"""Rows with fewer keys, where there are several: copying them costs less than one more call."""

GROUP_TOKENS = 4096
"""Keys of the rows that are gathered together, padding included."""


@dataclass(slots=True)
class Cut:
    """A decoding row: its token, its runs (first slot, one past the last), and slots that lie elsewhere. Rows
    that see the same, one behind the other, are one: keys and values are read once for all their tokens."""

    tokens: slice
    runs: list[tuple[int, int]]
    rest: Tensor | None  # int64 [keys]


@dataclass(slots=True)
class Group:
    """Decoding rows that are gathered together, padded to the longest of them: their tokens, which vectors of
    the pages are their keys, head by head, and what is added to the scores.
    """

    tokens: Tensor  # int64 [rows]
    vectors: Tensor  # int64 [rows * K * keys], of pages [slots * K, d]
    mask: Tensor  # [rows, 1, 1, keys], 0 or -inf


@dataclass(slots=True)
class CutBatch:
    """A batch as this back-end reads it; found once a step, used by every layer."""

    cuts: list[Cut] = field(default_factory=list[Cut])
    groups: list[Group] = field(default_factory=list[Group])
    chunks: list[Chunk] = field(default_factory=list[Chunk])


def cpu_attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch) -> Tensor:
    """q [n, H, d] over pages [blocks, block_size, K, d] that hold this step's keys already -> [n, H, d]."""
    if batch.prepared is None:
        batch.prepared = prepare(batch, k_pages)
    prepared: CutBatch = batch.prepared
    out = torch.empty_like(q)
    keys, values = k_pages.flatten(0, 1), v_pages.flatten(0, 1)
    for cut in prepared.cuts:
        attend_cut(q[cut.tokens], keys, values, cut, out[cut.tokens])
    for group in prepared.groups:
        out[group.tokens] = attend_group(q[group.tokens], k_pages, v_pages, group)
    for chunk in prepared.chunks:
        out[chunk.first : chunk.last] = attend_chunk(q[chunk.first : chunk.last], k_pages, v_pages, chunk)
    return out


def attend_cut(q: Tensor, keys: Tensor, values: Tensor, cut: Cut, out: Tensor) -> None:
    """Queries q [n, H, d] over keys and values [slots, K, d], into out [n, H, d]."""
    (count, heads, dim), kv_heads = q.shape, keys.shape[1]
    by_head = q.view(count, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    grouped, out = by_head.reshape(kv_heads, -1, dim), out.view(count, kv_heads, -1, dim).transpose(0, 1)
    k, v = ([part.transpose(0, 1) for part in parts(pages, cut)] for pages in (keys, values))
    if len(k) == 1:
        attended = F.scaled_dot_product_attention(grouped[None], k[0][None], v[0][None])
        out.copy_(attended.view(by_head.shape))
        return
    scores = torch.cat([torch.bmm(grouped, part.transpose(1, 2)) for part in k], -1)
    shares = (scores * dim**-0.5).softmax(-1).split([part.shape[1] for part in v], -1)
    total = torch.bmm(shares[0], v[0])
    for share, part in zip(shares[1:], v[1:], strict=True):
        total.baddbmm_(share, part)
    out.copy_(total.view(by_head.shape))


def attend_group(q: Tensor, k_pages: Tensor, v_pages: Tensor, group: Group) -> Tensor:
    """One query a row, q [r, H, d]; the H / K heads that share a KV head stand where queries stand."""
    rows, heads, dim = q.shape
    kv_heads = k_pages.shape[2]
    k = k_pages.view(-1, dim).index_select(0, group.vectors).view(rows * kv_heads, -1, dim)
    v = v_pages.view(-1, dim).index_select(0, group.vectors).view(rows * kv_heads, -1, dim)
    grouped = (q * dim**-0.5).view(rows * kv_heads, -1, dim)
    scores = torch.bmm(grouped, k.transpose(1, 2)).view(rows, kv_heads, heads // kv_heads, -1)
    shares = scores.add_(group.mask).softmax(-1)
    return torch.bmm(shares.view(rows * kv_heads, -1, k.shape[1]), v).view(rows, heads, dim)


def parts(pages: Tensor, cut: Cut) -> Iterator[Tensor]:
    """What the row sees of the pages [slots, K, d], in pieces [keys, K, d]."""
    for first, last in cut.runs:
        yield pages[first:last]
    if cut.rest is not None:
        yield pages.index_select(0, cut.rest)


def prepare(batch: PagedBatch, pages: Tensor) -> CutBatch:
    """`pages` are one layer's keys; all are alike."""
    prepared = CutBatch()
    tables, starts = batch.tables.numpy(), batch.starts.numpy()
    together: list[tuple[int, int]] = []
    rows = list(decoding(batch))
    last = -1
    """The row of the last cut."""
    for (row, token), start in zip(rows, starts[[row for row, _ in rows]].tolist(), strict=True):
        length = start + 1
        if length < LONG_ROW_TOKENS and len(rows) > 1:
            together.append((length, row))
            continue
        if prepared.cuts and starts[last] == start and np.array_equal(tables[last], tables[row]):
            cut = prepared.cuts[-1]
            if cut.tokens.stop == token:
                prepared.cuts[-1] = replace(cut, tokens=slice(cut.tokens.start, token + 1))
                last = row
                continue
        cut = cut_row(tables[row], token, length, batch.block_size)
        if cut.rest is not None and 2 * len(cut.rest) > length:
            together.append((length, row))
        else:
            prepared.cuts.append(cut)
            last = row
    prepared.groups = [gather(batch, rows, pages) for rows in in_groups(sorted(together))]
    prepared.chunks = [viewed(chunk) for chunk in batch.chunks()]
    return prepared


def decoding(batch: PagedBatch) -> Iterator[tuple[int, int]]:
    """(row, its token's place in the flat batch) of every row with one query."""
    if batch.is_decode:
        yield from ((row, row) for row in range(len(batch.tables)))
        return
    token = 0
    for row, queries in enumerate(batch.query_lens):
        if queries == 1:
            yield row, token
        token += queries


def cut_row(table: NDArray[np.int64], token: int, length: int, block_size: int) -> Cut:
    """The runs of neighbouring blocks among the first `length` keys of a row's table."""
    table = table[: -(-length // block_size)]
    breaks = np.flatnonzero(np.diff(table) != 1) + 1
    runs: list[tuple[int, int]] = []
    rest: list[NDArray[np.int64]] = []
    for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(table)], strict=True):
        start = int(table[first]) * block_size
        stop = start + min(last * block_size, length) - first * block_size
        if stop - start >= VIEWED_TOKENS or len(breaks) == 0:
            runs.append((start, stop))
        else:
            rest.append(np.arange(start, stop))
    return Cut(slice(token, token + 1), runs, torch.from_numpy(np.concatenate(rest)) if rest else None)


def in_groups(rows: list[tuple[int, int]]) -> Iterator[list[int]]:
    """Rows given as (length, row), short ones first, in groups of at most GROUP_TOKENS keys with padding."""
    group: list[int] = []
    for length, row in rows:
        if group and (len(group) + 1) * length > GROUP_TOKENS:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def gather(batch: PagedBatch, rows: list[int], pages: Tensor) -> Group:
    """These rows' keys, where they lie in pages [blocks, block_size, K, d]."""
    _, size, kv_heads, _ = pages.shape
    index = torch.tensor(rows)
    starts = batch.starts[index]
    width = int(starts.max()) // size + 1
    slots = (batch.tables[index, :width, None] * size + torch.arange(size)).view(len(rows), 1, -1)
    vectors = slots * kv_heads + torch.arange(kv_heads)[:, None]
    mask = torch.zeros(len(rows), width * size, dtype=pages.dtype)
    mask.masked_fill_(torch.arange(width * size) > starts[:, None], -torch.inf)
    return Group(batch.cu[index], vectors.flatten(), mask[:, None, None])


def viewed(chunk: Chunk) -> Chunk:
    """The chunk, its blocks a slice if they lie side by side: then reading them copies nothing."""
    blocks = chunk.blocks
    if isinstance(blocks, slice) or bool((blocks.diff() != 1).any()):
        return chunk
    first = int(blocks[0])
    return replace(chunk, blocks=slice(first, first + len(blocks)))
