"""What products ask for while they run: what the attention behind them reads, and no result changes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from antiphon.nn.attention import PagedBatch
from antiphon.nn.cpu.kv_prefetch import Soon, blocks_read, num_pieces, put_pieces
from antiphon.nn.cpu.panels import ask_for, can_lay_out, lay_out, product_job, product_loop
from antiphon.nn.cpu.tiles import PIECE_BYTES

BLOCK = 16


def test_blocks_are_those_that_single_tokens_see() -> None:
    cached = [0, 15, 16, 40, 31, 0, 9, 20]
    tables = [[10 * row + i for i in range(4)] for row in range(8)]
    batch = PagedBatch.build([1] * 8, cached, tables, BLOCK)
    seen = [row[: length // BLOCK + 1] for row, length in zip(tables, cached, strict=True)]
    assert blocks_read(batch).tolist() == [block for row in seen for block in row]

    queries = [1, 5, 1, 1, 1, 1, 1, 7]
    mixed = PagedBatch.build(queries, cached, tables, BLOCK)
    singles = [row for row, count in zip(seen, queries, strict=True) if count == 1]
    assert blocks_read(mixed).tolist() == [block for row in singles for block in row]


def test_for_a_few_rows_there_are_none() -> None:
    assert not len(blocks_read(PagedBatch.build([1] * 4, [40] * 4, [[0, 1, 2]] * 4, BLOCK)))


def test_every_piece_of_every_block_once() -> None:
    blocks, block_bytes = np.array([7, 2, 5]), 3 * PIECE_BYTES
    keys, values = 1 << 30, 5 << 30
    soon = Soon(blocks=blocks.ctypes.data, keys=keys, values=values, num_blocks=3, block_bytes=block_bytes)
    address = ctypes.addressof(soon)
    assert (num_pieces(address), num_pieces(0)) == (18, 0)
    found = np.zeros(18, np.int64)
    put_pieces(address, 0, found[:5])
    put_pieces(address, 5, found[5:])
    starts = [side + block * block_bytes for block in blocks.tolist() for side in (keys, values)]
    assert found.tolist() == [start + i * PIECE_BYTES for start in starts for i in range(3)]


@pytest.mark.parametrize("rows", [1, 7, 16, 24, 64, 300])
@pytest.mark.parametrize("num_blocks", [0, 1, 40])
def test_products_are_the_same_while_they_ask(rows: int, num_blocks: int) -> None:
    """Parts of the pieces go to products of different depth, which have terms for fewer or for more."""
    noise = torch.Generator().manual_seed(0)
    pages = torch.zeros(num_blocks + 1, 4 * PIECE_BYTES)
    blocks = np.arange(num_blocks)
    soon = Soon(blocks=blocks.ctypes.data, keys=pages.data_ptr(), values=pages.data_ptr())
    soon.num_blocks, soon.block_bytes = num_blocks, 4 * PIECE_BYTES
    jobs, outs, expected, held = [], [], [], []
    for depth in (132, 520, 64):
        weight, x = torch.randn(64, depth, generator=noise), torch.randn(rows, depth, generator=noise)
        if not can_lay_out(weight):
            pytest.skip("no panels on this CPU")
        for asking in (False, True):
            panels, out = lay_out(weight), torch.zeros(rows, 64)
            job = product_job(x, panels, out, 2)
            job.rows = rows
            held.append((x, panels))
            (jobs if asking else expected).append((job, out))
    ask_for([job for job, _ in jobs], soon)
    for job, out in (*jobs, *expected):
        product_loop().run(job, 2)
        outs.append(out)
    for mine, plain in zip(outs[:3], outs[3:], strict=True):
        assert torch.equal(mine, plain)
    assert [job.before for job, _ in jobs] == [0, *(job.after for job, _ in jobs)][:3]
    assert jobs[-1][0].after == jobs[-1][0].parts
