"""A preempted request whose KV is kept goes on from it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from antiphon.core.facts import (
    CopyDone,
)
from antiphon.core.graph import Survives
from antiphon.policy.memory import KvState
from antiphon.stage.ar import ArRequest, ArScheduler
from fakes.early import WriteEarly, owners_of
from fakes.whims import whims_of
from stage.test_ar import STOP, done, planned, request, scheduler
from stage.tiering import answered, ordered, small


def preempted(survives: Survives = Survives.ALL) -> tuple[ArScheduler, int]:
    """A request that drew two tokens has given up its row and keeps its KV."""
    stage = scheduler(survives, num_blocks=8, host_blocks=20, max_rows=2, step_tokens=20)
    stage.submit(request(1, 5, max_tokens=9))
    done(stage, planned(stage, 0), 7)
    done(stage, planned(stage, 1), 8)
    whims = whims_of(stage)
    whims.victims, whims.keeps = [0], True
    assert stage.plan(2, 0.0) is not None, "nothing else waits: it joins again"
    return stage, 3


@pytest.mark.parametrize("survives", list(Survives))
def test_a_kept_request_goes_on_from_its_own_kv(survives: Survives) -> None:
    stage, _ = preempted(survives)
    (active,) = stage._requests.values()
    assert active.row is not None
    assert active.owner == active.own_name == "session-1 #1"
    flight = stage._flights[2]
    assert flight.reach.tolist() == [7], "the token drawn last is all that it computes"
    assert stage.num_preemptions == 1
    stage.check_integrity()


def kept(stage: ArScheduler) -> ArRequest:
    """Request 1 runs, is preempted and keeps its KV, and another takes its place."""
    active = request(1, 5, max_tokens=9)
    stage.submit(active)
    done(stage, planned(stage, 0), 7)
    done(stage, planned(stage, 1), 8)
    stage._requeue(active, keep=True)
    stage.check_integrity()
    return active


def test_kept_kv_goes_by_the_requests_own_name_until_it_is_over() -> None:
    stage = small(num_blocks=8)
    active = kept(stage)
    assert list(stage.kv.resting.owners) == ["session-1 #1"]
    view, kept_as = stage.tiers.asks.view("device", 0), "session-1 #1"
    assert (view.state(kept_as), view.device(kept_as), view.on_host(kept_as)) == (KvState.PAUSED, 3, 0)
    order = planned(stage, 2)
    assert [(join.request, join.cached) for join in order.joins] == [(1, 6)]
    done(stage, order, STOP)
    assert list(stage.kv.resting.owners) == ["session-1"]
    assert stage.kv.resting.held_tokens("session-1") == 7
    assert active.paused_as == ""


def test_kept_kv_that_had_to_leave_is_brought_back() -> None:
    stage = small(num_blocks=8)
    kept(stage)
    stage.tiers.room.make_room(8)
    assert answered(stage)
    (copy,) = ordered(stage, 10.0)
    assert (copy.to, len(copy.targets)) == ("device", 3)
    stage.copied(CopyDone("s", copy.ticket))
    ordered(stage, 12.0)
    ordered(stage, 60.0)
    assert [join.cached for join in planned(stage, 2).joins] == [6], "it waited for its row since"
    assert (stage.tiers.resume_s, stage.tiers.reload_s) == (2.0, 0.0)


def test_kept_kv_of_an_aborted_request_is_its_sessions_past() -> None:
    stage = small(num_blocks=8)
    kept(stage)
    stage.abort(1)
    assert list(stage.kv.resting.owners) == ["session-1"]
    stage.check_integrity()
    assert stage.kv.resting.held_tokens("session-1") == 6


def test_what_a_request_beside_the_conversation_has_on_the_host_stays_its_own_when_it_is_kept() -> None:
    stage = small(num_blocks=8)
    aside = request(1, 4, max_tokens=9)
    aside.is_aside = True
    stage.submit(aside)
    done(stage, planned(stage, 0), 7)
    done(stage, planned(stage, 1), 8)
    WriteEarly.take_over(stage)
    stage.kv.learn(cast("Any", aside.sequence), aside.prompt.keys)
    stage.write()
    answered(stage)
    assert stage.tiers.host.num_held("session-1 #1") == 2
    stage._requeue(aside, keep=True)
    stage.check_integrity()
    assert stage.tiers.host.num_held("session-1 #1") == 2


def test_what_else_runs_under_the_sessions_name_stays_known_to_policies() -> None:
    """Of two replies to one session, the one that is preempted takes a name of its own."""
    stage = scheduler(Survives.ALL, num_blocks=16, host_blocks=20, max_rows=2, step_tokens=20)
    first, second = request(1, 5, max_tokens=9), request(2, 5, max_tokens=9)
    second.session = first.session
    stage.submit(first)
    done(stage, planned(stage, 0), 7)
    stage.submit(second)
    done(stage, planned(stage, 1), 8, 8)
    stage._requeue(first, keep=True)
    stage.check_integrity()
    view = stage.tiers.asks.view("device", 0)
    assert view.state("session-1") is KvState.RUNNING
    assert None not in map(view.state, owners_of(view))


def test_what_a_kept_request_lacks_is_known_once_its_kv_has_left() -> None:
    """Also of one that is not the oldest. Of its seven tokens six were there when it was preempted."""
    stage = small(num_blocks=8)
    older = request(2, 3, first=200)
    older.granted = 0
    stage.submit(older)
    kept(stage)
    assert num_lacking(stage) == {2: 3, 1: 1}
    stage.tiers.room.make_room(8)
    assert answered(stage)
    assert num_lacking(stage) == {2: 3, 1: 7}
    stage.check_integrity()


def num_lacking(stage: ArScheduler) -> dict[int, int]:
    """Tokens that each candidate could run next."""
    stage.tell_time(1.0)
    view, _ = stage.choose(1.0)
    return dict(zip(view.request.tolist(), view.tokens.tolist(), strict=True))
