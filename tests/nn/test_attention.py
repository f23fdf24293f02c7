"""Paged attention against plain attention over each row's own tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.nn.attention import LayerKv, PagedBatch, paged_attention, write_kv

HEADS, KV_HEADS, DIM, BLOCKS = 4, 2, 8, 64


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cached: int) -> torch.Tensor:
    """One row: queries [m, H, d] that follow `cached` tokens, keys and values [cached + m, K, d]."""
    group = HEADS // KV_HEADS
    k, v = (t.repeat_interleave(group, 1).transpose(0, 1) for t in (k, v))
    mask = torch.arange(len(k[0])) <= torch.arange(cached, len(k[0]))[:, None]
    return F.scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=mask).transpose(0, 1)


def check(rows: list[tuple[int, int]], block_size: int) -> None:
    """Rows of (cached, new) tokens, in block tables dealt out in reverse order."""
    free = list(range(1, BLOCKS))
    tables = [[free.pop() for _ in range(-(-(c + n) // block_size))] for c, n in rows]
    pages = (
        torch.zeros(BLOCKS, block_size, KV_HEADS, DIM, dtype=torch.float64),
        torch.zeros(BLOCKS, block_size, KV_HEADS, DIM, dtype=torch.float64),
    )
    keys = [
        (noise(c + n, KV_HEADS, DIM, seed=i), noise(c + n, KV_HEADS, DIM, seed=-i - 1))
        for i, (c, n) in enumerate(rows)
    ]
    for (cached, _), (k, v), table in zip(rows, keys, tables, strict=True):
        if cached:
            before = PagedBatch.build([cached], [0], [table], block_size)
            write_kv(*pages, k[:cached], v[:cached], before.slots)
    batch = PagedBatch.build([n for _, n in rows], [c for c, _ in rows], tables, block_size)
    new = [torch.cat([pair[i][c:] for (c, _), pair in zip(rows, keys, strict=True)]) for i in (0, 1)]
    write_kv(*pages, *new, batch.slots)
    queries = [noise(n, HEADS, DIM, seed=100 + i) for i, (_, n) in enumerate(rows)]
    out = paged_attention(torch.cat(queries), *pages, batch)
    expected = [alone(q, k, v, c) for q, (k, v), (c, _) in zip(queries, keys, rows, strict=True)]
    torch.testing.assert_close(out, torch.cat(expected), rtol=0, atol=1e-12)
    assert batch.is_decode == all(n == 1 for _, n in rows)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1)],
        [(0, 9)],
        [(5, 1), (0, 1), (13, 1)],
        [(5, 3), (0, 7)],
        [(4, 1), (0, 5), (7, 1), (3, 4)],
    ],
    ids=str,
)
def test_rows_attend_as_if_alone(rows: list[tuple[int, int]], block_size: int) -> None:
    check(rows, block_size)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=5))
def test_any_batch(rows: list[tuple[int, int]]) -> None:
    check(rows, block_size=4)


def test_build_lays_out_a_batch() -> None:
    batch = PagedBatch.build([2, 1], [3, 4], [[7, 2], [5, 9, 11]], block_size=4)
    assert batch.cu.tolist() == [0, 2, 3]
    assert batch.starts.tolist() == [3, 4]
    assert batch.tables.tolist() == [[7, 2], [5, 9]]
    assert batch.slots.tolist() == [7 * 4 + 3, 2 * 4, 9 * 4]
    assert not batch.is_decode


def test_a_decode_batch_needs_no_lengths_on_the_host() -> None:
    built = PagedBatch.build([1, 1], [3, 6], [[1], [2, 3]], block_size=4)
    bare = PagedBatch(built.cu, built.starts, built.tables, built.slots, 4)
    pages = noise(8, 4, KV_HEADS, DIM, seed=0), noise(8, 4, KV_HEADS, DIM, seed=1)
    q = noise(2, HEADS, DIM, seed=2)
    assert torch.equal(paged_attention(q, *pages, bare), paged_attention(q, *pages, built))
    assert bare.chunks() == []


def test_an_array_of_tables_may_be_wider_than_needed() -> None:
    wide = np.array([[7, 2, 5], [5, 9, 11]])
    batch = PagedBatch.build([2, 1], [3, 4], wide, block_size=4)
    assert batch.tables.tolist() == [[7, 2], [5, 9]]
    assert batch.slots.tolist() == [7 * 4 + 3, 2 * 4, 9 * 4]
    assert not np.shares_memory(batch.tables.numpy(), wide)


def test_padding_beyond_a_row_is_not_seen() -> None:
    """Other rows' keys, and those of blocks that stand in as padding, change nothing."""
    batch = PagedBatch.build([1, 1], [1, 14], [[3], [4, 5, 6, 7]], block_size=4)
    pages = noise(8, 4, KV_HEADS, DIM, seed=0), noise(8, 4, KV_HEADS, DIM, seed=1)
    q = noise(2, HEADS, DIM, seed=2)
    before = paged_attention(q, *pages, batch)[0].clone()
    for page in pages:
        page[0] += 100
        page[3, 2:] += 100
        page[4:] += 100
    torch.testing.assert_close(paged_attention(q, *pages, batch)[0], before, rtol=0, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=5))
def test_the_same_queries_over_another_table(rows: list[tuple[int, int]]) -> None:
    """Equal to a batch built for that table; the masks are the first batch's own."""
    free = list(range(1, BLOCKS))
    first, other = ([[free.pop() for _ in range(-(-(c + n) // 4))] for c, n in rows] for _ in range(2))
    lens = [n for _, n in rows], [c for c, _ in rows]
    base = PagedBatch.build(*lens, first, 4)
    shared, built = base.retabled(other), PagedBatch.build(*lens, other, 4)
    assert torch.equal(shared.slots, built.slots)
    assert torch.equal(shared.tables, built.tables)
    pages = noise(BLOCKS, 4, KV_HEADS, DIM, seed=0), noise(BLOCKS, 4, KV_HEADS, DIM, seed=1)
    q = noise(int(base.cu[-1]), HEADS, DIM, seed=2)
    assert torch.equal(paged_attention(q, *pages, shared), paged_attention(q, *pages, built))
    mine, theirs = shared.singles(), base.singles()
    assert (mine is None) == (theirs is None)
    assert mine is None or mine.mask is theirs.mask
    assert all(a.mask is b.mask for a, b in zip(shared.chunks(), base.chunks(), strict=True))


def test_a_batch_may_be_empty() -> None:
    """Everybody has left the layer."""
    batch = PagedBatch.build([], [], np.zeros((0, 3), np.int64), block_size=4)
    assert batch.cu.tolist() == [0]
    assert batch.slots.tolist() == []


def test_a_layer_waits_before_it_writes() -> None:
    """What is still on its way may lie in the block that the new token is written to."""
    pages = torch.zeros(2, 4, KV_HEADS, DIM, dtype=torch.float64), noise(2, 4, KV_HEADS, DIM, seed=1)
    batch = PagedBatch.build([1], [2], [[1]], 4)
    loaded = noise(4, KV_HEADS, DIM, seed=3)
    kv = LayerKv(*pages, batch, lambda: pages[0][1].copy_(loaded))
    k, v = noise(1, KV_HEADS, DIM, seed=4), noise(1, KV_HEADS, DIM, seed=5)
    kv.attend(noise(1, HEADS, DIM, seed=2), k, v, paged_attention)
    assert torch.equal(pages[0][1, 2], k[0])
    assert torch.equal(pages[0][1, :2], loaded[:2])
