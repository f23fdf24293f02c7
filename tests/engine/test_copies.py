"""Copies between the tiers: what arrives, in which order it is reported, and what a broken one does."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.facts import CopyDone, CopyFailed, Fact
from antiphon.core.plans import CopyBlocks, MoveBlocks, ints
from antiphon.engine import copies
from antiphon.engine.copies import CopyStreamLane, CopyThreadLane, KvCopies, lane_maker, runs
from antiphon.engine.kv_pool import KvPool
from engine.pools import new_pool

PATIENCE_S = 20


def out(group: str, sources: list[int], targets: list[int], ticket: int) -> CopyBlocks:
    return CopyBlocks("s", group, "host", ints(sources), ints(targets), ticket)


def back(group: str, sources: list[int], targets: list[int], ticket: int) -> CopyBlocks:
    return CopyBlocks("s", group, "device", ints(sources), ints(targets), ticket)


def poll(mover: KvCopies) -> list[Fact]:
    """What is reported now, without how long it took, which each copy that is done must say."""
    facts = mover.poll()
    assert all(fact.seconds >= 0.0 for fact in facts if isinstance(fact, CopyDone))
    return [CopyDone(fact.stage, fact.ticket) if isinstance(fact, CopyDone) else fact for fact in facts]


def settle(mover: KvCopies) -> list[Fact]:
    facts, deadline = [], time.monotonic() + PATIENCE_S
    while mover.num_in_flight and time.monotonic() < deadline:
        facts += poll(mover)
    return facts


def new_mover(pool: KvPool) -> KvCopies:
    return KvCopies({"s": pool}, lane_maker(torch.device("cpu")))


def test_a_link_that_always_fails_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    mover = new_mover(new_pool())
    for ticket in range(9):
        mover.copy(out("low", [99], [0], ticket))
    assert [type(fact) for fact in settle(mover)] == [CopyFailed] * 9
    assert [record.getMessage().partition("failed ")[2] for record in caplog.records] == [
        f"({times} so far)" for times in (1, 2, 4, 8)
    ]


def test_a_slower_link_takes_as_long_as_it_says() -> None:
    """Three blocks of layers 1 to 3, keys and values of two tokens of three numbers, at 2 kB/s: 0.216 s."""
    pool = new_pool()
    mover = KvCopies({"s": pool}, lane_maker(torch.device("cpu")), link_gb_s=2e-6)
    mover.copy(out("high", [0, 1, 2], [0, 1, 2], 0))
    landed(pool, "high", 0)
    (done,) = mover.poll()
    assert isinstance(done, CopyDone)
    assert 0.216 <= done.seconds < 20
    assert torch.equal(pool.device["high"][2][1][1], pool.host["high"][2][1][1])


class Gate:
    """Holds up the copies whose target is `late`, until it is opened; then they break off if it `breaks`."""

    def __init__(self) -> None:
        self.opened = Event()
        self.late: object = None
        self.breaks = False

    def hold(self, late: object) -> None:
        self.late = late

    def wait(self, target: object) -> None:
        if target is self.late:
            assert self.opened.wait(PATIENCE_S)
            if self.breaks:
                raise RuntimeError("out of luck")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, copy_runs = Gate(), copies.copy_runs

    def gated(source, target, pieces):
        made.wait(target)
        copy_runs(source, target, pieces)

    monkeypatch.setattr(copies, "copy_runs", gated)
    yield made
    made.opened.set()


def landed(pool: KvPool, group: str, ticket: int) -> None:
    """Wait for every layer of a copy, as a step would."""
    for layer in range(len(pool.device[group])):
        wait = pool.ready(group, layer, (ticket,))
        assert wait is not None
        wait()


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


def test_reports_come_in_the_order_given(gate: Gate) -> None:
    """A copy that is broken from the start waits for its turn."""
    pool = new_pool()
    gate.hold(pool.host["low"][0])
    mover = new_mover(pool)
    mover.copy(out("low", [1], [1], 0))
    mover.copy(out("low", [99], [0], 1))
    assert poll(mover) == []
    assert mover.num_in_flight == 2
    gate.opened.set()
    done, failed = settle(mover)
    assert done == CopyDone("s", 0)
    assert isinstance(failed, CopyFailed)
    assert (failed.ticket, failed.message) == (1, "IndexError: low: blocks [99] of a tier that has 6")


@pytest.mark.parametrize(("stuck", "free"), [(out, back), (back, out)], ids=["to the host", "back"])
def test_one_direction_does_not_hold_up_the_other(
    gate: Gate, stuck: Callable[..., CopyBlocks], free: Callable[..., CopyBlocks]
) -> None:
    """Its bytes are there; the report keeps its place in the unit's order."""
    pool = new_pool()
    tiers = {"host": pool.host, "device": pool.device}
    held, wanted = stuck("low", [1], [1], 0), free("high", [5], [4], 1)
    gate.hold(tiers[held.to]["low"][0])
    mover = new_mover(pool)
    mover.copy(held)
    mover.copy(wanted)
    landed(pool, "high", 1)
    for now, was in zip(tiers[wanted.to]["high"][2], tiers[held.to]["high"][2], strict=True):
        assert torch.equal(now[4], was[5])
    assert poll(mover) == []
    gate.opened.set()
    assert settle(mover) == [CopyDone("s", 0), CopyDone("s", 1)]


