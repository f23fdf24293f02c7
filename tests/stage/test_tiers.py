"""One decoder stage with a host tier: what is ordered, what a request waits for, and what a failure costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from antiphon.core.config import ArConfig
from antiphon.core.facts import (
    NO_INTS,
    CopyDone,
    CopyFailed,
    ResponseRequested,
    SessionOpened,
    SpeechStarted,
    StepFailed,
    TurnAdvised,
)
from antiphon.core.graph import KvGroup, Stage, StageKind, Survives
from antiphon.core.plans import ArStep, AudioOut, CopyBlocks, ResponseEnded, Usage
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import NEAR_S, NextUse
from antiphon.kv.transfers import CHUNK_BLOCKS, MAX_CHUNKS
from antiphon.policy.memory import NOTHING, KvPolicies, KvState, KvView, Lane, Selection
from antiphon.stage.ar import MOST_RETRIES, ArRequest, ArScheduler
from antiphon.stage.fetches import MOST_SWAPS, SWAP_S
from antiphon.stage.kv_asks import unknown
from antiphon.stage.tier_views import View
from fakes.early import WriteEarly
from fakes.whims import whims_of
from stage.test_ar import BASELINE, STOP, done, planned, request, scheduler


@dataclass
class Says:
    """A memory policy that says what a test last told it. What it saw is kept."""

    selection: Selection = NOTHING
    name: str = "says"
    views: list[KvView] = field(default_factory=list)

    def decide(self, view: KvView, now: float) -> Selection:
        self.views.append(view)
        return self.selection


def small(**sizes: Any) -> ArScheduler:
    return scheduler(**{"num_blocks": 6, "host_blocks": 20, "max_rows": 2, "step_tokens": 20, **sizes})


def grouped(**sizes: Any) -> ArScheduler:
    """Two layer groups."""
    stage = Stage("s", StageKind.AR, (KvGroup("kv"),), Survives.ALL, conditioned=False)
    sizes = {"max_rows": 2, "block_size": 2, "num_blocks": 6, "step_tokens": 20, "host_blocks": 20, **sizes}
    layers = (("low", 0, 1), ("high", 1, 2))
    return ArScheduler(stage, ArConfig(**sizes, stop_ids=(STOP,), layer_groups=layers), BASELINE)


def says(stage: ArScheduler, decision: str, selection: Selection = NOTHING) -> Says:
    """From now on this decision is what a test tells."""
    policy = Says(selection)
    stage.tiers.asks.policies = replace(stage.tiers.asks.policies, **{decision: policy})
    stage.reopen()
    return policy


def answered(stage: ArScheduler, now: float = 0.0) -> list[CopyBlocks]:
    """Every copy ordered since the last call is done."""
    stage.tell_time(now)
    copies = [copy for copy in stage.drain() if isinstance(copy, CopyBlocks)]
    for copy in copies:
        stage.copied(CopyDone("s", copy.ticket))
    stage.check_integrity()
    return copies


def run(stage: ArScheduler, step: int, number: int, first: int, length: int = 8) -> int:
    """One request from its joining to its end; copies are done at once. Returns the next step's number."""
    stage.submit(request(number, length, first=first))
    while stage.has_work:
        stage.tell_time(float(step))
        stage.tend(float(step))
        order = stage.plan(step, float(step)) or stage.join_early(step, float(step))
        stage.write()
        stage.check_integrity()
        answered(stage, step + 0.25)
        if order is not None:
            done(stage, order, *[STOP] * int(order.emits.sum()))
        step += 1
        assert step < 100, "it never ends"
    return step


def away(stage: ArScheduler, step: int = 0) -> int:
    """Session 1 was there and all of its KV is on the host. Returns the next step's number."""
    step = run(stage, step, 1, 100)
    stage.tiers.room.make_room(stage.kv.num_blocks)
    answered(stage)
    assert "session-1" in stage.kv.resting.away
    return step


