"""A round of TokenFlow: what a place is worth to each, how many readers come into memory, and when there are
too many to keep up with."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from antiphon.policy.base import BEST_EFFORT, LATENCY
from antiphon.policy.memory import LaneState
from antiphon.policy.rounds import SOON_S
from antiphon.policy.token_buffer import TokenBuffer
from policy.readers import NOW, Kv, Takes, crowded, told
from policy.views import stage


@pytest.mark.parametrize("step_s", [0.03, 0.1])
def test_nobody_gains_more_by_having_more_left_to_read(step_s: float) -> None:
    """Also of those who have nothing left, and where a row is made more slowly than it is read."""
    lead_s = np.linspace(0.0, 4.0, 81)
    view = stage(0, 81, lead_s=lead_s, begun=[1] * 81, rate=[15.0] * 81, block_size=16)
    gain = TokenBuffer()._rounds._gains(view, step_s).gain
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
    policy.decide_fetch(Kv(back=LaneState(0, 0.0, 0.01)).view, NOW)
    view = stage(0, 2, begun=[1, 1], tokens=[1, 33], needs=[9, 9])
    assert policy._rounds._overhead_s(view, 0.0) - SOON_S == pytest.approx([0.0, 0.08])


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
    assert in_memory(TokenBuffer(grows=1.0), 60, 9) == 10 - 2 - 2
    assert in_memory(TokenBuffer(grows=1.0, adjusts=0.0), 60, 9) == 10 - 2
    assert in_memory(TokenBuffer(adjusts=0.0), 60, 9) == 5 - 2, "what they hold doubles"
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


def test_whom_nobody_is_known_to_read_counts_for_nothing_at_the_door() -> None:
    policy = TokenBuffer(load=0.5)
    told(policy, crowded(cost=Takes(), rate=[10.0, nan, 20.0], block_size=64))
    assert policy.events["held_at_door"] == 0


def test_whoever_says_to_read_faster_than_a_row_is_made_counts_for_a_row() -> None:
    """A row is made at 1 / 0.012 s = 83 tokens a second. What nobody can be given brings nobody to wait."""
    policy = TokenBuffer(fallback=True)
    view = crowded(cost=Takes(), rate=[10.0, 1e9, 10.0], block_size=64)
    assert told(policy, view).preempt.tolist() == [0]
    assert policy.events["fcfs_begun"] == policy.events["held_at_door"] == 0


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


def test_with_a_fallback_more_readers_than_are_kept_up_with_are_served_first_come_first_served() -> None:
    """A full batch of two makes 2 / 0.012 s = 166 tokens a second; the three in it read 180."""
    policy = TokenBuffer(fallback=True)
    three = {"begun": [1, 1, 1], "lead_s": [9.0, 0.2, 0.1], "cost": Takes(), "block_size": 64}
    assert not len(told(policy, crowded(**three, rate=[60.0] * 3)).preempt), "the third came last"
    assert policy.events["fcfs_begun"] == 1
    told(policy, crowded(**three, rate=[52.0] * 3), 10.5)
    assert policy._rounds.is_fcfs, "it is over at nine tenths of the bound"
    assert told(policy, crowded(**three, rate=[48.0] * 3), 11.0).preempt.tolist() == [0]
    assert not policy._rounds.is_fcfs


def test_a_fallback_keeps_nobody_waiting_for_best_effort() -> None:
    """A full batch of two makes 166 tokens a second; the people read 240, and came after it."""
    policy = TokenBuffer(fallback=True)
    reading = {"begun": [True] * 4, "lead_s": [5.0, 9.0, 0.2, 0.1], "rate": [90.0, 80.0, 80.0, 80.0]}
    came = {"age_s": [9.0, 8.0, 2.0, 1.0], "tier": [BEST_EFFORT, LATENCY, LATENCY, LATENCY]}
    memory = {"held": [8, 8, 0, 0], "needs": [0, 0, 6, 6], "num_blocks": 20, "num_free": 4, "block_size": 64}
    assert told(policy, stage(2, 4, **reading, **came, **memory, cost=Takes())).preempt.tolist() == [0]
    assert policy._rounds.is_fcfs


def test_without_one_whoever_runs_dry_goes_first_however_many_there_are() -> None:
    three = {"begun": [1, 1, 1], "lead_s": [9.0, 0.2, 0.1], "cost": Takes(), "block_size": 64}
    assert told(TokenBuffer(), crowded(**three, rate=[60.0] * 3)).preempt.tolist() == [0]


def test_what_has_shown_nothing_and_whose_kv_is_brought_has_one_place() -> None:
    """It was preempted in the midst of its prompt: it is on its way, and new to readers as well."""
    policy = TokenBuffer()
    policy.decide_fetch(Kv().view, NOW)
    told(policy, crowded())
    policy._brings[102] = True
    told(policy, crowded(ready=[True, True, False]), NOW + 1)
    assert policy._plan is not None
    assert policy._plan.resumes._requests.tolist() == [102]
