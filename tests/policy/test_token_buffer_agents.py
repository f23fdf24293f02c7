"""Agents, whom nothing runs dry: people go before them, and they have what people leave."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from antiphon.policy.base import BEST_EFFORT, LATENCY, StepView
from antiphon.policy.token_buffer import SOON_S, TokenBuffer
from policy.readers import NOW, Kv, Takes, crowded, told
from policy.views import stage


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


def test_what_agents_take_does_not_count_where_people_are_kept_up_with() -> None:
    policy = TokenBuffer(fallback=True)
    view = crowded(cost=Takes(), rate=[inf, inf, 20.0], block_size=64)
    assert told(policy, view).preempt.tolist() == [1], "the younger agent"
    assert policy.events["fcfs_begun"] == policy.events["held_at_door"] == 0