def ordered(stage: ArScheduler, now: float = 0.0) -> list[CopyBlocks]:
    """What `tend` orders."""
    stage.tell_time(now)
    stage.tend(now)
    stage.check_integrity()
    return [copy for copy in stage.drain() if isinstance(copy, CopyBlocks)]


# -- evict -------------------------------------------------------------------------------------------


def three_resting(**sizes: Any) -> ArScheduler:
    """Sessions 1, 2 and 3 rest, two blocks each, used in this order."""
    stage, step = small(**sizes), 0
    for number in (1, 2, 3):
        step = run(stage, step, number, 100 * number, length=4)
    assert list(stage.kv.resting.owners) == ["session-1", "session-2", "session-3"]
    return stage


def test_owners_leave_in_the_policys_order_as_far_as_is_wanted() -> None:
    stage = three_resting()
    says(stage, "evict", Selection(["session-2", "session-3"], 3, "as told"))
    stage.tiers.room.make_room(3)
    assert stage.kv.blocks.num_free_soon == 3
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [4, 0, 2]
    assert sum(len(copy.sources) for copy in answered(stage)) == 3


def test_what_the_policy_leaves_short_goes_oldest_first() -> None:
    stage = three_resting()
    says(stage, "evict", Selection(["session-3"], 9, "not enough"))
    stage.tiers.room.make_room(3)
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [2, 4, 0]


def test_what_requests_wait_for_leaves_after_all_other_and_the_next_one_in_the_end() -> None:
    stage = three_resting()
    says(stage, "evict")
    stage.tiers.known.waiting = ["session-1", "session-2"]
    stage.tiers.room.make_room(2, last="session-1")
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [4, 4, 0]
    stage.tiers.room.make_room(4, last="session-1")
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2)] == [4, 0]
    stage.tiers.room.make_room(6, last="session-1")
    assert stage.kv.blocks.num_free_soon == 6


def test_what_is_to_be_kept_stays_whatever_is_wanted() -> None:
    stage = three_resting()
    says(stage, "evict", Selection(["session-2", "session-1", "session-3"], 6, "all"))
    stage.tiers.room.make_room(6, keep={"session-2"})
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [0, 4, 0]


def test_nothing_that_a_request_waits_for_is_evicted_only_to_have_room_ahead() -> None:
    stage = three_resting()
    says(stage, "evict", Selection(["session-1", "session-2"], 4, "ahead"))
    stage.tiers.known.waiting = ["session-1"]
    stage.tiers.room.evict(0, "")
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [4, 0, 4]


class Owners:
    """Names in order, which count how many were read."""

    def __init__(self, size: int) -> None:
        self.names = {f"session-{at}": None for at in range(size)}
        self.num_read = 0

    def __iter__(self) -> Iterator[str]:
        for name in self.names:
            self.num_read += 1
            yield name

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


def view_of(owners: Owners) -> View:
    kv, none = cast("Any", SimpleNamespace(resting=SimpleNamespace(owners=owners))), cast("Any", None)
    return View("device", 0, kv, none, none, 0.0, None, None, {}, lambda to: Lane(), unknown)


@pytest.mark.parametrize(("taken", "most"), [(1, 8), (8, 8), (9, 24), (100, 400)])
def test_the_oldest_cost_what_is_taken_of_them(taken: int, most: int) -> None:
    owners = Owners(10_000)
    oldest = view_of(owners).oldest()
    assert [next(oldest) for _ in range(taken)] == [f"session-{at}" for at in range(taken)]
    assert owners.num_read <= most + 1


@pytest.mark.parametrize("leaves", [lambda at: True, lambda at: at % 3 == 0, lambda at: False])
def test_owners_may_leave_while_the_oldest_are_read(leaves: Callable[[int], bool]) -> None:
    owners = Owners(1000)
    found = []
    for at, name in enumerate(view_of(owners).oldest()):
        found.append(name)
        if leaves(at):
            del owners.names[name]
    assert found == [f"session-{at}" for at in range(1000)]
    assert owners.num_read <= 4 * 1000


# -- write -------------------------------------------------------------------------------------------


