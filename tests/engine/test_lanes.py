"""A lane keeps the order, rings after each piece of work, and swallows nothing."""

from __future__ import annotations

import gc
import os
import select
import threading

import pytest

from antiphon.core.facts import NO_INTS, Fact, StepFailed
from antiphon.core.plans import EncodeStep, Step
from antiphon.engine.lanes import Landing, Lane, LanedExecutor, StreamLane, landing

WAIT_S = 10.0


class Slow:
    """Lands when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.threads: list[tuple[int, int]] = []

    def launch(self, step: Step) -> Landing:
        launched = threading.get_ident()

        def land() -> Fact:
            assert self.let.wait(WAIT_S)
            self.threads.append((launched, threading.get_ident()))
            return StepFailed("s", step.step, NO_INTS, NO_INTS, "")

        return land


def step(number: int) -> EncodeStep:
    return EncodeStep("s", number, (), "")


def rings(lane: Lane, wait_s: float = WAIT_S) -> bool:
    return bool(select.select([lane], [], [], wait_s)[0])


def everything(lane: Lane, executor: LanedExecutor, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        assert rings(lane)
        lane.clear()
        numbers += [fact.step for fact in executor.poll() if isinstance(fact, StepFailed)]
    return numbers


@pytest.mark.parametrize("kind", [Lane, StreamLane])
def test_steps_end_in_order_and_ring(kind: type[Lane]) -> None:
    """A CPU's lane launches in its thread; a GPU's where it is asked, and only lands in its thread."""
    lane, slow = kind(), Slow()
    executor = LanedExecutor(slow, lane)
    for number in range(3):
        executor.submit(step(number))
    assert not rings(lane, 0.0)
    assert not executor.poll()
    slow.let.set()
    assert everything(lane, executor, 3) == [0, 1, 2]
    mine = threading.get_ident()
    assert [launched == mine for launched, _ in slow.threads] == [kind is StreamLane] * 3
    assert all(landed != mine for _, landed in slow.threads)


def test_orders_come_between_the_steps_around_them() -> None:
    lane, slow = Lane(), Slow()
    executor = LanedExecutor(slow, lane)
    seen: list[int] = []
    for number in range(2):
        executor.submit(step(number))
        lane.carry_out(lambda: seen.append(len(slow.threads)))
    slow.let.set()
    everything(lane, executor, 2)
    while len(seen) < 2:
        assert rings(lane)
        lane.clear()
    assert seen == [1, 2]


def test_what_an_order_raises_comes_out_once_and_the_lane_goes_on() -> None:
    lane, slow = Lane(), Slow()
    executor = LanedExecutor(slow, lane)
    lane.carry_out(lambda: [][0])
    assert rings(lane)
    with pytest.raises(IndexError):
        lane.clear()
    lane.clear()
    slow.let.set()
    executor.submit(step(0))
    assert everything(lane, executor, 1) == [0]


def test_nobody_listens_for_long() -> None:
    """The bell's pipe is full: nothing blocks, and it still rings."""
    lane = Lane()
    os.write(lane._bell, b"!" * 65536)
    done = threading.Event()
    lane.carry_out(lambda: None)
    lane.carry_out(done.set)
    assert done.wait(WAIT_S)
    assert rings(lane)


def test_a_lane_that_is_dropped_leaves_nothing_open() -> None:
    lane = Lane()
    ends = (lane._ears, lane._bell)
    lane.carry_out(lambda: None)
    assert rings(lane)
    lane._pool.shutdown()
    del lane
    gc.collect()
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_a_landing_never_raises() -> None:
    def failed(error: Exception) -> Fact:
        return StepFailed("s", 0, NO_INTS, NO_INTS, str(error))

    def breaks() -> Landing:
        raise RuntimeError("before")

    def breaks_late() -> Fact:
        raise RuntimeError("after")

    for begin, message in ((breaks, "before"), (lambda: breaks_late, "after")):
        fact = landing(begin, failed)()
        assert isinstance(fact, StepFailed)
        assert fact.message == message
