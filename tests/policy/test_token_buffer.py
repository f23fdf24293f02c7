"""TokenFlow §4 and §5: who runs, who gives way to whom, and where their KV goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ConfigError
from antiphon.policy.base import BEST_EFFORT, LATENCY, Budget, StepChoice, StepView
from antiphon.policy.memory import NOTHING, KvState, KvView, Lane
from antiphon.policy.token_buffer import SOON_S, TokenBuffer
from policy import views

BUDGET = Budget(64, 64)
NOW = 10.0
LANE = Lane(0, 0.0, 0.001)


def stage(num_rows: int, size: int, **columns: Any) -> StepView:
    masks = {name: np.array(columns[name], np.bool_) for name in ("begun", "ready") if name in columns}
    return views.stage(num_rows, size, **{**columns, **masks})


def told(policy: TokenBuffer, view: StepView, now: float = NOW) -> StepChoice:
    """What it says of the stage, as it is asked: pace first."""
    hold = policy.decide_pace(view, now)
    if hold.held is not None:
        cast("Any", view).ready = view.ready & ~hold.held
    return policy.decide_step(view, BUDGET, now)


def crowded(**others: Any) -> StepView:
    """Two rows hold 16 of 20 blocks; one reader has 9 s left to read, the other 0.2 s. A third waits for the
    first word."""
    columns = {
        "lead_s": [9.0, 0.2, nan],
        "begun": [True, True, False],
        "rate": [10.0] * 3,
        "held": [8, 8, 0],
        "needs": [0, 0, 6],
        "age_s": [9.0, 8.0, 1.0],
        "num_blocks": 20,
        "num_free": 4,
    }
    return stage(2, 3, **{**columns, **others})


class Takes:
    """A step takes a millisecond for each row and 10 ms besides."""

    def __init__(self, once_s: float = 0.01) -> None:
        self.once_s = once_s

    def seconds(self, counts: Any, contexts: Any) -> float:
        return self.once_s + 0.001 * float(np.sum(counts))


def test_while_all_find_room_prompts_go_first() -> None:
    choice = told(TokenBuffer(), stage(2, 3, needs=[0, 0, 6], lead_s=[9.0, 0.2, nan], begun=[1, 1, 0]))
    assert choice.order.tolist() == [2, 0, 1]
    assert not len(choice.preempt)


def test_who_is_far_ahead_gives_way_to_who_waits_for_the_first_word() -> None:
    policy = TokenBuffer()
    choice = told(policy, crowded())
    assert choice.preempt.tolist() == [0]
    assert choice.keeps is not None
    assert choice.keeps.tolist() == [True]
    assert choice.order.tolist() == [1, 2]
    assert choice.wake_at == NOW + 0.5
    assert policy.events["preempted"] == 1
    words = policy.tell_step(crowded(), 0, NOW)
    assert (words.label, words.why) == (
        "gives way",
        "others need the memory more; its reader has 9.0 s left to read",
    )


def test_who_waits_for_a_row_behind_gives_way_to_whoever_may_have_it() -> None:
    """It can write no more before its voice has a row, and those that gave way to it keep theirs."""
    stuck = crowded(lead_s=[0.3, nan, 0.4], begun=[1, 0, 1], ready=[1, 0, 1], rows_behind=1.0)
    choice = told(TokenBuffer(), stuck)
    assert choice.preempt.tolist() == [1]
    assert choice.order.tolist() == [0, 2]
    there_is_one = crowded(lead_s=[0.3, nan, 0.4], begun=[1, 0, 1], ready=[1, 0, 1])
    assert told(TokenBuffer(), there_is_one).preempt.tolist() == []


def test_nobody_gives_way_who_would_run_dry_before_they_are_back() -> None:
    """Half a second until the next round, times the safety of 1.5; and what the links take."""
    assert told(TokenBuffer(), crowded(lead_s=[0.7, 0.2, nan])).preempt.tolist() == []
    assert told(TokenBuffer(), crowded(lead_s=[0.8, 0.2, nan])).preempt.tolist() == [0]
    assert told(TokenBuffer(safety=20), crowded()).preempt.tolist() == []
    policy = TokenBuffer()
    policy.decide_fetch(Kv(back=Lane(0, 1.0, 0.6), out=Lane(0, 1.0, 0.1)).view, NOW)
    assert told(policy, crowded()).preempt.tolist() == []


def test_what_would_be_computed_again_gives_way_only_to_who_has_the_time() -> None:
    """Without a host: a prompt's token takes a millisecond, so 2,000 of context take two seconds."""
    slow = {"cost": Takes(0.0), "context": [2000, 100, 0], "block_size": 4096}
    assert told(TokenBuffer(), crowded(**slow, lead_s=[3.0, 0.2, nan])).preempt.tolist() == []
    assert told(TokenBuffer(), crowded(**slow, lead_s=[4.0, 0.2, nan])).preempt.tolist() == [0]


