"""Attention over a paged KV cache: the torch reference that every back-end must agree with.

One step is one flat batch of query tokens of many sequences (rows). The new keys and values are written to
their slots first; then each row attends to everything it has cached, its own new tokens causally. Rows with
one query token are computed together, whatever their lengths; rows with more (prefill) one after the other.

Pages must hold finite numbers everywhere (allocate them zeroed): padding is masked, not skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphon.nn.uploads import upload

Attention = Callable[[Tensor, Tensor, Tensor, "PagedBatch"], Tensor]
"""(q [n, H, d], k_pages, v_pages, batch) -> [n, H, d]. One batch is read by one back-end only."""


@dataclass(slots=True)
class Chunk:
    """A row of more than one query token: its half-open range of queries, its blocks, what each query may
    see.
    """

    row: int
    first: int
    last: int
    blocks: Tensor | slice  # int64 [blocks of the row], or a slice where they lie side by side
    length: int  # keys after this step
    mask: Tensor | None  # bool [last - first, length]; None where plain causal


@dataclass(slots=True)
class Singles:
    """The rows of exactly one query token, together."""

    rows: Tensor | None  # int64 [rows], which of the batch's; None when they are all of them
    tokens: Tensor | None  # int64 [rows], their place in the flat batch; None when they ARE the batch
    tables: Tensor  # int64 [rows, max_blocks]
    mask: Tensor  # [rows, 1, 1, max_blocks * block_size], bool, or what is added to the scores


@dataclass(slots=True)
class PagedBatch:
    """One step's flat batch, n query tokens over r rows. Built by the engine, read by every layer.

    Row i's queries are tokens cu[i] : cu[i + 1]; they continue starts[i] cached tokens. `query_lens` and
    `cached_lens` repeat cu and starts on the host, so that a prefill doesn't wait for the device; a batch in
    which every row has one query doesn't need them.
    """

    cu: Tensor  # int64 [r + 1]
    starts: Tensor  # int64 [r]
    tables: Tensor  # int64 [r, max_blocks], padded with 0
    slots: Tensor  # int64 [n], block * block_size + offset where each new token is written
    block_size: int
    query_lens: tuple[int, ...] = ()
    cached_lens: tuple[int, ...] = ()
    _twin: PagedBatch | None = field(default=None, repr=False)
    prepared: Any = field(default=None, repr=False)
    """What the back-end that reads this batch has found out about it; its own matter."""
    _singles: Singles | None = field(default=None, repr=False)
    _chunks: list[Chunk] | None = field(default=None, repr=False)

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        cached_lens: Sequence[int],
        tables: Sequence[Sequence[int]] | NDArray[np.int64],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> PagedBatch:
        """From what the scheduler knows: tokens now, tokens cached and the block table of each row."""
        queries, cached = np.asarray(query_lens, np.int64), np.asarray(cached_lens, np.int64)
        blocks, slots = lay_out(queries, cached, tables, block_size)
        cu = np.concatenate((np.zeros(1, np.int64), queries.cumsum()))
        lengths = tuple(queries.tolist()), tuple(cached.tolist())
        tensors = [upload(a, device) for a in (cu, cached, blocks, slots)]
        return cls(tensors[0], tensors[1], tensors[2], tensors[3], block_size, *lengths)

    def retabled(self, tables: Sequence[Sequence[int]] | NDArray[np.int64]) -> PagedBatch:
        """A batch of these queries over the block tables of another KV group, which shares with this one what
        depends on the queries alone. Needs the lengths on the host.
        """
        queries, cached = np.asarray(self.query_lens, np.int64), np.asarray(self.cached_lens, np.int64)
        blocks, slots = lay_out(queries, cached, tables, self.block_size)
        device = self.tables.device
        return PagedBatch(
            self.cu,
            self.starts,
            upload(blocks, device),
            upload(slots, device),
            self.block_size,
            self.query_lens,
            self.cached_lens,
            self,
        )

    @property
    def is_decode(self) -> bool:
        """Every row has exactly one query token."""
        return self.slots.shape[0] == self.tables.shape[0]

    def singles(self) -> Singles | None:
        """The rows of one query token, or None; found once a step."""
        if self._singles is None:
            if self._twin is not None:
                self._singles = self._share_singles(self._twin.singles())
            elif self.is_decode:
                self._singles = self._gather_singles(None)
            else:
                rows = [row for row, length in enumerate(self.query_lens) if length == 1]
                self._singles = self._gather_singles(rows) if rows else None
        return self._singles

    def _share_singles(self, twin: Singles | None) -> Singles | None:
        if twin is None:
            return None
        tables = self.tables if twin.rows is None else self.tables[twin.rows]
        return Singles(twin.rows, twin.tokens, tables, twin.mask)

    def _gather_singles(self, rows: list[int] | None) -> Singles:
        index, tokens, tables, starts = None, None, self.tables, self.starts
        if rows is not None:
            index = upload(rows, self.tables.device)
            tokens, tables, starts = self.cu[index], tables[index], starts[index]
        keys = torch.arange(tables.shape[1] * self.block_size, device=tables.device)
        return Singles(index, tokens, tables, (keys <= starts[:, None])[:, None, None])

    def chunks(self) -> list[Chunk]:
        """The rows of more than one query token; found once a step."""
        if self._chunks is None and self._twin is not None:
            self._chunks = [self._share_chunk(chunk) for chunk in self._twin.chunks()]
        elif self._chunks is None:
            self._chunks, first = [], 0
            if not self.is_decode:
                for row, length in enumerate(self.query_lens):
                    if length > 1:
                        self._chunks.append(self._chunk(row, first, length))
                    first += length
        return self._chunks

    def _share_chunk(self, twin: Chunk) -> Chunk:
        blocks = self.tables[twin.row, : -(-twin.length // self.block_size)]
        return Chunk(twin.row, twin.first, twin.last, blocks, twin.length, twin.mask)

    def _chunk(self, row: int, first: int, queries: int) -> Chunk:
        cached = self.cached_lens[row]
        length = cached + queries
        blocks = self.tables[row, : -(-length // self.block_size)]
        mask = None
        if cached:
            place = torch.arange(length, device=blocks.device)
            mask = place <= place[cached:, None]
        return Chunk(row, first, first + queries, blocks, length, mask)


@dataclass(slots=True)
class LayerKv:
    """One layer's pages, each [blocks, block_size, K, d], and a step's batch over them.

    `ready` is called just before they are touched: it returns when blocks that are still on their way to this
    layer have arrived, or has the device wait for them.
    """

    k_pages: Tensor
    v_pages: Tensor
    batch: PagedBatch
    ready: Callable[[], None] | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
        """Write k and v [n, K, d], then let q [n, H, d] see them and all before -> [n, H, d]."""
        if self.ready is not None:
            self.ready()
        write_kv(self.k_pages, self.v_pages, k, v, self.batch.slots)
        return attention(q, self.k_pages, self.v_pages, self.batch)


def over(pages: Sequence[tuple[Tensor, Tensor]], batch: PagedBatch) -> list[LayerKv]:
    """All layers in one KV group: every one reads through the same block tables."""
    return [LayerKv(k_pages, v_pages, batch) for k_pages, v_pages in pages]


def lay_out(
    queries: NDArray[np.int64],
    cached: NDArray[np.int64],
    tables: Sequence[Sequence[int]] | NDArray[np.int64],
    block_size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Block tables side by side [rows, longest], and the slot of each new token [sum queries]."""
    blocks = pack_tables(tables, -(-(queries + cached) // block_size))
    row_of = np.repeat(np.arange(len(queries)), queries)
    position = np.arange(len(row_of)) - (queries.cumsum() - queries)[row_of] + cached[row_of]
    return blocks, blocks[row_of, position // block_size] * block_size + position % block_size


def pack_tables(
    tables: Sequence[Sequence[int]] | NDArray[np.int64], widths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Block tables side by side, int64 [rows, longest]. An array may hold any block that exists past a row's
    end.
    """
    longest = int(widths.max(initial=0))
    if isinstance(tables, np.ndarray):
        return np.ascontiguousarray(tables[:, :longest], np.int64)
    out = np.zeros((len(tables), longest), np.int64)
    for row, width in enumerate(widths.tolist()):
        out[row, :width] = tables[row][:width]
    return out


def write_kv(k_pages: Tensor, v_pages: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k and v [n, K, d] to their slots [n] of the pages [blocks, block_size, K, d], in place."""
    k_pages.flatten(0, 1).index_copy_(0, slots, k)
    v_pages.flatten(0, 1).index_copy_(0, slots, v)


def paged_attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch) -> Tensor:
    """q [n, H, d] over pages [blocks, block_size, K, d] that hold this step's keys already -> [n, H, d]."""
    singles = batch.singles()
    if batch.is_decode:
        assert singles is not None
        return attend_singles(q, k_pages, v_pages, singles)
    out = torch.empty_like(q)
    if singles is not None:
        out[singles.tokens] = attend_singles(q[singles.tokens], k_pages, v_pages, singles)
    for chunk in batch.chunks():
        out[chunk.first : chunk.last] = attend_chunk(q[chunk.first : chunk.last], k_pages, v_pages, chunk)
    return out


def attend_singles(q: Tensor, k_pages: Tensor, v_pages: Tensor, singles: Singles) -> Tensor:
    """One query a row, q [r, H, d]: the H / K heads that share a KV head stand where queries stand,
    unrepeated.
    """
    rows, heads, dim = q.shape
    kv_heads = k_pages.shape[2]
    blocks = singles.tables.flatten()
    k = k_pages.index_select(0, blocks).view(rows, -1, kv_heads, dim).transpose(1, 2)
    v = v_pages.index_select(0, blocks).view(rows, -1, kv_heads, dim).transpose(1, 2)
    grouped = q.view(rows, kv_heads, heads // kv_heads, dim)
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=singles.mask).reshape(rows, heads, dim)


def attend_chunk(q: Tensor, k_pages: Tensor, v_pages: Tensor, chunk: Chunk) -> Tensor:
    """The queries of one row, q [m, H, d]."""
    k = k_pages[chunk.blocks].flatten(0, 1)[: chunk.length].transpose(0, 1)[None]
    v = v_pages[chunk.blocks].flatten(0, 1)[: chunk.length].transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1)
