"""Copies between the tiers: what arrives, in which order it is reported, and what a broken one does."""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.facts import CopyDone, CopyFailed, Fact
from antiphon.core.plans import CopyBlocks, ints
from antiphon.engine import copies
from antiphon.engine.copies import KvCopies, ThreadLane, pick_lane, runs
from antiphon.engine.kv_pool import KvPool
from engine.pools import new_pool

PATIENCE_S = 20


def out(group: str, sources: list[int], targets: list[int], ticket: int) -> CopyBlocks:
    return CopyBlocks("s", group, "host", ints(sources), ints(targets), ticket)


def back(group: str, sources: list[int], targets: list[int], ticket: int) -> CopyBlocks:
    return CopyBlocks("s", group, "device", ints(sources), ints(targets), ticket)


def settle(mover: KvCopies) -> list[Fact]:
    facts, deadline = [], time.monotonic() + PATIENCE_S
    while mover.num_in_flight and time.monotonic() < deadline:
        facts += mover.poll()
    return facts


def new_mover(pool: KvPool) -> KvCopies:
    return KvCopies({"s": pool}, pick_lane(torch.device("cpu")))


@pytest.mark.parametrize("group", ["low", "high", "beside"])
def test_there_and_back_to_other_blocks(group: str) -> None:
    pool = new_pool()
    mover = new_mover(pool)
    before = {name: [[t.clone() for t in layer] for layer in pool.device[name]] for name in pool.groups}
    mover.copy(out(group, [4, 0, 1], [7, 2, 3], 0))
    mover.copy(back(group, [3, 7, 2], [2, 3, 5], 1))
    assert settle(mover) == [CopyDone("s", 0), CopyDone("s", 1)]
    for name, planes in before.items():
        for layer, was in zip(pool.device[name], planes, strict=True):
            for now, then in zip(layer, was, strict=True):
                moved = [0, 1, 1, 4, 4, 0] if name == group else range(6)
                assert torch.equal(now, then[list(moved)])


def test_reports_come_in_the_order_given() -> None:
    """A copy that is broken from the start waits for its turn."""
    pool, gate = new_pool(), Event()
    lane = ThreadLane()
    lane.start("low", [lambda: gate.wait(PATIENCE_S)])
    mover = KvCopies({"s": pool}, lane)
    mover.copy(out("low", [1], [1], 0))
    mover.copy(out("low", [99], [0], 1))
    assert mover.poll() == []
    assert mover.num_in_flight == 2
    gate.set()
    done, failed = settle(mover)
    assert done == CopyDone("s", 0)
    assert isinstance(failed, CopyFailed)
    assert (failed.ticket, failed.message) == (1, "IndexError: low: blocks [99] of a tier that has 6")


def test_who_waits_for_a_copy_that_broke_off_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = new_pool()
    mover = new_mover(pool)
    copy_runs, late = copies.copy_runs, pool.device["high"][1]

    def breaks(source, target, pieces):
        if target is late:
            raise RuntimeError("out of luck")
        copy_runs(source, target, pieces)

    monkeypatch.setattr(copies, "copy_runs", breaks)
    mover.copy(back("high", [0], [0], 3))
    (fact,) = settle(mover)
    assert fact == CopyFailed("s", 3, "RuntimeError: out of luck")
    pool.ready("high", 0, (3,))()
    with pytest.raises(RuntimeError, match="out of luck"):
        pool.ready("high", 1, (3,))()


@pytest.mark.parametrize("group", ["low", "none"])
def test_an_order_that_cannot_be_begun_is_reported(group: str) -> None:
    mover = new_mover(new_pool())
    mover.copy(back(group, [0, 8], [0, 1], 0))
    (fact,) = settle(mover)
    assert isinstance(fact, CopyFailed)


def test_no_blocks_are_copied_at_once() -> None:
    mover = new_mover(new_pool())
    mover.copy(out("high", [], [], 0))
    assert settle(mover) == [CopyDone("s", 0)]


@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8, unique_by=lambda p: p[1]))
def test_runs_cover_each_block_once(pairs: list[tuple[int, int]]) -> None:
    sources, targets = np.array(pairs, np.int64).reshape(-1, 2).T
    pieces = runs(sources, targets)
    assert [(a + i, b + i) for a, b, count in pieces for i in range(count)] == pairs
    for (a, b, count), (c, d, _) in pairwise(pieces):
        assert (c, d) != (a + count, b + count), "two pieces that could be one"