def test_what_is_not_written_as_it_comes_has_to_be_written_before_others_are_brought() -> None:
    """8 blocks of half a second each way."""
    for write, preempted in ((True, [0]), (False, [])):
        policy = TokenBuffer(write=write)
        policy.decide_fetch(Kv(back=Lane(0, 0.0, 0.5), out=Lane(0, 0.0, 0.5)).view, NOW)
        assert told(policy, crowded()).preempt.tolist() == preempted


def test_people_go_before_agents_whom_nothing_runs_dry() -> None:
    """An agent gives way however little it has, and comes back after a person who has as little."""
    poor = crowded(lead_s=[0.0, 0.2, nan], rate=[inf, 10.0, 10.0])
    assert told(TokenBuffer(), poor).preempt.tolist() == [0]
    both = {"lead_s": [9.0, 0.0, 0.0], "held": [16, 0, 0], "needs": [0, 6, 6], "begun": [1, 1, 1]}
    policy = TokenBuffer()
    paused = stage(1, 3, **both, rate=[10.0, inf, 10.0], num_blocks=20, num_free=4, age_s=[9.0, 8.0, 7.0])
    assert told(policy, paused).preempt.tolist() == [0]
    assert policy._plan is not None
    assert [*policy._plan.resumes.requests] == [102, 101]


def test_no_agent_takes_a_persons_place_at_the_door() -> None:
    """One more may come into memory: the older is an agent."""
    policy = TokenBuffer()
    both = {"lead_s": [9.0, 9.0, nan, nan], "begun": [1, 1, 0, 0], "rate": [10.0, 10.0, inf, 10.0]}
    held = {"held": [8, 8, 0, 0], "needs": [0, 0, 4, 4], "age_s": [9.0, 8.0, 2.0, 1.0]}
    policy.decide_fetch(Kv(size_below=4).view, NOW)
    told(policy, stage(2, 4, **both, **held, num_blocks=20, num_free=0))
    assert policy.events["held_at_door"] == 1
    assert policy._plan is not None
    assert [*policy._plan.resumes.requests] == [103]


def test_an_agent_gives_way_before_any_person_where_blocks_run_short() -> None:
    short = {"num_free": 0, "context": [4] * 3, "begun": [1, 1, 1]}
    choice = told(TokenBuffer(), stage(3, 3, **short, lead_s=[1.0, 7.0, 0.2], rate=[10.0, 10.0, inf]))
    assert choice.preempt.tolist() == [2]
    policy = TokenBuffer()
    told(policy, stage(2, 2, request=[1, 2], lead_s=[5.0, 0.2], begun=[1] * 2, rate=[10.0, inf]))
    kv = Kv({"person": 1, "agent": 2}, order=("person", "agent"), num_free=0, num_wanted=1)
    assert list(policy.decide_write(kv.view, NOW).owners) == ["agent", "person"]
    assert list(policy.decide_evict(kv.view, NOW).owners) == ["agent", "person"]


def beside_agents(**others: Any) -> StepView:
    """A reader with 0.2 s left and two agents, of whom the second has just what its least rate gives it. A
    step takes 10 ms and 10 for each row."""
    columns = {"rate": [10.0, inf, inf], "lead_s": [0.2, 3.0, 0.0], "begun": [1, 1, 1]}
    return stage(3, 3, **{**columns, "tokens": [10] * 3, "cost": Takes(), **others})


