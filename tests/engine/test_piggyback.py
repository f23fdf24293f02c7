"""Rows parked at a layer, and what a step may not ask of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.core.plans import ArStep, ints
from antiphon.engine.piggyback import ParkedRows, Piggyback
from antiphon.engine.rows import BlockTables
from antiphon.nn.transfers import Left
from engine.pools import BLOCK_SIZE, BLOCKS, new_pool


def left(value: float, rows: int = 1) -> Left:
    return Left(*(torch.full((rows, *shape), float(value)) for shape in ((3,), (2, 3), (1, 3), (1, 3))))


def step(
    rows: list[int],
    leaves: dict[int, int] | None = None,
    enters: dict[int, int] | None = None,
    counts: list[int] | None = None,
    emits: list[int] | None = None,
) -> ArStep:
    leaves, enters = leaves or {}, enters or {}
    return ArStep(
        "s",
        0,
        (),
        *(ints([]), (), ints([]), ints([])),
        rows=ints(rows),
        starts=ints([0] * len(rows)),
        counts=ints(counts or [1] * len(rows)),
        emits=ints(emits or [row not in leaves for row in rows]),
        reason="",
        leaves_at=(ints([*leaves]), ints([*leaves.values()])),
        enters_at=(ints([*enters]), ints([*enters.values()])),
    )


@pytest.fixture
def piggyback() -> Piggyback:
    pool = new_pool()
    tables = BlockTables(pool.groups, 6, BLOCKS, BLOCK_SIZE)
    for group in pool.groups:
        tables._tables[group][:, 0] = np.arange(6)
    return Piggyback(pool, tables, torch.device("cpu"))


def inputs(rows: int) -> Tensor:
    return torch.arange(float(rows))[:, None].expand(rows, 3).clone()


def test_what_is_parked_comes_back_in_the_order_asked_for() -> None:
    parked = ParkedRows()
    for row in (4, 2, 3):
        parked.park(row, 1, left(row))
    taken = parked.take([3, 4], 1)
    assert taken.residual[:, 0].tolist() == [3, 4]
    assert taken.q.shape == (2, 2, 3)
    assert 2 in parked
    assert 3 not in parked
    parked.forget([2, 5])
    assert 2 not in parked


def test_a_row_is_parked_once_and_enters_where_it_left() -> None:
    parked = ParkedRows()
    parked.park(1, 2, left(0))
    with pytest.raises(AssertionError, match="parked already"):
        parked.park(1, 2, left(0))
    with pytest.raises(AssertionError, match="enters where it left"):
        parked.take([1], 3)


def test_a_step_without_moves_is_left_as_it_is(piggyback: Piggyback) -> None:
    x = inputs(2)
    same, kv, transfers = piggyback.begin(step([1, 3]), x)
    assert same is x
    assert transfers is None
    assert len({id(layer.batch) for layer in kv[1:]}) == 1
    assert kv[0].batch is not kv[1].batch
    piggyback.end(step([1, 3]), transfers)


def test_each_layer_has_the_rows_that_are_in_it(piggyback: Piggyback) -> None:
    """Row 1 has two tokens; row 3 leaves at layer 2; row 4 enters at 1."""
    piggyback.parked.park(4, 1, left(9))
    order = step([3, 1, 4], leaves={3: 2}, enters={4: 1}, counts=[1, 2, 1])
    x, kv, transfers = piggyback.begin(order, inputs(4))
    assert x[:, 0].tolist() == [0, 1, 2, 9]
    assert [exchange.before.tolist() for exchange in transfers.layers] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3],
    ]
    assert [exchange.leaving.tolist() for exchange in transfers.layers] == [[], [], [0], []]
    assert [exchange.staying.tolist() for exchange in transfers.layers][2] == [1, 2, 3]
    assert [exchange.entering.tolist() for exchange in transfers.layers] == [[], [3], [], []]
    assert [layer.batch.query_lens for layer in kv] == [(1, 2), (1, 2), (2, 1), (2, 1)]
    transfers.left[2] = left(5)
    piggyback.end(order, transfers)
    assert 3 in piggyback.parked
    piggyback.forget([3])
    assert 3 not in piggyback.parked


def test_rows_that_leave_together_are_told_apart(piggyback: Piggyback) -> None:
    """What a layer keeps is in the order of the step's rows, whatever the order of the column."""
    order = step([5, 0, 2], leaves={2: 1, 5: 1})
    _, _, transfers = piggyback.begin(order, inputs(3))
    kept = left(0, rows=2)
    kept.residual[1] = 7
    transfers.left[1] = kept
    piggyback.end(order, transfers)
    assert piggyback.parked.take([2, 5], 1).residual[:, 0].tolist() == [7, 0]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (step([1], leaves={2: 1}), "only rows of the step"),
        (step([1], leaves={1: 1}, counts=[2]), "one token"),
        (step([1], leaves={1: 1}, emits=[1]), "nothing to emit"),
        (step([4], leaves={4: 1}, enters={4: 1}), "leaves after it entered"),
        (step([4, 0], leaves={0: 1}), "a parked row runs"),
        (step([4], enters={4: 3}), "enters where it left"),
    ],
    ids=["not in the step", "many tokens", "emits", "backwards", "parked", "elsewhere"],
)
def test_impossible_moves_are_refused(piggyback: Piggyback, order: ArStep, why: str) -> None:
    piggyback.parked.park(4, 1, left(0))
    with pytest.raises(AssertionError, match=why):
        piggyback.begin(order, inputs(len(order.rows)))
