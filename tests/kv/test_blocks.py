"""A pool hands blocks out in order and keeps pending what a step in flight may touch."""

from __future__ import annotations

import pytest

from antiphon.kv.blocks import BlockPool, OutOfBlocks


def test_first_in_first_out() -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    pool.release([1, 0], None)
    assert pool.allocate(3) == [2, 1, 0]


def test_more_than_there_is_raises_and_takes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(OutOfBlocks, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_blocks_are_pending_until_the_step_is_settled() -> None:
    pool = BlockPool(4)
    held = pool.allocate(4)
    pool.release(held[:1], 5)
    pool.release(held[1:2], 6)
    pool.release([], 6)
    assert (pool.num_free, pool.num_pending_free) == (0, 2)
    pool.settle(4)
    assert pool.num_free == 0
    pool.settle(5)
    assert (pool.num_free, pool.num_pending_free) == (1, 1)
    pool.settle(9)
    pool.check_integrity(held[2:])


@pytest.mark.parametrize("held", [[], [0, 0], [0, 1]])
def test_a_lost_or_doubled_block_is_noticed(held: list[int]) -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check_integrity(held)


def test_freed_blocks_go_before_new_ones_where_not_all_memory_is_there() -> None:
    pool = BlockPool(6, ready=2)
    assert pool.num_ready == 2
    held = pool.allocate(3)
    assert held == [0, 1, 2]
    assert (pool.num_free, pool.num_ready) == (3, 0)
    pool.release([0, 1], 5)
    pool.settle(5)
    pool.release([2], None)
    assert (pool.num_free, pool.num_ready) == (6, 3)
    assert pool.allocate(4) == [2, 0, 1, 3]
    pool.check_integrity([0, 1, 2, 3])


def test_all_memory_is_there_unless_said() -> None:
    pool = BlockPool(4)
    assert pool.num_ready == pool.num_free == 4
    pool.allocate(1)
    assert pool.num_ready == pool.num_free == 3