def test_agents_keep_to_their_least_rate_while_a_reader_beside_them_runs_dry() -> None:
    policy = TokenBuffer()
    hold = policy.decide_pace(beside_agents(), NOW)
    assert hold.held is not None
    assert (hold.held.tolist(), hold.wake_at) == ([False, True, False], None)
    assert policy.events["throttled"] == 1


@pytest.mark.parametrize(
    "others",
    [
        {"lead_s": [0.6, 3.0, 0.0]},
        {"begun": [0, 1, 1]},
        {"rate": [nan, inf, inf]},
        {"rate": [100.0, inf, inf]},
        {"tier": [BEST_EFFORT, LATENCY, LATENCY]},
        {"cost": Takes(once_s=1.0)},
        {"cost": None},
    ],
)
def test_agents_have_all_there_is_where_nobody_runs_dry_for_it(others: dict[str, Any]) -> None:
    assert TokenBuffer().decide_pace(beside_agents(**others), NOW).held is None


def test_agents_slow_down_though_others_are_held_for_a_look_at_their_kv() -> None:
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    four = {"rate": [10.0, inf, inf, 10.0], "lead_s": [0.2, 3.0, 0.0, 9.0], "begun": [1] * 4}
    hold = policy.decide_pace(stage(3, 4, **four, tokens=[10] * 4, cost=Takes()), NOW)
    assert hold.held is not None
    assert (hold.held.tolist(), hold.wake_at) == ([False, True, False, True], NOW + SOON_S)


def test_whom_nobody_is_known_to_read_counts_for_nothing_at_the_door() -> None:
    policy = TokenBuffer(load=0.5)
    told(policy, crowded(cost=Takes(), rate=[10.0, nan, 20.0], block_size=64))
    assert policy.events["held_at_door"] == 0


def test_what_agents_take_does_not_count_where_people_are_kept_up_with() -> None:
    policy = TokenBuffer(fallback=True)
    view = crowded(cost=Takes(), rate=[inf, inf, 20.0], block_size=64)
    assert told(policy, view).preempt.tolist() == [1], "the younger agent"
    assert policy.events["fcfs_begun"] == policy.events["held_at_door"] == 0


def test_what_is_read_at_no_known_rate_runs_to_its_end() -> None:
    assert told(TokenBuffer(), crowded(lead_s=[nan, 0.2, nan], rate=[nan, 10, 10])).preempt.tolist() == []


def test_a_round_is_held_once_an_interval_however_often_it_is_asked() -> None:
    policy = TokenBuffer()
    for now in (10.0, 10.1, 10.4):
        told(policy, crowded(), now)
    assert policy.events["rounds"] == 1
    told(policy, crowded(), 10.5)
    assert policy.events["rounds"] == 2


def test_the_next_round_is_later_though_the_interval_is_no_binary_fraction() -> None:
    """4.3 / 0.1 is a little under 43."""
    choice = told(TokenBuffer(interval_s=0.1), crowded(), 4.3)
    assert choice.wake_at == pytest.approx(4.4)


def test_who_runs_dry_comes_back_before_the_furthest_ahead_goes_on() -> None:
    view = crowded(lead_s=[9.0, 3.0, 0.1], begun=[1, 1, 1])
    choice = told(TokenBuffer(), view)
    assert choice.preempt.tolist() == [0]
    assert choice.order.tolist() == [1, 2]


def test_the_least_value_gives_way_first() -> None:
    """Both could; one place is wanted."""
    view = crowded(lead_s=[6.0, 9.0, nan], held=[8, 8, 0])
    assert told(TokenBuffer(), view).preempt.tolist() == [1]


