"""Triton's paged attention against the reference, on any batch: run by `test_triton_attention.py` in a
process of its own, since Triton decides when it is imported whether it interprets or compiles.

Kernels run on the CPU where TRITON_INTERPRET is 1, else on the GPU. The interpreter multiplies the bits of
bf16 numbers as if they were integers, so bf16 is compared on a GPU only.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.nn import triton_attention as kernels
from antiphon.nn.attention import PagedBatch, paged_attention
from nn.test_backends import layout

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
NEAR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = [dtype for dtype in NEAR if not (INTERPRETED and dtype is torch.bfloat16)]
Rows = list[tuple[int, int]]


def check(
    rows: Rows, heads: tuple[int, int], dim: int, dtype: torch.dtype, block: int = 16, cuts: tuple = (3, 5)
) -> None:
    """Rows are (cached, new). The reference computes in fp64 on the same numbers."""
    lengths = [n for _, n in rows], [c for c, _ in rows]
    tables = layout(rows, block, list(cuts), seed=len(rows))
    noise = torch.Generator().manual_seed(dim)
    shape = sum(map(len, tables)), block, heads[1], dim
    q = torch.randn(sum(lengths[0]), heads[0], dim, generator=noise).to(DEVICE, dtype)
    k, v = (torch.randn(shape, generator=noise).to(DEVICE, dtype) for _ in range(2))
    batches = [PagedBatch.build(*lengths, tables, block, DEVICE) for _ in range(2)]
    expected = paged_attention(q.double(), k.double(), v.double(), batches[0])
    for _ in range(2):  # as two layers of one step
        out = kernels.triton_attention(q, k, v, batches[1])
        assert out.dtype is dtype
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=NEAR[dtype])


ROWS = st.lists(
    st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 20))), min_size=1, max_size=4
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rows=ROWS,
    block=st.sampled_from([1, 4, 16]),
    cuts=st.lists(st.integers(0, 999), max_size=8),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1), (8, 1), (6, 2)]),
)
def test_any_batch(rows: Rows, block: int, cuts: list[int], heads: tuple[int, int]) -> None:
    check(rows, heads, 16, torch.float32, block, tuple(cuts))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [2, 64, 256])
def test_heads_of_any_size(dim: int, dtype: torch.dtype) -> None:
    check([(0, 1), (37, 1), (5, 9)], (4, 2), dim, dtype)


@pytest.mark.parametrize("group", [1, 2, 4, 8, 32, 128])
def test_heads_that_share_a_kv_head(group: int) -> None:
    check([(0, 1), (20, 1), (3, 7)], (group, 1), 16, torch.float32)


@pytest.mark.parametrize("splits", [1, 2, 7])
@pytest.mark.parametrize("rows", [[(0, 1), (300, 1), (63, 1)], [(64, 1), (2, 70), (255, 1)]], ids=str)
def test_split_rows_are_put_together(rows: Rows, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a short row has nothing in most of the splits."""
    monkeypatch.setattr(kernels, "splits_of", lambda batch: splits)
    check(rows, (4, 2), 16, torch.float32)


def test_a_long_row_is_split_and_a_short_one_is_not() -> None:
    def splits(*cached: int) -> int:
        batch = PagedBatch.build([1] * len(cached), cached, [range(n // 16 + 1) for n in cached], 16)
        return kernels.splits_of(batch)

    assert [splits(0), splits(511), splits(512), splits(3, 5000)] == [1, 1, 2, 10]
    assert splits(10**6) == kernels.MAX_SPLITS
    check([(1100, 1), (30, 1)], (2, 1), 16, torch.float32)


def test_all_variants_are_compiled_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: set[tuple] = set()

    class Recorded:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*values: Any, **constants: Any) -> None:
                launched.add(tuple(sorted(constants.items())))
                if not INTERPRETED:  # there nothing is compiled, and long rows take seconds
                    self._kernel[grid](*values, **constants)

            return launch

    for name in ("attend", "combine"):
        monkeypatch.setattr(kernels, name, Recorded(getattr(kernels, name)))
    attention = kernels.TritonAttention()
    keys, values = (torch.zeros(200, 16, 1, 16, device=DEVICE) for _ in range(2))

    def run(rows: Rows) -> None:
        queries, cached = [new for _, new in rows], [before for before, _ in rows]
        batch = PagedBatch.build(queries, cached, [range(-(-sum(row) // 16)) for row in rows], 16, DEVICE)
        attention(torch.zeros(sum(queries), 2, 16, device=DEVICE), keys, values, batch)

    run([(3, 1)])
    known = set(launched)
    for rows in ([(600, 1), (3, 1)], [(1100, 1)], [(2900, 1)], [(5, 40), (7, 1)], [(0, 300), (2000, 1)]):
        run(rows)
    assert launched == known


def test_a_prefill_is_cut_into_tiles_of_whole_queries() -> None:
    batch = PagedBatch.build([1, 70, 2, 1], [9, 0, 5, 0], np.zeros((4, 9), np.int64), 16)
    prepared = kernels.prepare(batch, 32)
    assert prepared.singles.rows.tolist() == [0, 3]
    assert list(zip(prepared.chunks.rows.tolist(), prepared.chunks.firsts.tolist(), strict=True)) == [
        (1, 0),
        (1, 32),
        (1, 64),
        (2, 0),
    ]


@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_not_in_a_rows_blocks_is_not_read(layer: int) -> None:
    """Other blocks, and the tail of the last one, hold what would spoil any sum."""
    keys, values = (torch.full((6, 4, 1, 16), torch.nan, device=DEVICE) for _ in range(2))
    q = torch.randn(1 + layer, 2, 16, device=DEVICE)
    filled = [(5, 4), (2, 4), (3, 1 + layer)]
    for block, count in filled:
        for pages in (keys, values):
            pages[block, :count] = torch.randn(count, 1, 16, device=DEVICE)
    batch = PagedBatch.build([1 + layer], [8], [[5, 2, 3]], 4, DEVICE)
    out = kernels.triton_attention(q, keys, values, batch)
    clean = [pages.nan_to_num() for pages in (keys, values)]
    torch.testing.assert_close(out, paged_attention(q, *clean, batch_again(batch)), rtol=0, atol=2e-6)


def batch_again(batch: PagedBatch) -> PagedBatch:
    return PagedBatch.build(batch.query_lens, batch.cached_lens, [[5, 2, 3]], 4, DEVICE)
