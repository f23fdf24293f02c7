"""Steps that wait for copies, and copies that fail."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.core.facts import (
    NO_INTS,
    CopyDone,
    CopyFailed,
    StepFailed,
)
from antiphon.core.plans import ArStep, CopyBlocks
from antiphon.stage.ar import MOST_RETRIES, ArScheduler
from stage.test_ar import done, planned, request
from stage.tiering import away, ordered, run, small


def returning(stage: ArScheduler) -> tuple[ArStep, CopyBlocks]:
    """Session 1 is on the host and comes back: the step that waits for its copy, and the copy."""
    step = away(stage)
    stage.submit(request(1, 9))
    (copy,) = ordered(stage)
    order = planned(stage, step)
    return order, copy


def test_where_nothing_else_can_run_a_step_waits_for_its_copies() -> None:
    stage = small()
    order, copy = returning(stage)
    (join,) = order.joins
    assert order.tickets == (copy.ticket,)
    assert (join.cached, order.starts.tolist()) == (8, [8])
    assert len(copy.targets) == stage.tiers.fetches.num_fetched_blocks == 4
    following = planned(stage, 50)
    assert following.tickets == (copy.ticket,), "nothing has said that it is there"
    stage.tell_time(99.0)
    stage.copied(CopyDone("s", copy.ticket))
    assert stage.tiers.reload_s == 99.0
    assert planned(stage, 51).tickets == ()


def test_a_request_that_a_pace_policy_holds_does_not_join_early() -> None:
    stage = small()
    step = away(stage)
    stage.submit(request(1, 9))
    assert ordered(stage)
    view, _ = stage.choose(0.0)
    view.hold(np.ones(len(view), np.bool_))
    assert stage.plan(step, 0.0) is None
    view, _ = stage.choose(0.0)
    view.hold(np.ones(len(view), np.bool_))
    assert stage.join_early(step, 0.0) is None
    assert stage.join_early(step, 0.0) is not None


def test_a_request_that_ends_before_its_copy_frees_nothing_too_early() -> None:
    stage = small()
    order, copy = returning(stage)
    stage.abort(1)
    done(stage, order, 7)
    assert stage.kv.blocks.num_pending_free == len(copy.targets)
    stage.check_integrity()
    stage.copied(CopyDone("s", copy.ticket))
    assert stage.kv.blocks.num_pending_free == 0


def test_an_answer_to_nothing_counts_for_nothing() -> None:
    """As after a unit was lost and came again."""
    stage = small()
    stage.copied(CopyDone("s", 7))
    stage.copied(CopyFailed("s", 8, "late"))
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
    order, copy = returning(stage)
    (join,) = order.joins
    if is_known:
        stage.copied(CopyFailed("s", copy.ticket, "gone"))
    assert failed(stage, order) == {1}
    if not is_known:
        stage.copied(CopyFailed("s", copy.ticket, "gone"))
    assert ordered(stage) == []
    again = planned(stage, 60)
    (anew,) = again.joins
    assert again.leaves.tolist() == [join.row]
    assert (again.tickets, anew.request) == ((), 1)
    assert anew.cached < join.cached


def test_a_request_whose_kv_does_not_come_computes_it() -> None:
    stage = small()
    step = away(stage)
    stage.submit(request(1, 9))
    (copy,) = ordered(stage)
    stage.copied(CopyFailed("s", copy.ticket, "gone"))
    assert ordered(stage) == []
    assert stage.tiers.host.num_free == 20
    order = planned(stage, step)
    assert [join.cached for join in order.joins] == [0]


def test_a_block_that_could_not_be_written_is_gone_and_frees_both_ends() -> None:
    stage = small()
    run(stage, 0, 1, 100)
    stage.tiers.room.make_room(6)
    for copy in stage.drain():
        stage.copied(CopyFailed("s", copy.ticket, "full"))
    assert (stage.kv.blocks.num_free, stage.tiers.host.num_free) == (6, 20)
    stage.check_integrity()


def test_a_step_that_waited_for_nothing_doubtful_has_failed_for_good() -> None:
    stage = small()
    order, copy = returning(stage)
    stage.copied(CopyDone("s", copy.ticket))
    assert failed(stage, order) == frozenset()


def test_there_is_an_end_to_trying() -> None:
    stage = small()
    order, _ = returning(stage)
    stage._requests[1].num_retries = MOST_RETRIES
    assert failed(stage, order) == frozenset()