def test_with_a_fallback_more_readers_than_are_kept_up_with_are_served_first_come_first_served() -> None:
    """A full batch of two makes 2 / 0.012 s = 166 tokens a second; the three in it read 180."""
    policy = TokenBuffer(fallback=True)
    three = {"begun": [1, 1, 1], "lead_s": [9.0, 0.2, 0.1], "cost": Takes(), "block_size": 64}
    assert not len(told(policy, crowded(**three, rate=[60.0] * 3)).preempt), "the third came last"
    assert policy.events["fcfs_begun"] == 1
    told(policy, crowded(**three, rate=[52.0] * 3), 10.5)
    assert policy._is_fcfs, "it is over at nine tenths of the bound"
    assert told(policy, crowded(**three, rate=[48.0] * 3), 11.0).preempt.tolist() == [0]
    assert not policy._is_fcfs


def test_without_one_whoever_runs_dry_goes_first_however_many_there_are() -> None:
    three = {"begun": [1, 1, 1], "lead_s": [9.0, 0.2, 0.1], "cost": Takes(), "block_size": 64}
    assert told(TokenBuffer(), crowded(**three, rate=[60.0] * 3)).preempt.tolist() == [0]


def test_whoever_says_to_read_faster_than_a_row_is_made_counts_for_a_row() -> None:
    """A row is made at 1 / 0.012 s = 83 tokens a second. What nobody can be given brings nobody to wait."""
    policy = TokenBuffer(fallback=True)
    view = crowded(cost=Takes(), rate=[10.0, 1e9, 10.0], block_size=64)
    assert told(policy, view).preempt.tolist() == [0]
    assert policy.events["fcfs_begun"] == policy.events["held_at_door"] == 0


def in_memory(policy: TokenBuffer, num_host: int, num_waiting: int) -> int:
    """How many of those that wait for the first word are let in, where two rows of 8 blocks, far ahead, are
    the device's 20 blocks but 4, and the host has so many."""
    policy.decide_fetch(Kv(size_below=num_host, num_below=0).view, NOW)
    size = 2 + num_waiting
    told(
        policy,
        stage(
            2,
            size,
            lead_s=[9.0, 9.0, *[nan] * num_waiting],
            begun=[1, 1, *[0] * num_waiting],
            rate=[10.0] * size,
            held=[8, 8, *[0] * num_waiting],
            needs=[0, 0, *[6] * num_waiting],
            num_blocks=20,
            num_free=4,
        ),
    )
    return num_waiting - policy.events["held_at_door"]


def test_the_working_set_is_what_device_and_host_hold_less_a_share_of_what_does_not_run() -> None:
    """Eqs. 4 and 5: (20 + 60) / 8 = 10 requests, less a quarter of the 8 that do not run. A host that is full
    of copies has no less room."""
    assert in_memory(TokenBuffer(), 60, 9) == 10 - 2 - 2
    assert in_memory(TokenBuffer(adjusts=0.0), 60, 9) == 10 - 2
    assert in_memory(TokenBuffer(), 4, 9) == 1, "one more than runs at least"


def test_no_more_come_into_memory_than_it_holds_however_many_rounds_there_are() -> None:
    """Two run and two were preempted; device and host hold three, and one more than runs is three."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv(size_below=4, num_below=0).view, NOW)
    view = stage(
        2,
        5,
        lead_s=[9.0, 9.0, 5.0, 5.0, nan],
        begun=[1, 1, 1, 1, 0],
        rate=[10.0] * 5,
        held=[8, 8, 0, 0, 0],
        needs=[0, 0, 8, 8, 6],
        num_blocks=20,
        num_free=4,
    )
    for now in (10.0, 10.5, 11.0):
        told(policy, view, now)
    assert policy.events["held_at_door"] == 3


def test_readers_are_taken_as_far_as_a_full_batch_keeps_up_with_them() -> None:
    policy = TokenBuffer()
    view = crowded(cost=Takes(), rate=[80.0, 60.0, 20.0])
    assert not len(told(policy, view).preempt), "160 of 166 are above the share of 0.9"
    assert policy.events["held_at_door"] == 1


def test_with_a_host_nobody_waits_at_the_door_because_others_read_much() -> None:
    """As above: whoever is in waits a little longer, and who was shut out waited for a minute."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    assert told(policy, crowded(cost=Takes(), rate=[80.0, 60.0, 20.0], block_size=64)).preempt.tolist() == [0]
    assert policy.events["held_at_door"] == 0