def test_what_is_written_early_is_not_copied_again_when_it_leaves() -> None:
    stage = small()
    run(stage, 0, 1, 100)
    WriteEarly.take_over(stage)
    stage.write()
    assert {copy.to for copy in answered(stage)} == {"host"}
    assert stage.kv.blocks.num_idle == 4, "it stays where it is"
    stage.write()
    answered(stage)
    written = stage.tiers.writes.num_written_blocks
    assert written == 4
    stage.tiers.room.make_room(6)
    assert stage.kv.blocks.num_free == 6
    assert stage.tiers.writes.num_written_blocks == written
    assert stage.drain() == ()


def test_early_writes_take_only_what_is_free_on_the_host() -> None:
    stage = three_resting(host_blocks=3)
    says(stage, "evict")
    says(stage, "write", Selection(["session-1", "session-2"], 9, "early"))
    stage.write()
    assert stage.tiers.writes.num_written_blocks == 3
    answered(stage)
    assert (stage.tiers.host.held("session-1"), stage.tiers.host.held("session-2")) == ([0, 1], [0])
    stage.write()
    assert stage.drain() == (), "nothing leaves the host for it"


def test_early_writes_go_in_chunks() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    run(stage, 0, 1, 100, length=300)
    says(stage, "write", Selection(["session-1"], 999, "early"))
    stage.write()
    most = MAX_CHUNKS * CHUNK_BLOCKS
    assert stage.tiers.writes.num_written_blocks == most
    stage.write()
    assert stage.tiers.writes.num_written_blocks == most, "the link has enough to do"
    answered(stage)
    stage.write()
    assert stage.tiers.writes.num_written_blocks == 2 * most


def test_a_full_host_keeps_the_front_of_what_was_used_last() -> None:
    stage = small(host_blocks=2)
    run(stage, run(stage, 0, 1, 100), 2, 300)
    stage.tiers.room.make_room(6)
    answered(stage)
    assert list(stage.tiers.host.owners) == ["session-2"]
    assert stage.tiers.host.held("session-2") == [0, 1]
    stage.forget("session-2")
    assert stage.tiers.host.num_free == 2
    assert np.all(stage.rows.request == -1)


# -- by next use -------------------------------------------------------------------------------------


def known_people(*sessions: str) -> NextUse:
    """Of open sessions whose person has just heard a reply of one second, each a second after the other."""
    frontier = Frontier(1, 0.0)
    monitor = Monitor(frontier)
    next_use = NextUse(monitor, frontier)
    for at, session in enumerate(sessions):
        for fact in (SessionOpened(session), ResponseRequested(session, f"r-{session}", "item")):
            monitor.observe(fact, float(at))
            next_use.observe(fact, float(at))
        outputs = (
            AudioOut(session, f"r-{session}", bytes(4 * 24_000)),
            ResponseEnded(session, f"r-{session}", "completed", "", "", Usage()),
        )
        monitor.hear(outputs, float(at))
        next_use.hear(outputs, float(at))
    return next_use


def test_a_view_reads_one_owner_without_a_look_at_its_blocks() -> None:
    stage = small()
    next_use = known_people("session-1")
    stage.tiers.asks.meet(next_use._monitor, next_use)
    run(stage, 0, 1, 100)
    view = stage.tiers.asks.view("device", 0)
    found = view.find("session-1")
    assert found is not None
    assert (view.state("session-1"), view.device("session-1")) == (found.state, found.device)
    assert view.device("session-1") == 4
    assert view.due_s("session-1") == found.due_s > 0
    assert (view.state("none"), view.device("none")) == (None, 0)
    assert math.isnan(view.due_s("none"))
    assert not view.is_expected("session-1")
    next_use.observe(TurnAdvised("session-1", expected_s=100.0), 6.0)
    assert view.expects_at == 6.0 + 100.0 - NEAR_S
    next_use.observe(SpeechStarted("session-1"), 6.0)
    stage.tell_time(6.0)
    assert stage.tiers.asks.view("device", 0).is_expected("session-1")


