"""TokenFlow §4: who runs, and who gives way to whom."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ConfigError
from antiphon.policy.base import BEST_EFFORT, LATENCY
from antiphon.policy.memory import LaneState
from antiphon.policy.token_buffer import TokenBuffer
from policy.readers import NOW, Kv, Takes, crowded, told
from policy.views import stage


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
        "others need the memory more; 9.0 s of it are left to be read or heard",
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
    policy.decide_fetch(Kv(back=LaneState(0, 1.0, 0.6), out=LaneState(0, 1.0, 0.1)).view, NOW)
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
        policy.decide_fetch(Kv(back=LaneState(0, 0.0, 0.5), out=LaneState(0, 0.0, 0.5)).view, NOW)
        assert told(policy, crowded()).preempt.tolist() == preempted


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


def test_blocks_run_short_and_the_furthest_ahead_gives_way_with_its_kv() -> None:
    view = stage(3, 3, num_free=0, context=[4] * 3, lead_s=[1.0, 7.0, 2.0], begun=[1, 1, 1])
    choice = told(TokenBuffer(), view)
    assert choice.preempt.tolist() == [1]
    assert choice.keeps is not None
    assert choice.keeps.all()
    assert choice.order.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interval_s": 0.0}, "interval_s is 0"),
        ({"value_s": inf}, "value_s is inf"),
        ({"gamma": -1.0}, "gamma is -1"),
        ({"safety": 0.5}, "safety is 0.5; it must be 1 or above"),
        ({"adjusts": 1.0}, "adjusts is 1"),
        ({"grows": 0.9}, "grows is 0.9; it must be 1 or above"),
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
        if policy.events["starved"] == starved and not policy._rounds.is_fcfs:
            given_up = {int(view.request[at]) for at in preempt if view.tier[at] == 0}
            assert not given_up & dry, "who is about to run dry keeps the row"
        now += data.draw(st.sampled_from([0.01, 0.3, 0.5, 3.0]))


def test_the_view_of_a_stage_without_kv_is_prompts_first() -> None:
    view = cast("Any", SimpleNamespace(**vars(stage(1, 2)) | {"num_blocks": 0}))
    assert told(TokenBuffer(), view).order.tolist() == [1, 0]