def test_best_effort_shuts_no_door_on_a_person() -> None:
    """It reads as fast as rows are made, and gives way to whoever is let in."""
    policy = TokenBuffer()
    view = crowded(cost=Takes(), rate=[80.0, 60.0, 20.0], block_size=64, tier=[BEST_EFFORT, LATENCY, LATENCY])
    assert told(policy, view).preempt.tolist() == [0]
    assert policy.events["held_at_door"] == 0


def test_best_effort_has_what_people_leave_of_a_step() -> None:
    """Two read their prompts while a third gives way to one who comes."""
    policy = TokenBuffer()
    columns = {"reading": [True, True, False, False], "tokens": [50, 50, 1, 9], "held": [2, 2, 8, 0]}
    ages = {"age_s": [9.0, 8.0, 7.0, 1.0], "lead_s": [nan, nan, 9.0, nan], "begun": [0, 0, 1, 0]}
    late = {"tier": [BEST_EFFORT, LATENCY, LATENCY, LATENCY], "rate": [10.0] * 4, "needs": [0, 0, 0, 6]}
    view = stage(3, 4, **columns, **ages, **late, num_blocks=20, num_free=4)
    order = told(policy, view).order.tolist()
    assert policy.events["rounds"] == 1
    assert order == [1, 3, 0]


@pytest.mark.parametrize("step_s", [0.03, 0.1])
def test_nobody_gains_more_by_having_more_left_to_read(step_s: float) -> None:
    """Also of those who have nothing left, and where a row is made more slowly than it is read."""
    lead_s = np.linspace(0.0, 4.0, 81)
    view = stage(0, 81, lead_s=lead_s, begun=[1] * 81, rate=[15.0] * 81, block_size=16)
    gain = TokenBuffer()._gains(view, step_s).gain
    assert (np.diff(gain) < 0).all()


@pytest.mark.parametrize("begun", [False, True])
def test_who_takes_longer_than_an_interval_to_go_on_is_worth_more_than_who_is_a_minute_ahead(
    begun: bool,
) -> None:
    """A prompt of 700 tokens, or KV that is computed again, at a millisecond each."""
    slow = {"cost": Takes(0.0), "tokens": [0, 0, 700], "begun": [True, True, begun], "block_size": 4096}
    for rates in ([10.0] * 3, [10.0, 10.0, nan]):
        choice = told(TokenBuffer(), crowded(**slow, rate=rates, lead_s=[60.0, 0.2, 0.0 if begun else nan]))
        assert choice.preempt.tolist() == [0]


