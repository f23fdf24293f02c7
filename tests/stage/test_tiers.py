"""One decoder stage with a host tier: what is ordered, what a request waits for, and what a failure costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.core.facts import NO_INTS, CopyDone, CopyFailed, StepFailed
from antiphon.core.plans import ArStep, CopyBlocks, Join
from antiphon.policy.memory import Selection, TierView
from antiphon.stage.ar import MOST_RETRIES, ArScheduler
from fakes.early import WriteEarly
from stage.test_ar import STOP, done, planned, request, scheduler


def small(**sizes: int) -> ArScheduler:
    return scheduler(**{"num_blocks": 6, "host_blocks": 20, "max_rows": 2, "step_tokens": 20, **sizes})


def run(stage: ArScheduler, step: int, number: int, first: int, length: int = 8) -> int:
    """One request from its joining to its end; copies are done at once. Returns the next step's number."""
    stage.submit(request(number, length, first=first))
    while stage.has_work:
        order = stage.plan(step, float(step))
        stage.check_integrity()
        for copy in stage.drain():
            stage.copied(CopyDone("s", copy.ticket), step + 0.25)
        if order is not None:
            done(stage, order, *[STOP] * int(order.emits.sum()))
        step += 1
        assert step < 100, "it never ends"
    return step


def returning(stage: ArScheduler) -> tuple[Join, ArStep, CopyBlocks]:
    """Session 1 was evicted for session 2, and comes back: its join, its step, and what that waits for."""
    step = run(stage, run(stage, 0, 1, 100), 2, 300)
    stage.submit(request(1, 9))
    joins: list[Join] = []
    back: list[CopyBlocks] = []
    while (order := stage.plan(step, float(step))) is None or not len(order.rows):
        joins += [] if order is None else order.joins
        if order is not None:
            done(stage, order)
        for copy in stage.drain():
            if copy.to == "device":
                back.append(copy)
            else:
                stage.copied(CopyDone("s", copy.ticket), float(step))
        step += 1
        assert step < 100, "it never runs"
    (copy,) = (*back, *(copy for copy in stage.drain() if copy.to == "device"))
    stage.check_integrity()
    (join,) = (*joins, *order.joins)
    return join, order, copy


def test_who_comes_back_waits_for_its_copies_and_computes_the_rest() -> None:
    stage = small()
    join, order, copy = returning(stage)
    assert order.waits == (copy.ticket,)
    kept = stage.tiers.num_fetched_blocks
    assert len(copy.targets) == kept > 0
    assert join.cached >= 2 * kept
    assert order.starts.tolist() == [join.cached]
    following = planned(stage, 50)
    assert following.waits == (copy.ticket,), "nobody has said that it is there"
    stage.copied(CopyDone("s", copy.ticket), 99.0)
    assert stage.tiers.reload_s > 40.0
    assert planned(stage, 51).waits == ()


def test_a_request_that_ends_before_its_copy_frees_nothing_too_early() -> None:
    stage = small()
    _, order, copy = returning(stage)
    stage.abort(1)
    done(stage, order, 7)
    assert stage.kv.num_pending_free == len(copy.targets)
    stage.check_integrity()
    stage.copied(CopyDone("s", copy.ticket), 99.0)
    assert stage.kv.num_pending_free == 0


def test_an_answer_to_nobody_counts_for_nothing() -> None:
    """As after a unit was lost and came again."""
    stage = small()
    stage.copied(CopyDone("s", 7), 0.0)
    stage.copied(CopyFailed("s", 8, "late"), 0.0)
    stage.check_integrity()


def failed(stage: ArScheduler, order: ArStep) -> frozenset[int]:
    fact = StepFailed("s", order.step, NO_INTS, NO_INTS, "a layer did not come")
    retried = stage.retry(fact)
    stage.observe(fact)
    stage.check_integrity()
    return retried


@pytest.mark.parametrize("is_known", [False, True])
def test_a_step_that_waited_in_vain_is_tried_again_without(is_known: bool) -> None:
    """Whether the copy or the step is heard of first."""
    stage = small()
    join, order, copy = returning(stage)
    if is_known:
        stage.copied(CopyFailed("s", copy.ticket, "gone"), 60.0)
    assert failed(stage, order) == {1}
    if not is_known:
        stage.copied(CopyFailed("s", copy.ticket, "gone"), 60.0)
    again = planned(stage, 60)
    (anew,) = again.joins
    assert again.leaves.tolist() == [join.row]
    assert (again.waits, anew.request) == ((), 1)
    assert anew.cached < join.cached


def test_a_step_that_waited_for_nothing_doubtful_has_failed_for_good() -> None:
    stage = small()
    _, order, copy = returning(stage)
    stage.copied(CopyDone("s", copy.ticket), 60.0)
    assert failed(stage, order) == frozenset()


def test_there_is_an_end_to_trying() -> None:
    stage = small()
    _, order, _ = returning(stage)
    stage._requests[1].num_retries = MOST_RETRIES
    assert failed(stage, order) == frozenset()


def test_what_is_written_early_is_not_copied_again_when_it_leaves() -> None:
    stage = small()
    WriteEarly.take_over(stage)
    run(stage, 0, 1, 100)
    stage.tend(20.0)
    copies = stage.drain()
    assert [copy.to for copy in copies] == ["host"] * len(copies)
    assert stage.kv.num_idle == 4, "it stays where it is"
    for copy in copies:
        stage.copied(CopyDone("s", copy.ticket), 21.0)
    written = stage.tiers.num_written_blocks
    stage.tend(22.0)
    for copy in stage.drain():
        stage.copied(CopyDone("s", copy.ticket), 23.0)
    written = stage.tiers.num_written_blocks
    stage.tiers.make_room(6)
    assert stage.kv.num_free == 6
    assert stage.tiers.num_written_blocks == written
    assert stage.drain() == ()


def test_a_full_host_keeps_the_front_of_what_was_used_last() -> None:
    stage = small(host_blocks=2)
    run(stage, run(stage, 0, 1, 100), 2, 300)
    stage.tiers.make_room(6)
    for copy in stage.drain():
        stage.copied(CopyDone("s", copy.ticket), 50.0)
    assert stage.tiers.host.sessions == ("session-2",)
    assert stage.tiers.host.held("session-2") == [0, 1]
    stage.forget("session-2")
    assert stage.tiers.host.num_free == 2
    assert np.all(stage.rows.request == -1)


class OnlyWhatIsShort:
    """Evicts what requests wait for, and nothing ahead of them."""

    name = "only-what-is-short"

    def decide(self, view: TierView, now: float) -> Selection:
        return Selection(view.sessions, max(view.num_wanted - view.num_free, 0), "short")


def test_rows_that_need_a_block_in_the_same_step_each_have_one_freed() -> None:
    stage = small(num_blocks=9, max_rows=3)
    stage.tiers._policies = replace(stage.tiers._policies, evict=OnlyWhatIsShort())
    step = run(stage, 0, 1, 100, length=6)
    for number in (2, 3, 4):
        stage.submit(request(number, 2, max_tokens=9, first=100 * number))
    done(stage, planned(stage, step), 7, 7, 7)
    assert (stage.kv.num_free, stage.kv.num_idle) == (3, 3)
    done(stage, planned(stage, step + 1), 7, 7, 7)
    assert stage.kv.num_free == 0
    done(stage, planned(stage, step + 2), 7, 7, 7)
    assert stage.plan(step + 3, 0.0) is None, "every row waits for a block that is being copied"
    assert stage.kv.num_pending_free == 3