def test_early_writing_begins_with_what_is_needed_last_and_passes_over_what_is_written() -> None:
    stage = small(num_blocks=8)
    sessions = ("session-3", "session-2", "session-1")
    next_use = known_people(*sessions)
    stage.tiers.asks.meet(next_use._monitor, next_use)
    step = 0
    for number in (1, 2, 3):
        step = run(stage, step, number, 100 * number, length=4)
    stage.tell_time(3.0)
    view = stage.tiers.asks.view("device", 0)
    assert [*view.dirty()] == ["session-1", "session-2", "session-3"]
    assert [*view.farthest_dirty()] == ["session-1", "session-2", "session-3"]
    stage.tell_time(60.0)
    assert [*stage.tiers.asks.view("device", 0).farthest_dirty()] == [*sessions], "the longest overdue"
    says(stage, "write", Selection(["session-3"], 9, "early"))
    stage.write()
    answered(stage, 60.0)
    assert [*stage.tiers.asks.view("device", 0).farthest_dirty()] == ["session-2", "session-1"]
    assert "session-3" not in stage.tiers.known.unwritten
    run(stage, step, 4, 900, length=4)
    found = [*stage.tiers.asks.view("device", 0).farthest_dirty()]
    assert found == ["session-1", "session-2", "session-4"], "then that of which nothing is known"


def test_what_the_policy_keeps_on_the_host_stays_and_what_comes_is_lost() -> None:
    stage = small(host_blocks=4)
    run(stage, away(stage), 2, 300)
    policy = says(stage, "evict")
    stage.tiers.room.make_room(6)
    answered(stage)
    assert list(stage.tiers.host.owners) == ["session-1"]
    assert "session-2" not in stage.tiers.known.used_s, "nothing of it is left anywhere"
    host = next(view for view in policy.views if view.tier == "host")
    assert host.incoming == {"session-2": 4}


# -- fetch -------------------------------------------------------------------------------------------


def test_what_a_request_waits_for_is_brought_at_once_and_then_it_joins() -> None:
    stage = small()
    step = away(stage)
    stage.submit(request(1, 9))
    (copy,) = ordered(stage, 10.0)
    assert (copy.to, len(copy.targets)) == ("device", 4)
    assert stage.tiers.fetches.is_coming("session-1")
    stage.copied(CopyDone("s", copy.ticket))
    assert ordered(stage, 12.0) == []
    assert not stage.tiers.fetches.is_coming("session-1")
    order = stage.plan(step, 12.0)
    assert order is not None
    (join,) = order.joins
    assert (join.cached, order.starts.tolist(), order.tickets) == (8, [8], ())
    assert stage.tiers.reload_s == 2.0


def test_what_no_request_waits_for_comes_in_chunks_and_none_after_it_is_unselected() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    run(stage, 0, 1, 100, length=300)
    stage.tiers.room.make_room(200)
    answered(stage)
    says(stage, "evict")
    policy = says(stage, "fetch", Selection(["session-1"], 999, "soon"))
    sizes = [len(copy.targets) for now in range(4) for copy in ordered(stage, now)]
    assert sizes == [CHUNK_BLOCKS] * MAX_CHUNKS
    policy.selection = NOTHING
    assert ordered(stage, 5.0) == []
    assert stage.kv.resting.get("session-1") is not None


def test_turns_that_come_to_nothing_are_no_swaps_of_one_another() -> None:
    stage = small()
    away(stage)
    for turn in range(3):
        at = turn * (SWAP_S + 1.0)
        says(stage, "evict")
        says(stage, "fetch", Selection(["session-1"], 9, "soon"))
        stage.tell_time(at)
        stage.tend(at)
        brought = sum(len(copy.targets) for copy in answered(stage, at))
        assert brought
        says(stage, "fetch")
        stage.tiers.room.make_room(stage.kv.num_blocks)
        answered(stage, at)
        assert stage.tiers.room.num_swapped_blocks == (turn + 1) * brought, (
            "and nothing beside what was brought"
        )