def test_going_on_costs_what_the_device_lacks_and_not_what_it_has() -> None:
    """A hundredth of a second for each block of four tokens. All but the last token of the first is there."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv(back=Lane(0, 0.0, 0.01)).view, NOW)
    view = stage(0, 2, begun=[1, 1], tokens=[1, 33], needs=[9, 9])
    assert policy._overhead_s(view, 0.0) - SOON_S == pytest.approx([0.0, 0.08])


def test_blocks_run_short_and_the_furthest_ahead_gives_way_with_its_kv() -> None:
    view = stage(3, 3, num_free=0, context=[4] * 3, lead_s=[1.0, 7.0, 2.0], begun=[1, 1, 1])
    choice = told(TokenBuffer(), view)
    assert choice.preempt.tolist() == [1]
    assert choice.keeps is not None
    assert choice.keeps.all()
    assert choice.order.tolist() == [0, 2]


def test_a_preempted_request_waits_for_a_look_at_where_its_kv_is() -> None:
    policy = TokenBuffer()
    assert policy.decide_fetch(Kv().view, NOW).wake_at is None, "nobody goes on: an idle node sleeps"
    view = stage(1, 2, lead_s=[3.0, 0.5], begun=[1, 1], request=[7, 8])
    hold = policy.decide_pace(view, NOW)
    assert hold.held is not None
    assert hold.held.tolist() == [False, True]
    assert hold.wake_at == NOW + SOON_S
    kv = Kv(requests={"eight #8": 8, "seven": 7}, waits=("eight #8",), away={"eight #8": 4})
    selection = policy.decide_fetch(kv.view, NOW)
    assert list(selection.owners) == ["eight #8"]
    assert policy.events["brought"] == 1
    assert policy.decide_pace(view, NOW + 0.01).held is not None, "nobody is told that it is known now"
    assert policy.decide_pace(view, hold.wake_at or 0.0).held is None
    told(policy, stage(2, 2, lead_s=[3.0, 0.5], begun=[1, 1], request=[7, 8]))
    assert not policy._brings, "it has its row"


def test_nothing_else_is_computed_from_its_start_while_what_goes_on_is_looked_at() -> None:
    """A round in which all rows give way leaves the stage without any for a moment."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    columns: dict[str, Any] = {"begun": [1] * 4, "rate": [10.0] * 4, "num_free": 0}
    columns |= {"num_blocks": 20, "block_size": 16}
    crowd = stage(2, 4, lead_s=[9.0, 9.0, 0.1, 0.2], held=[8, 8, 0, 0], needs=[0, 0, 8, 8], **columns)
    choice = told(policy, crowd)
    assert choice.preempt.tolist() == [0, 1]
    assert sorted(choice.order.tolist()) == [2, 3]
    nobody = stage(
        0,
        4,
        lead_s=[9.0, 9.0, 0.1, 0.2],
        held=[0] * 4,
        needs=[8] * 4,
        request=[100, 101, 102, 103],
        **columns,
    )
    assert sorted(told(policy, nobody).order.tolist()) == [2, 3], "and not the oldest, whose KV left"
    policy.decide_fetch(Kv(requests={"c": 102}, waits=("c",), away={"c": 8}).view, NOW)
    assert sorted(told(policy, nobody, NOW + 0.4).order.tolist()) == [2, 3]


def test_a_look_that_finds_nothing_to_bring_changes_nothing_before_the_hold_ends() -> None:
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    columns: dict[str, Any] = {"begun": [1] * 4, "rate": [10.0] * 4, "num_free": 0, "num_blocks": 20}
    columns |= {"lead_s": [9.0, 9.0, 0.1, 0.2], "request": [100, 101, 102, 103], "block_size": 16}

    def nobody() -> StepView:
        return stage(0, 4, held=[0] * 4, needs=[8] * 4, **columns)

    told(policy, stage(2, 4, held=[8, 8, 0, 0], needs=[0, 0, 8, 8], **columns))
    told(policy, nobody())
    policy.decide_fetch(Kv().view, NOW + SOON_S / 2)
    assert policy._brings == {102: False, 103: False}, "nothing is left of their KV"
    assert sorted(told(policy, nobody(), NOW + SOON_S / 2).order.tolist()) == [2, 3]


def test_what_goes_on_is_brought_before_what_others_have_there() -> None:
    policy = TokenBuffer()
    assert not policy.decide_fetch(Kv().view, NOW).is_first, "all find room"
    told(policy, crowded())
    assert policy.decide_fetch(Kv().view, NOW).is_first


def test_what_is_computed_sooner_than_brought_is_not_brought() -> None:
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    crowd: dict[str, Any] = {"cost": Takes(0.1), "begun": [1] * 3, "rate": [5.0] * 3}

    def has_it_go_on(now: float, left_s: float = 0.1) -> bool:
        """Is it held? left_s: to read."""
        view = crowded(**crowd, lead_s=[9.0, 3.0, left_s])
        told(policy, view, now)
        return not view.ready[2]

    assert has_it_go_on(NOW), "for a look at its KV"
    kv = Kv(requests={"c": 102}, waits=("c",), away={"c": 4}, back=Lane(0, 0.0, 0.1))
    assert list(policy.decide_fetch(kv.view, NOW).owners) == []
    assert policy.events["computed"] == 1
    quick = Kv(requests={"c": 102}, waits=("c",), away={"c": 4}, back=Lane(0, 0.0, 0.0001))
    for later_s in (0.0, 0.6, 1.2):
        assert later_s == 0.0 or not has_it_go_on(NOW + later_s), "whatever rounds come, it is not held again"
        assert list(policy.decide_fetch(quick.view, NOW + later_s).owners) == [], (
            "it does not change its mind"
        )
    has_it_go_on(NOW + 1.8, left_s=8.9)  # others do
    assert has_it_go_on(NOW + 2.4)
    assert list(policy.decide_fetch(quick.view, NOW + 2.4).owners) == ["c"], (
        "chosen again, it is looked at anew"
    )


