"""What leaves the device, and how much of it, where room is wanted."""

from __future__ import annotations

from dataclasses import replace

from antiphon.policy.memory import NOTHING, KvPolicies, KvView, Selection
from stage.test_ar import STOP, done, planned, request, scheduler
from stage.tiering import Says, answered, run, says, small, three_resting


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
    stage.tiers.known.queue = ["session-1", "session-2"]
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
    stage.tiers.known.queue = ["session-1"]
    stage.tiers.room.evict(0, "")
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [4, 0, 4]


def test_what_a_request_in_the_queue_has_wholly_here_is_not_evicted_only_to_have_room_ahead() -> None:
    """It would be brought again at once, to be evicted again."""
    stage = three_resting()
    says(stage, "evict", Selection(["session-1", "session-2"], 4, "ahead"))
    stage.submit(request(3, 5, first=300))
    stage.submit(request(1, 5, first=100))
    stage.tend(10.0)
    assert [stage.kv.resting.held_tokens(f"session-{n}") for n in (1, 2, 3)] == [4, 0, 4]


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
    stage = three_resting()
    stage.tiers.room.make_room(3)
    answered(stage)
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


def test_while_nothing_is_on_the_host_the_fetch_policy_is_not_asked() -> None:
    stage = three_resting()
    policy = says(stage, "fetch")
    stage.tend(1.0)
    assert not policy.views
    stage.tiers.room.make_room(3)
    answered(stage)
    stage.tend(2.0)
    assert len(policy.views) == 1


def test_a_request_that_could_join_has_the_fetch_policy_asked() -> None:
    """A policy may wait for what it hears then before it has a preempted request go on."""
    stage = three_resting()
    policy = says(stage, "fetch")
    stage.submit(request(1, 5, first=100))
    stage.tend(1.0)
    assert policy.views


def test_only_the_evict_policy_is_asked_in_a_stage_without_a_host() -> None:
    stage = scheduler()
    policy = Says()
    stage.tiers.asks.policies = KvPolicies(policy, policy, policy)
    stage.tend(0.0)
    stage.write()
    stage.submit(request(1, 2))
    done(stage, planned(stage, 0), STOP)
    stage.tiers.room.make_room(8)
    assert [view.num_wanted for view in policy.views] == [8]
    assert stage.kv.blocks.num_free == 8
