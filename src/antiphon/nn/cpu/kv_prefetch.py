"""Keys and values that are read soon, asked for between the terms of the products before.

At more than a few rows a product waits for its arithmetic, and single tokens' attention for memory. What a
product asks for meanwhile the attention finds in the third cache.
"""

from __future__ import annotations

import numpy as np
from numba.np.numpy_support import carray  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from antiphon.nn.attention import PagedBatch
from antiphon.nn.cpu.compiler import compiled
from antiphon.nn.cpu.openmp import integers, job_of, pointer_to
from antiphon.nn.cpu.tiles import PIECE_BYTES

Ints = NDArray[np.int64]

LEAST_ROWS = 8
"""Fewer rows leave a product nothing to do while it waits for its weight: nothing else is asked for then."""

NO_BLOCKS = np.zeros(0, np.int64)

Soon = job_of("blocks keys values", "num_blocks block_bytes")
"""`num_blocks` of the pages of keys and values, `block_bytes` each."""

SOON = np.dtype(Soon)


def blocks_read(batch: PagedBatch) -> Ints:
    """Blocks that the batch's single tokens see, [n]; none for few rows."""
    if len(batch.slots) < LEAST_ROWS:
        return NO_BLOCKS
    seen = batch.starts.numpy() // batch.block_size + 1
    if not batch.is_decode:
        seen[batch.cu.diff().numpy() != 1] = 0
    tables = batch.tables.numpy()
    return tables[np.arange(tables.shape[1]) < seen[:, None]]


@compiled
def num_pieces(address: int) -> int:
    """Of what this `Soon` tells of; address 0 tells of nothing."""
    if not address:
        return 0
    soon = carray(pointer_to(address), 1, SOON)[0]
    return soon.num_blocks * 2 * (soon.block_bytes // PIECE_BYTES)


@compiled
def put_pieces(address: int, first: int, pieces: Ints) -> None:
    """The addresses of its pieces (`tiles`) from `first` on: of each block the keys, then the values."""
    soon = carray(pointer_to(address), 1, SOON)[0]
    blocks, each = integers(soon.blocks, 1, soon.num_blocks)[0], soon.block_bytes // PIECE_BYTES
    for i in range(len(pieces)):
        block, within = (first + i) // (2 * each), (first + i) % (2 * each)
        start = soon.keys if within < each else soon.values
        pieces[i] = start + blocks[block] * soon.block_bytes + within % each * PIECE_BYTES


@compiled
def next_pieces(soon: int, first: int, last: int, pieces: Ints) -> int:
    """Where the addresses of what a tile asks for stand now, 0 if fewer pieces are left up to `last`."""
    if first + len(pieces) > last:
        return 0
    put_pieces(soon, first, pieces)
    return pieces.ctypes.data