def test_one_direction_keeps_its_order_over_all_units(gate: Gate) -> None:
    """They share the device's link. Reports of one unit do not wait for those of another."""
    pools = {"a": new_pool(), "b": new_pool()}
    gate.hold(pools["a"].host["low"][0])
    mover = KvCopies(pools, CopyThreadLane)
    mover.copy(CopyBlocks("a", "low", "host", ints([0]), ints([0]), 0))
    mover.copy(CopyBlocks("b", "low", "host", ints([0]), ints([0]), 1))
    mover.copy(CopyBlocks("b", "low", "device", ints([1]), ints([1]), 2))
    landed(pools["b"], "low", 2)
    before = pools["b"].host["low"][0][0][0].clone()
    assert not torch.equal(before, pools["b"].device["low"][0][0][0])
    assert poll(mover) == []
    gate.opened.set()
    facts = settle(mover)
    assert [fact for fact in facts if fact != CopyDone("a", 0)] == [CopyDone("b", 1), CopyDone("b", 2)]
    assert len(facts) == 3


def test_a_unit_whose_copies_are_done_is_answered_while_another_waits(gate: Gate) -> None:
    pools = {"a": new_pool(), "b": new_pool()}
    gate.hold(pools["a"].host["low"][0])
    mover = KvCopies(pools, CopyThreadLane)
    mover.copy(CopyBlocks("a", "low", "host", ints([0]), ints([0]), 0))
    mover.copy(CopyBlocks("b", "low", "device", ints([1]), ints([1]), 1))
    landed(pools["b"], "low", 1)
    assert poll(mover) == [CopyDone("b", 1)]
    gate.opened.set()
    assert settle(mover) == [CopyDone("a", 0)]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (out("low", [1], [3], 0), back("low", [3], [0], 1)),
        (out("low", [1], [3], 0), back("low", [5], [1], 1)),
        (MoveBlocks("t", "s", "low", ints([1]), ints([3]), 0), out("low", [3], [2], 1)),
        (MoveBlocks("t", "s", "low", ints([1]), ints([3]), 0), back("low", [4], [3], 1)),
    ],
    ids=["reads what is written", "writes what is read", "reads what is moved", "writes where it is moved"],
)
def test_the_same_blocks_are_copied_in_the_order_given(
    gate: Gate, earlier: CopyBlocks | MoveBlocks, later: CopyBlocks
) -> None:
    pools = {"s": new_pool(), "t": new_pool()}
    ours, tiers = pools["s"], ("host", "device")
    expected = {tier: [t.clone() for t in getattr(ours, tier)["low"][0]] for tier in tiers}
    sources = {
        "host": expected["host"],
        "device": expected["device"],
        "peer": [t.clone() for t in pools["t"].device["low"][0]],
    }
    is_move = isinstance(earlier, MoveBlocks)
    for order, tier, origin in (
        (earlier, "device" if is_move else "host", "peer" if is_move else "device"),
        (later, later.to, "host" if later.to == "device" else "device"),
    ):
        for target, source in zip(expected[tier], sources[origin], strict=True):
            target[order.targets] = source[order.sources].clone()
    gate.hold(ours.device["low"][0] if is_move else ours.host["low"][0])
    mover = KvCopies(pools, CopyThreadLane)
    (mover.move if isinstance(earlier, MoveBlocks) else mover.copy)(earlier)  # type: ignore[arg-type]
    mover.copy(later)
    time.sleep(0.05)
    assert poll(mover) == []
    gate.opened.set()
    assert settle(mover) == [CopyDone("s", 0), CopyDone("s", 1)]
    for tier in tiers:
        for now, then in zip(getattr(ours, tier)["low"][0], expected[tier], strict=True):
            assert torch.equal(now, then)


def test_what_a_copy_that_broke_off_should_have_written_is_copied_by_nobody(gate: Gate) -> None:
    pool = new_pool()
    gate.hold(pool.host["low"][0])
    gate.breaks = True
    mover, before = new_mover(pool), [t.clone() for t in pool.device["low"][0]]
    mover.copy(out("low", [1], [3], 0))
    mover.copy(back("low", [3], [0], 1))
    mover.copy(back("low", [5], [2], 2))
    gate.opened.set()
    message = "RuntimeError: out of luck"
    assert settle(mover) == [CopyFailed("s", 0, message), CopyFailed("s", 1, message), CopyDone("s", 2)]
    assert torch.equal(pool.device["low"][0][0][:2], before[0][:2])


def test_who_drops_the_mover_leaves_no_thread_behind(gate: Gate) -> None:
    """What was ordered is copied to its end, also where one direction waits for the other."""
    pool = new_pool()
    gate.hold(pool.host["low"][0])
    mover, others = new_mover(pool), set(threading.enumerate())
    mover.copy(out("low", [1], [3], 0))
    mover.copy(back("low", [3], [0], 1))
    workers = set(threading.enumerate()) - others
    assert len(workers) == 2
    source = [t[1].clone() for t in pool.device["low"][0]]
    del mover
    gate.opened.set()
    gc.collect()
    for worker in workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()
    assert all(torch.equal(t[0], was) for t, was in zip(pool.device["low"][0], source, strict=True))


def test_a_gpu_has_streams_for_lanes() -> None:
    """Made on a GPU only: tests/gpu."""
    made = lane_maker(torch.device("cuda:1"))
    assert made.func is CopyStreamLane  # type: ignore[attr-defined]
    assert made.args == (torch.device("cuda:1"),)  # type: ignore[attr-defined]


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
