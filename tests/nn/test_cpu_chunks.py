"""Attention of longer chunks as one loop, against torch's."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numba")

from antiphon.nn.attention import PagedBatch, attend_chunk
from antiphon.nn.cpu.attention import over_pages
from antiphon.nn.cpu.chunks import Chunks, can_take, chunk_job, chunk_loop
from antiphon.nn.cpu.compiler import has_pairs
from antiphon.nn.cpu.kv_prefetch import Soon

ROWS = {
    "one": [(5, 0)],
    "between single tokens": [(1, 4), (9, 7), (1, 3), (2, 0), (1, 40)],
    "of several items": [(200, 0), (3, 100), (130, 33)],
    "behind what is cached": [(17, 0), (16, 16), (33, 15), (8, 500)],
}
HEADS = [(8, 4, 64), (6, 2, 48), (4, 4, 32), (14, 2, 128), (9, 1, 16)]
UNTOUCHED = 7.0


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("name", ROWS)
def test_it_is_torchs_attention(name: str, block: int, heads: tuple[int, int, int]) -> None:
    attend_both_ways(name, block, heads, 1e-5, rounds=False)


@pytest.mark.skipif(not has_pairs(), reason="this CPU has no products in bf16")
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_in_bf16_it_is_near_torchs_attention(name: str, heads: tuple[int, int, int]) -> None:
    """A query, a key, a share and a value are each rounded by 2^-9 of themselves at most."""
    attend_both_ways(name, 16, heads, 3e-2, rounds=True)


def attend_both_ways(
    name: str, block: int, heads: tuple[int, int, int], near: float, *, rounds: bool
) -> None:
    num_heads, kv_heads, dim = heads
    if not can_take(block, dim):
        pytest.skip("no such vectors on this CPU")
    noise = torch.Generator().manual_seed(0)
    queries, cached = zip(*ROWS[name], strict=True)
    widths = [-(-sum(row) // block) for row in ROWS[name]]
    tables = [part.tolist() for part in torch.randperm(sum(widths), generator=noise).split(widths)]
    batch = PagedBatch.build(queries, cached, tables, block)
    pages = [torch.randn(sum(widths), block, kv_heads, dim, generator=noise) for _ in range(2)]
    q = torch.randn(sum(queries), num_heads, dim, generator=noise)
    expected = torch.full_like(q, UNTOUCHED)
    for chunk in batch.chunks():
        expected[chunk.first : chunk.last] = attend_chunk(q[chunk.first : chunk.last], *pages, chunk)
    for row, table in zip(ROWS[name], tables, strict=True):
        if sum(row) % block:  # what the owner before left there
            for part in pages:
                part[table[-1], sum(row) % block :] = torch.nan
    for threads in (1, 2, 3):
        out = torch.full_like(q, UNTOUCHED)
        job = chunk_job(q, (num_heads, kv_heads), out, rounds=rounds)
        chunks = Chunks(batch, job)
        chunks.put_into(job)
        over_pages([job], Soon(), (pages[0], pages[1]))
        chunk_loop().run(job, threads)
        torch.testing.assert_close(out, expected, rtol=near, atol=near)
        if rounds and name != "one":  # which is not the same as not rounding
            assert float((out - expected).abs().max()) > 1e-4


def test_a_batch_of_single_tokens_has_none() -> None:
    job = chunk_job(torch.zeros(2, 4, 64), (4, 2), torch.zeros(2, 4, 64))
    assert Chunks(PagedBatch.build([1, 1], [3, 0], [[0], [1]], 16), job).items == 0