def test_what_is_on_its_way_over_a_slow_link_is_not_given_up_for_another() -> None:
    """A round later it is still to come; another that would take as long is not begun in its place."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    columns: dict[str, Any] = {
        "begun": [1] * 4,
        "rate": [0.3] * 4,
        "held": [8, 8, 0, 0],
        "needs": [0, 0, 6, 6],
        "age_s": [9.0, 8.0, 7.0, 6.0],
        "tokens": [1, 1, 960, 96],
        "num_blocks": 20,
        "num_free": 4,
        "cost": Takes(1.0),
    }
    crowd = stage(2, 4, lead_s=[30.0, 0.2, 0.1, 0.1], **columns)
    told(policy, crowd)
    assert next(iter(policy._plan.resumes.requests)) == 102  # type: ignore[union-attr]
    kv = Kv(requests={"c": 102, "d": 103}, waits=("c", "d"), away={"c": 6, "d": 6})
    assert "c" in list(policy.decide_fetch(kv.view, NOW).owners)
    kv.back = Lane(6, 2.0, 0.3)
    policy.decide_fetch(kv.view, NOW)
    later = stage(
        1,
        3,
        lead_s=[0.0, 0.1, 0.0],
        request=[101, 102, 103],
        ready=[1, 0, 1],
        **{name: column[1:] if isinstance(column, list) else column for name, column in columns.items()},
    )
    told(policy, later, NOW + 0.5)
    assert next(iter(policy._plan.resumes.requests)) == 102  # type: ignore[union-attr]


@dataclass
class Kv:
    """A device of 64 blocks and a host with room; a block takes a millisecond over the link."""

    requests: dict[str, int] = field(default_factory=dict[str, int])
    order: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    away: dict[str, int] = field(default_factory=dict[str, int])
    states: dict[str, KvState] = field(default_factory=dict[str, KvState])
    tier: str = "device"
    num_wanted: int = 0
    num_free: int = 64
    num_below: int = 100
    size_below: int = 200
    num_blocks: int = 64
    back: Lane = LANE
    out: Lane = LANE
    step_s: float = nan

    @property
    def view(self) -> KvView:
        return cast("KvView", self)

    def oldest(self) -> object:
        return iter(self.order)

    dirty = oldest

    def waiting(self) -> object:
        return iter(self.waits)

    def num_away(self, owner: str) -> int:
        return self.away.get(owner, 0)

    def state(self, owner: str) -> KvState | None:
        return self.states.get(owner)


def knowing() -> TokenBuffer:
    """Requests 1 to 4 have 1 to 4 s left to read."""
    policy = TokenBuffer()
    told(policy, stage(4, 4, request=[1, 2, 3, 4], lead_s=[1.0, 2.0, 3.0, 4.0], begun=[1] * 4))
    return policy


def test_what_nobody_runs_on_leaves_first_and_then_the_furthest_ahead() -> None:
    kv = Kv({"a": 1, "b": 2, "c": 4}, order=("a", "b", "idle", "c"), num_free=0, num_wanted=3)
    selection = knowing().decide_evict(kv.view, NOW)
    assert list(selection.owners) == ["idle", "c", "b", "a"]
    assert selection.count == 3 + 2, "and a thirty-second of the device ahead"
    assert knowing().decide_evict(Kv().view, NOW) is NOTHING


def test_the_only_copy_of_what_was_preempted_does_not_leave_the_host() -> None:
    states = {"a": KvState.PAUSED, "b": KvState.RUNNING, "past": KvState.RESTING, "idle": KvState.RESTING}
    kv = Kv(
        {"a": 1, "b": 2},
        order=("a", "past", "b", "idle"),
        states=states,
        tier="host",
        num_free=0,
        num_wanted=3,
    )
    assert list(knowing().decide_evict(kv.view, NOW).owners) == ["b", "past", "idle"], "copies first"


def test_the_furthest_ahead_is_written_first_as_much_as_goes_beside_the_step() -> None:
    kv = Kv({"a": 1, "b": 3, "c": 2}, order=("a", "idle", "b", "c"), step_s=0.0125)
    selection = knowing().decide_write(kv.view, NOW)
    assert (list(selection.owners), selection.count) == (["b", "c", "a"], 12)
    policy, kv.step_s = knowing(), nan
    assert policy.decide_write(kv.view, NOW).count == 1
    assert policy.events["step_unknown"] == 1, "counted where it is decided without it"
    assert TokenBuffer(write=False).decide_write(kv.view, NOW) is NOTHING
    assert knowing().decide_write(Kv({"a": 1}, order=("a",), num_below=0).view, NOW) is NOTHING


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interval_s": 0.0}, "interval_s is 0"),
        ({"value_s": inf}, "value_s is inf"),
        ({"gamma": -1.0}, "gamma is -1"),
        ({"safety": 0.5}, "safety is 0.5; it must be 1 or above"),
        ({"adjusts": 1.0}, "adjusts is 1"),
        ({"load": 0.0}, "load is 0"),
        ({"ahead": 0.6}, "ahead is 0.6"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TokenBuffer(**cast("Any", options))


leads = st.one_of(st.floats(0, 60), st.just(nan), st.just(inf))


@given(st.data())
def test_whoever_reads_whatever_is_asked_it_answers_what_can_be_done(data: st.DataObject) -> None:
    policy = TokenBuffer(interval_s=data.draw(st.sampled_from([0.1, 0.5, 2.0])))
    now = 1.0
    for _ in range(data.draw(st.integers(1, 6))):
        num_rows, num_waiting = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
        size = num_rows + num_waiting

        def column(values: st.SearchStrategy[Any], size: int = size) -> list[Any]:
            return data.draw(st.lists(values, min_size=size, max_size=size))

        view = stage(
            num_rows,
            size,
            request=data.draw(st.permutations(range(size))),
            lead_s=column(leads),
            begun=column(st.booleans()),
            rate=column(st.sampled_from([nan, 0.5, 15.0, 1000.0, inf])),
            tier=column(st.sampled_from([0, 0, 0, 1])),
            age_s=column(st.floats(0, 100)),
            held=[
                *data.draw(st.lists(st.integers(1, 12), min_size=num_rows, max_size=num_rows)),
                *[0] * num_waiting,
            ],
            needs=column(st.integers(0, 12)),
            ready=column(st.booleans()),
            context=column(st.integers(0, 48)),
            num_blocks=64,
            num_free=data.draw(st.integers(0, 64)),
            num_free_rows=data.draw(st.integers(0, 4)),
            cost=data.draw(st.sampled_from([None, Takes(), Takes(10.0)])),
        )
        dry = {
            int(one)
            for one, lead_s, begun, rate in zip(view.request, view.lead_s, view.begun, view.rate, strict=True)
            if begun and lead_s < 0.1 and rate != inf
        }
        starved = policy.events["starved"]
        ready = view.ready
        choice = told(policy, view, now)
        if ready[:num_rows].any():
            assert view.ready[:num_rows].any(), "never are all rows held"
        order, preempt = choice.order.tolist(), choice.preempt.tolist()
        assert len({*order}) == len(order)
        assert not {*order} & {*preempt}
        assert all(at < num_rows for at in preempt)
        if policy._plan is not None:
            assert choice.wake_at is not None
            assert choice.wake_at > now
        if policy.events["starved"] == starved and not policy._is_fcfs:
            given_up = {int(view.request[at]) for at in preempt if view.tier[at] == 0}
            assert not given_up & dry, "who is about to run dry keeps the row"
        now += data.draw(st.sampled_from([0.01, 0.3, 0.5, 3.0]))


def test_the_view_of_a_stage_without_kv_is_prompts_first() -> None:
    view = cast("Any", SimpleNamespace(**vars(stage(1, 2)) | {"num_blocks": 0}))
    assert told(TokenBuffer(), view).order.tolist() == [1, 0]
