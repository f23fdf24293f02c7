"""The row table's picture: who prefills, who can draw, oldest first."""

from __future__ import annotations

from antiphon.core.plans import ints
from antiphon.stage.rows import Rows


def test_rows_prefill_then_decode_until_their_limit() -> None:
    rows = Rows(4, block_size=2, conditioned=False)
    rows.join(2, request=7, prompt=5, cached=0, order=0)
    rows.join(0, request=8, prompt=3, cached=2, order=1)
    rows.limit[:] = 2
    assert rows.running.tolist() == [2, 0]
    assert rows.prefilling.tolist() == [2, 0], "oldest first, whatever the row"
    assert rows.wanted(ints([2, 0])).tolist() == [5, 1]
    rows.plan(ints([2]), ints([5]), ints([1]))
    assert rows.prefilling.tolist() == [0]
    assert rows.decoding.tolist() == [2]
    assert rows.wanted(ints([2])).tolist() == [1]
    rows.plan(ints([2]), ints([1]), ints([1]))
    assert not len(rows.decoding)
    rows.leave(0)
    assert not len(rows.prefilling)


def test_a_conditioned_row_waits_for_its_text() -> None:
    rows = Rows(1, block_size=2, conditioned=True)
    rows.join(0, request=1, prompt=2, cached=0, order=0)
    rows.limit[0] = 9
    rows.plan(ints([0]), ints([2]), ints([1]))
    assert not len(rows.decoding), "the first frame is drawn; the next step shows the second text token"
    rows.inputs[0] = 1
    rows.changed()
    assert rows.decoding.tolist() == [0]
    rows.plan(ints([0]), ints([1]), ints([1]))
    assert not len(rows.decoding)
    assert not rows.has_work
    rows.closed[0] = 1
    rows.changed()
    assert rows.has_work
    assert rows.decoding.tolist() == [0], "padding follows the text"


def test_rows_are_starved_when_more_need_a_block_than_there_are() -> None:
    rows = Rows(3, block_size=2, conditioned=False)
    for row in range(2):
        rows.join(row, request=row, prompt=4, cached=2, order=row)
        rows.blocks[row] = 1
    assert rows.num_needy == 2
    rows.num_spare = 2
    assert not rows.starved
    rows.num_spare = 1
    assert rows.starved
    rows.blocks[0] = 2
    assert not rows.starved, "one has room for its next token"
