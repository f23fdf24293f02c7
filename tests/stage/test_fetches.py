"""What is brought from the host, and when not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.facts import (
    NO_INTS,
    CopyDone,
    StepFailed,
)
from antiphon.kv.transfers import CHUNK_BLOCKS, MAX_CHUNKS
from antiphon.policy.base import Budget, Hold, StepChoice, StepView, Tier
from antiphon.policy.memory import NOTHING, KvState, KvView, Selection
from antiphon.stage.ar import ArScheduler
from antiphon.stage.fetches import BUSY, MOST_SWAPS, NO_ROOM, SWAP_S, SWAPPED
from stage.test_ar import done, planned, request
from stage.tiering import answered, away, grouped, ordered, run, says, small


def test_what_a_request_waits_for_is_brought_at_once_and_then_it_joins() -> None:
    stage = small()
    step = away(stage)
    stage.submit(request(1, 9))
    (copy,) = ordered(stage, 10.0)
    assert (copy.to, len(copy.targets)) == ("device", 4)
    assert "session-1" in stage.tiers.fetches.coming
    stage.copied(CopyDone("s", copy.ticket))
    assert ordered(stage, 12.0) == []
    assert "session-1" not in stage.tiers.fetches.coming
    order = stage.plan(step, 12.0)
    assert order is not None
    (join,) = order.joins
    assert (join.cached, order.starts.tolist(), order.tickets) == (8, [8], ())
    assert stage.tiers.reload_s == 2.0


def test_the_policy_is_asked_once_for_all_that_wait() -> None:
    stage = small()
    step = away(stage)
    policy = says(stage, "fetch", Selection(["session-1"], 99, "a request waits for it"))
    for number in (1, 2):
        stage.submit(request(number, 9))
    stage.tell_time(10.0)
    stage.tend(10.0)
    assert "session-1" in stage.tiers.fetches.coming
    assert [join.request for join in planned(stage, step).joins] == [2]
    assert len(policy.views) == 1


def test_what_no_request_waits_for_comes_in_chunks_and_none_after_it_is_unselected() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    run(stage, 0, 1, 100, length=300)
    stage.tiers.room.make_room(200)
    answered(stage)
    says(stage, "evict")
    policy = says(stage, "fetch", Selection(["session-1"], 999, "soon"))
    sizes = [len(copy.targets) for now in range(4) for copy in ordered(stage, now)]
    assert sizes == [CHUNK_BLOCKS] * MAX_CHUNKS
    assert not stage.tiers.fetches.unordered, "the rest follows"
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
    assert stage.tiers.fetches.unordered == {"session-1": SWAPPED}
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


def test_why_nothing_is_ordered_of_what_the_policy_would_bring_is_known() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    step = run(stage, 0, 1, 100, length=300)
    run(stage, step, 2, 200, length=30)
    stage.tiers.room.make_room(200)
    answered(stage)
    says(stage, "evict")
    policy = says(stage, "fetch", Selection(["session-1"], 999, "soon"))
    for now in range(MAX_CHUNKS - 1):
        ordered(stage, now)
    policy.selection = Selection(["session-1", "session-2"], 999, "soon")
    ordered(stage, 9.0)
    assert stage.tiers.fetches.unordered == {"session-2": BUSY}
    full = small()
    step = away(full)
    says(full, "evict")
    for number in (2, 3, 4):
        step = run(full, step, number, 100 * number, length=4)
    says(full, "fetch", Selection(["session-1"], 9, "soon"))
    assert ordered(full, 1.0) == []
    assert full.tiers.fetches.unordered == {"session-1": NO_ROOM}
    says(full, "fetch")
    ordered(full, 2.0)
    assert full.tiers.fetches.unordered == {}


def test_reach_bounds_what_is_brought() -> None:
    stage = small()
    away(stage)
    says(stage, "evict")
    says(stage, "fetch", Selection(["session-1"], 9, "a little", reach={"session-1": 2}))
    assert [len(copy.targets) for copy in ordered(stage)] == [2]
    assert ordered(stage) == []


def test_what_no_request_waits_for_leaves_rows_the_blocks_that_they_were_promised() -> None:
    stage = small(num_blocks=8, step_tokens=50)
    step = away(stage)
    stage.submit(request(2, 11, max_tokens=5, first=300))
    done(stage, planned(stage, step), 7)
    assert (stage.kv.blocks.num_free, stage.kv.num_promised) == (2, 1)
    says(stage, "evict")
    says(stage, "fetch", Selection(["session-1"], 9, "soon"))
    assert [len(copy.targets) for copy in ordered(stage)] == [1]
    for at in range(1, 4):
        done(stage, planned(stage, step + at), 7)


def test_kv_of_a_request_that_would_not_fit_is_not_brought() -> None:
    stage = small(max_rows=3)
    step = away(stage)
    stage.submit(request(2, 8, max_tokens=3, first=300))
    order = planned(stage, step)
    stage.submit(request(1, 9))
    assert ordered(stage) == []
    assert stage.tiers.fetches.is_unfit("session-1")
    assert stage.plan(step + 1, 0.0) is not None, "the other one goes on"
    assert [one.request for one in stage.waiting] == [1]
    stage.abort(2)
    done(stage, order, 7)
    stage.observe(StepFailed("s", step + 1, NO_INTS, NO_INTS, "it is gone"))
    assert {copy.to for copy in ordered(stage)} >= {"device"}
    assert not stage.tiers.fetches.is_unfit("session-1")


def test_who_waits_for_room_is_told_from_who_waits_for_the_link() -> None:
    stage = small(max_rows=3)
    step = away(stage)
    stage.submit(request(2, 8, max_tokens=3, first=300))
    planned(stage, step)
    policy = says(stage, "fetch", Selection(["session-1"], 9, "a request waits for it"))
    stage.submit(request(1, 9))
    assert ordered(stage) == []
    assert policy.views[-1].is_pressing("session-1"), "nobody had looked before"
    stage.reopen()
    assert ordered(stage) == []
    assert not policy.views[-1].is_pressing("session-1")


def test_what_is_read_ahead_is_brought_in_chunks_like_what_no_request_waits_for() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    run(stage, 0, 1, 100, length=300)
    stage.tiers.room.make_room(200)
    answered(stage)
    ahead = request(1, 301)
    ahead.tier = Tier.PREPARATORY
    stage.submit(ahead)
    policy = says(stage, "fetch", Selection(["session-1"], 999, "a request waits for it"))
    sizes = [len(copy.targets) for now in range(4) for copy in ordered(stage, now)]
    assert sizes == [CHUNK_BLOCKS] * MAX_CHUNKS
    assert "session-1" in stage.tiers.fetches.coming, "it waits for the rest"
    assert not policy.views[-1].is_pressing("session-1")


def test_what_is_there_for_the_first_in_the_queue_is_not_given_up_for_those_behind_it() -> None:
    """Not even where it is all there, so that nothing is brought for it: they would take turns for ever."""
    stage = small()
    step = run(stage, away(stage), 2, 200)
    stage.submit(request(2, 9, first=200))
    stage.submit(request(1, 9))
    assert ordered(stage, 10.0) == []
    assert stage.tiers.fetches.is_unfit("session-1")
    assert len(stage.kv.resting.owners) == 1
    order = stage.plan(step, 10.0)
    assert order is not None
    assert [(join.cached, join.request) for join in order.joins] == [(8, 2)]


def test_what_is_there_for_the_first_in_the_queue_goes_for_what_the_policy_puts_before_it() -> None:
    stage = small()
    step = run(stage, away(stage), 2, 200)
    stage.submit(request(2, 9, first=200))
    stage.submit(request(1, 9))
    says(stage, "fetch", Selection(["session-1"], 9, "it goes first", is_first=True))
    num_brought = 0
    for now in (10.0, 11.0, 12.0):
        for copy in ordered(stage, now):
            num_brought += len(copy.targets) * (copy.to == "device")
            stage.copied(CopyDone("s", copy.ticket))
    assert num_brought == 4
    assert not stage.tiers.fetches.is_unfit("session-1")
    assert stage.plan(step, 12.0) is not None


def test_kv_of_a_preempted_request_that_is_brought_no_more_may_leave_again() -> None:
    stage = small(num_blocks=8)
    active = request(1, 5, max_tokens=9)
    stage.submit(active)
    done(stage, planned(stage, 0), 7)
    done(stage, planned(stage, 1), 8)
    stage._requeue(active, keep=True)
    stage.tiers.room.make_room(8)
    answered(stage)
    says(stage, "fetch", Selection([active.own_name], 9, "it goes first", is_first=True))
    copies = ordered(stage)
    assert stage.tiers.known.states[active.own_name] is KvState.WAITING
    says(stage, "fetch", Selection((), 9, "another does", is_first=True))
    for copy in copies:
        stage.copied(CopyDone("s", copy.ticket))
    ordered(stage)
    assert stage.tiers.known.states[active.own_name] is KvState.PAUSED


def test_what_is_there_of_one_that_does_not_fit_is_not_given_up_for_those_behind_it() -> None:
    stage = small(num_blocks=8, max_rows=3)
    step = run(stage, away(stage), 2, 200, length=4)
    stage.tiers.room.make_room(stage.kv.num_blocks)
    answered(stage)
    step = run(stage, step, 3, 300, length=4)
    stage.submit(request(4, 9, first=400))
    assert stage.plan(step, 10.0) is not None
    stage.submit(request(3, 9, first=300))
    stage.submit(request(2, 5, first=200))
    before = stage.kv.resting.get("session-3")
    assert before is not None
    num_before = len(before.blocks)
    ordered(stage, 11.0)
    after = stage.kv.resting.get("session-3")
    assert after is not None
    assert len(after.blocks) == num_before


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


class LastComeFirst:
    """A policy that names all that wait, the youngest first, ready or not."""

    name = "last-come-first"

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        return StepChoice(np.arange(len(view.row))[::-1], "last come, first served")


class HoldsBack:
    """A policy that holds all that wait."""

    name = "holds-back"

    def decide(self, view: StepView, now: float) -> Hold:
        return Hold(view.row < 0, "where their KV is has to be known first", now + 1.0)


def two_away(max_rows: int) -> tuple[ArScheduler, int]:
    """Sessions 1 and 2 are on the host, and a request of each waits. Returns the next step."""
    stage = small(max_rows=max_rows, num_blocks=12)
    step = run(stage, run(stage, 0, 1, 100), 2, 200)
    stage.tiers.room.make_room(12)
    answered(stage)
    stage._policies = replace(stage._policies, step=LastComeFirst())
    stage.submit(request(1, 9))
    stage.submit(request(2, 9, first=200))
    return stage, step


def test_where_rows_are_few_what_was_chosen_to_go_on_is_brought_and_not_the_oldest() -> None:
    stage, _ = two_away(max_rows=1)
    stage._policies = replace(stage._policies, pace=HoldsBack())
    stage.choose(0.0)
    assert ordered(stage, 0.1)
    assert stage.tiers.fetches.coming == {"session-2"}


def test_what_was_chosen_joins_early_and_not_the_oldest() -> None:
    stage, step = two_away(max_rows=2)
    assert len(ordered(stage)) == 2
    early = stage.join_early(step, 0.0)
    assert early is not None
    assert [join.request for join in early.joins] == [2]