def test_policies_that_disagree_do_not_swap_the_same_blocks_for_ever() -> None:
    """One brings what the other gives up at once, until a request reads it."""
    stage = small()
    step = away(stage)
    says(stage, "fetch", Selection(["session-1"], 9, "soon"))
    says(stage, "evict", Selection(["session-1"], 9, "away with it"))
    brought: list[int] = []
    for _ in range(20):
        stage.tell_time(0.0)
        stage.tend(0.0)
        brought.append(sum(len(copy.targets) for copy in answered(stage)))
    blocks = brought[0]
    assert blocks
    assert brought == [blocks] * MOST_SWAPS + [0] * (20 - MOST_SWAPS)
    assert stage.tiers.room.num_swapped_blocks == MOST_SWAPS * blocks
    seen = says(stage, "evict")
    assert not ordered(stage), "nothing waits for it"
    assert seen.views[0].num_preloaded("session-1") == MOST_SWAPS * blocks, "what was ordered, and no more"
    run(stage, step, 1, 100)
    assert seen.views[0].num_preloaded("session-1") == 0
    assert not stage.tiers.known.unread, "a request has read it"


def test_reach_bounds_what_is_brought() -> None:
    stage = small()
    away(stage)
    says(stage, "evict")
    says(stage, "fetch", Selection(["session-1"], 9, "a little", reach={"session-1": 2}))
    assert [len(copy.targets) for copy in ordered(stage)] == [2]
    assert ordered(stage) == []


def test_kv_of_a_request_that_would_not_fit_is_not_brought() -> None:
    stage = small(max_rows=3)
    step = away(stage)
    stage.submit(request(2, 8, max_tokens=3, first=300))
    order = planned(stage, step)
    stage.submit(request(1, 9))
    assert ordered(stage) == []
    assert stage.tiers.fetches.is_unfit("session-1")
    assert stage.plan(step + 1, 0.0) is not None, "the other one goes on"
    assert [one.request for one in stage._waiting] == [1]
    stage.abort(2)
    done(stage, order, 7)
    stage.observe(StepFailed("s", step + 1, NO_INTS, NO_INTS, "it is gone"))
    assert {copy.to for copy in ordered(stage)} >= {"device"}
    assert not stage.tiers.fetches.is_unfit("session-1")


def test_blocks_that_rows_wait_for_are_not_taken_by_what_is_fetched() -> None:
    stage = small()
    away(stage)
    says(stage, "evict")
    says(stage, "fetch", Selection(["session-1"], 9, "soon"))
    stage.tiers.room.claim(4)
    assert [len(copy.targets) for copy in ordered(stage)] == [2]
    stage.tiers.room.begin_plan()
    assert [len(copy.targets) for copy in ordered(stage)] == [2]


class InTurn:
    """Evicts these owners when blocks are short: of the device no more than that, of the host `more`."""

    name = "in-turn"

    def __init__(self, *owners: str, more: int = 0) -> None:
        self.owners = owners
        self.more = more

    def decide(self, view: KvView, now: float) -> Selection:
        short = max(view.num_wanted - view.num_free, 0)
        return Selection(self.owners, short + self.more * (view.tier == "host"), "in turn")


def test_what_is_brought_is_read_whole_though_room_for_it_is_made_at_the_hosts_cost() -> None:
    """Session 1 comes back, session 2 leaves for it, and the full host drops copies of session 1 for that."""
    stage = small(host_blocks=4)
    step = away(stage)
    stage.tiers.asks.policies = replace(
        stage.tiers.asks.policies, evict=InTurn("session-1", "session-2", more=2)
    )
    run(stage, step, 2, 300)
    assert (stage.tiers.host.num_free, stage.kv.blocks.num_free) == (0, 2)
    stage.submit(request(1, 9))
    copies = ordered(stage)
    back = {slot for copy in copies if copy.to == "device" for slot in copy.sources.tolist()}
    out = {slot for copy in copies if copy.to == "host" for slot in copy.targets.tolist()}
    assert back
    assert not back & out, "a host block is written while it is read"


