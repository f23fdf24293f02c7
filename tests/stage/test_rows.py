"""The row ledger: which rows prefill, which can draw, oldest first."""

from __future__ import annotations

import numpy as np

from antiphon.core.facts import NO_INTS, StagePrompt
from antiphon.core.plans import ints
from antiphon.core.sampling import Sampling
from antiphon.policy.base import Tier
from antiphon.stage.requests import ArRequest
from antiphon.stage.rows import RowLedger


def request(number: int, length: int, order: int) -> ArRequest:
    ids = np.arange(length)
    prompt = StagePrompt(ids, ids, (), 0, NO_INTS)
    return ArRequest(number, f"s{number}", prompt, Sampling(), order=order)


def could_run(rows: RowLedger) -> list[int]:
    return rows.could_run.nonzero()[0].tolist()


def test_rows_prefill_then_decode_until_their_limit() -> None:
    rows = RowLedger(4, block_size=2, conditioned=False)
    first, second = rows.seat(request(7, 5, order=1), 0, 2), rows.seat(request(8, 3, order=0), 2, 2)
    assert rows.running.tolist() == [second, first], "oldest first, whatever the row"
    assert rows.wanted(ints([first, second])).tolist() == [5, 1]
    rows.plan(ints([first]), ints([5]), ints([1]))
    assert could_run(rows) == [first, second]
    assert rows.wanted(ints([first])).tolist() == [1]
    rows.plan(ints([first]), ints([1]), ints([1]))
    assert could_run(rows) == [second], "the other has drawn all it may"
    rows.leave(second, None)
    assert rows.running.tolist() == [first]
    assert not rows.has_work


def test_a_conditioned_row_waits_for_its_text() -> None:
    rows = RowLedger(1, block_size=2, conditioned=True)
    one = request(1, 2, order=0)
    row = one.row = rows.seat(one, 0, 9)
    rows.plan(ints([row]), ints([2]), ints([1]))
    assert not could_run(rows), "the first frame is drawn; the next step shows the second text token"
    rows.push(row, 5)
    assert could_run(rows) == [row]
    rows.plan(ints([row]), ints([1]), ints([1]))
    assert not could_run(rows)
    assert not rows.has_work
    one.closed = True
    rows.update(one)
    assert rows.has_work
    assert could_run(rows) == [row], "padding follows the text"


def test_a_row_draws_as_far_as_its_consumer_has_come() -> None:
    rows = RowLedger(1, block_size=2, conditioned=False)
    one = request(1, 2, order=0)
    row = one.row = rows.seat(one, 0, 9)
    rows.plan(ints([row]), ints([2]), ints([1]))
    one.granted = 1
    rows.update(one)
    assert not rows.has_work
    one.granted = 2
    rows.update(one)
    assert could_run(rows) == [row]


def test_rows_are_short_when_their_next_token_needs_another_block() -> None:
    rows = RowLedger(3, block_size=2, conditioned=False)
    for number in range(2):
        rows.grow(rows.seat(request(number, 4, order=number), 2, 9), 1)
    assert rows.num_short == 2
    rows.grow(0, 1)
    assert rows.num_short == 1, "one has room for its next token"


def test_a_row_tells_whose_it_is() -> None:
    rows = RowLedger(1, block_size=2, conditioned=False)
    one = request(1, 2, order=3)
    one.tier, one.slot = Tier.BEST_EFFORT, 5
    row = rows.seat(one, 0, 9)
    columns = (rows.request, rows.order, rows.tier, rows.slot)
    assert [int(column[row]) for column in columns] == [1, 3, Tier.BEST_EFFORT, 5]


def test_what_the_executor_is_told_of_rows() -> None:
    rows = RowLedger(2, block_size=2, conditioned=True)
    gone, stays = (rows.seat(request(number, 2, order=number), 0, 9) for number in (1, 2))
    rows.push(gone, 5)
    rows.push(stays, 6)
    rows.leave(gone, after_step=3)
    assert (rows.num_free, rows.num_pending_free) == (0, 1)
    assert [column.tolist() for column in rows.drain()] == [[gone], [stays], [6]]
    assert [column.tolist() for column in rows.drain()] == [[], [], []]
    rows.settle(3)
    assert rows.num_free == 1
