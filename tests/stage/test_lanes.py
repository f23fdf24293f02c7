"""What is queued on a device's links, and until when."""

from __future__ import annotations

from math import isnan

import pytest

from antiphon.core.facts import CopyDone, CopyFailed
from antiphon.core.plans import CopyBlocks, MoveBlocks, ints
from antiphon.latency.observed import ObservedCopies
from antiphon.stage.lanes import Lanes

BLOCKS = ints([1, 2])


def copy(unit: str, ticket: int, to: str = "host") -> CopyBlocks:
    return CopyBlocks(unit, "kv", to, BLOCKS, BLOCKS, ticket)  # type: ignore[arg-type]


def known() -> Lanes:
    """Where a block of the kv takes a second."""
    lanes = Lanes(ObservedCopies())
    for ticket in range(2):
        for unit in ("t", "u"):
            lanes.ordered(copy(unit, ticket))
            assert isnan(lanes.queued_s("host"))
            lanes.answered(CopyDone(unit, ticket, 2.0))
    return lanes


def test_copies_of_all_units_are_queued_and_the_first_is_under_way() -> None:
    lanes = known()
    assert lanes.queued_s("host") == 0.0
    assert lanes.block_s("t", ("kv",), "host") == pytest.approx(1.0)
    assert isnan(lanes.block_s("t", ("kv", "hidden"), "host"))
    assert isnan(lanes.block_s("t", ("kv",), "device")), "each way has a speed of its own"
    lanes.tell_time(10.0)
    lanes.ordered(copy("t", 7))
    lanes.ordered(copy("u", 8))
    lanes.ordered(MoveBlocks("t", "u", "kv", BLOCKS, BLOCKS, 9))
    assert lanes.queued_s("host") == pytest.approx(4.0)
    lanes.tell_time(11.5)
    assert lanes.queued_s("host") == pytest.approx(2.5)
    lanes.tell_time(15.0)
    assert lanes.queued_s("host") == pytest.approx(2.0), "the first is late; the second has not begun"
    lanes.answered(CopyFailed("t", 7, "no"))
    lanes.forget("u")
    assert lanes.queued_s("host") == 0.0


def test_nothing_is_known_without_costs() -> None:
    lanes = Lanes()
    lanes.ordered(copy("t", 0))
    lanes.answered(CopyDone("t", 0, 1.0))
    assert isnan(lanes.block_s("t", ("kv",), "host"))