def test_what_two_sessions_share_stays_while_one_of_them_is_brought_more() -> None:
    stage = small(num_blocks=7)
    step = run(stage, away(stage), 2, 100, length=4)  # it begins as session 1 does
    run(stage, step, 3, 300)
    stage.tiers.asks.policies = replace(stage.tiers.asks.policies, evict=InTurn("session-2", "session-3"))
    assert (stage.kv.resting.held_tokens("session-2"), stage.kv.blocks.num_free) == (4, 1)
    stage.submit(request(1, 9))
    ordered(stage)
    assert stage.kv.resting.held_tokens("session-1") == 4, "the shared blocks are part of what it begins with"
    assert stage.kv.resting.held_tokens("session-3") < 8


# -- joining early, and failures ---------------------------------------------------------------------


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


# -- groups ------------------------------------------------------------------------------------------


def test_a_policy_evicts_one_group_and_no_more_blocks_than_it_said() -> None:
    stage, step = grouped(num_blocks=8), 0
    for number in (1, 2, 3):
        step = run(stage, step, number, 100 * number, length=4)
    says(stage, "evict", Selection(["session-1", "session-2", "session-3"], 3, "high", groups=("high",)))
    stage.tiers.room.evict(0, "")
    copies = answered(stage)
    assert [(copy.group, len(copy.sources)) for copy in copies] == [("high", 3)]
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [0, 2, 4]
    assert stage.kv.blocks.num_free == 2, "the other group is where it was"


def test_a_request_is_brought_the_group_alone_that_it_lacks() -> None:
    stage = grouped()
    step = run(stage, 0, 1, 100)
    policy = says(stage, "evict", Selection(["session-1"], 2, "high", groups=("high",)))
    stage.tiers.room.evict(0, "")
    answered(stage)
    policy.selection = NOTHING
    stage.submit(request(1, 9))
    copies = ordered(stage)
    assert [(copy.to, copy.group, len(copy.targets)) for copy in copies] == [("device", "high", 2)]
    for copy in copies:
        stage.copied(CopyDone("s", copy.ticket))
    ordered(stage)
    assert [join.cached for join in planned(stage, step).joins] == [8]


def test_room_is_made_though_different_groups_are_left_of_different_owners() -> None:
    stage, step = grouped(num_blocks=8), 0
    for number in (1, 2):
        step = run(stage, step, number, 100 * number, length=8)
    policy = says(stage, "evict", Selection(["session-1"], 2, "high", groups=("high",)))
    stage.tiers.room.evict(0, "")
    policy.selection = Selection(["session-2"], 2, "low", groups=("low",))
    stage.tiers.room.evict(0, "")
    answered(stage)
    policy.selection = NOTHING
    stage.tiers.room.make_room(6)
    assert stage.kv.blocks.num_free_soon >= 6


# -- kept preemption ---------------------------------------------------------------------------------


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
    held = stage.tiers.asks.view("device", 0).find("session-1 #1")
    assert held is not None
    assert (held.state, held.device, held.host) == (KvState.PAUSED, 3, 0)
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
    (copy,) = ordered(stage)
    assert (copy.to, len(copy.targets)) == ("device", 3)
    stage.copied(CopyDone("s", copy.ticket))
    ordered(stage)
    assert [join.cached for join in planned(stage, 2).joins] == [6]


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


# -- leases ------------------------------------------------------------------------------------------


def test_a_request_that_moves_is_brought_what_it_computed() -> None:
    origin, target = small(num_blocks=8), small(num_blocks=8)
    origin.submit(request(1, 5, max_tokens=9))
    order = planned(origin, 0)
    done(origin, order, 7)
    moving = origin.hand_on(1, "t")
    (lease,) = origin.leases
    assert (lease.num_tokens, len(lease.blocks)) == (5, 3)
    origin.forget("session-1")
    assert origin.kv.blocks.num_free == 5, "what is leased is not handed out"
    target.submit(moving)
    step = planned(target, 0)
    (copy,) = target.drain()
    assert [(join.cached, step.tickets) for join in step.joins] == [(5, (copy.ticket,))]
    assert target.tiers.leases.num_moved_blocks == 3
    target.copied(CopyDone("s", copy.ticket))
    assert target.tiers.leases.returned() == [lease]
    origin.take_back(lease)
    origin.take_back(lease)
    assert origin.kv.blocks.num_free == 8
    for stage in (origin, target):
        stage.check_integrity()


def test_who_moves_does_not_take_what_another_one_is_being_brought() -> None:
    """Else the one would be brought again and again, and the other never get its room."""
    origin, target = small(num_blocks=8), small()
    origin.submit(request(9, 9, max_tokens=9))
    done(origin, planned(origin, 0), 7)
    step = away(target)
    target.submit(request(1, 9, first=100))
    (copy,) = ordered(target)
    assert copy.to == "device"
    target.submit(origin.hand_on(9, "t"))
    num_evicted = target.kv.resting.num_evicted_blocks
    assert target.plan(step, 0.0) is None
    assert target.kv.resting.num_evicted_blocks == num_evicted
    target.copied(CopyDone("s", copy.ticket))
    ordered(target)
    assert [join.request for join in planned(target, step).joins] == [1]
    target.check_integrity()


def test_a_lease_of_a_lost_unit_is_of_no_use() -> None:
    origin, target = small(num_blocks=8), small(num_blocks=8)
    origin.submit(request(1, 5, max_tokens=9))
    done(origin, planned(origin, 0), 7)
    moving = origin.hand_on(1, "t")
    assert moving.lease is not None
    moving.lease.is_void = True
    target.submit(moving)
    assert [join.cached for join in planned(target, 0).joins] == [0]
    assert target.drain() == ()


# -- room for rows -----------------------------------------------------------------------------------


class OnlyWhatIsShort:
    """Evicts what requests wait for, and nothing ahead of them."""

    name = "only-what-is-short"

    def decide(self, view: KvView, now: float) -> Selection:
        return Selection(view.oldest(), max(view.num_wanted - view.num_free, 0), "short")


def test_rows_that_need_a_block_in_the_same_step_each_have_one_freed() -> None:
    stage = small(num_blocks=9, max_rows=3)
    stage.tiers.asks.policies = replace(stage.tiers.asks.policies, evict=OnlyWhatIsShort())
    step = run(stage, 0, 1, 100, length=6)
    for number in (2, 3, 4):
        stage.submit(request(number, 2, max_tokens=9, first=100 * number))
    done(stage, planned(stage, step), 7, 7, 7)
    assert (stage.kv.blocks.num_free, stage.kv.blocks.num_idle) == (3, 3)
    done(stage, planned(stage, step + 1), 7, 7, 7)
    assert stage.kv.blocks.num_free == 0
    done(stage, planned(stage, step + 2), 7, 7, 7)
    assert stage.plan(step + 3, 0.0) is None, "every row waits for a block that is being copied"
    assert stage.kv.blocks.num_pending_free == 3


def test_a_policy_that_waits_is_asked_again_on_time() -> None:
    stage = small()
    says(stage, "fetch", replace(NOTHING, wake_at=7.0))
    says(stage, "write", replace(NOTHING, wake_at=5.0))
    stage.tell_time(1.0)
    stage.tend(1.0)
    assert stage.kv_wakes_at == 7.0
    stage.write()
    assert stage.kv_wakes_at == 5.0
    stage.tell_time(2.0)
    assert stage.kv_wakes_at == 5.0
    says(stage, "write")
    stage.write()
    assert stage.kv_wakes_at == 7.0


def test_only_the_evict_policy_is_asked_in_a_stage_without_a_host() -> None:
    stage = scheduler()
    policy = Says()
    stage.tiers.asks.policies = KvPolicies(policy, policy, policy)
    stage.tend(0.0)
    stage.write()
    stage.submit(request(1, 2))
    done(stage, planned(stage, 0), STOP)
    stage.tiers.room.make_room(8)
    assert [view.num_wanted for view in policy.views] == [0, 8]
    assert stage.kv.blocks.num_free == 8
