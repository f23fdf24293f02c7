"""Prompts first, in the order in which they came."""

from __future__ import annotations

import pytest

from antiphon.policy.base import Budget, StepChoice, StepView, Tier
from antiphon.policy.prefill_first import PrefillFirst
from policy.views import short, stage

B = Tier.BEST_EFFORT


def chosen(view: StepView) -> StepChoice:
    choice = PrefillFirst().decide(view, Budget(16, 8), now=0.0)
    assert choice.reason
    assert choice.counts is choice.urgency is choice.wake_at is None
    assert not choice.stops
    return choice


@pytest.mark.parametrize(
    ("view", "order"),
    [
        (stage(4, 6, reading=[False, True, False, True, True, True]), [1, 3, 4, 5, 0, 2]),
        (stage(2, 4, ready=[True, False, False, True]), [3, 0]),
        (
            stage(4, 6, reading=[False, True, False, True, True, True], tier=[0, B, B, 0, 0, B]),
            [3, 4, 0, 1, 2, 5],
        ),
        (stage(2, 4, reading=[False] * 4), [0, 1, 2, 3]),
        (stage(0, 2), [0, 1]),
        (stage(0, 0), []),
    ],
    ids=[
        "prompts, newcomers, replies",
        "what is ready",
        "best effort last",
        "streams",
        "newcomers only",
        "nothing",
    ],
)
def test_prompts_then_newcomers_then_replies(view: StepView, order: list[int]) -> None:
    choice = chosen(view)
    assert choice.order.tolist() == order
    assert choice.preempt.tolist() == []


def test_what_came_last_makes_room_and_nothing_joins_in_that_step() -> None:
    choice = chosen(short(3, 4))
    assert (choice.order.tolist(), choice.preempt.tolist()) == ([0, 1], [2])


def test_best_effort_makes_room_for_a_request_that_waits() -> None:
    choice = chosen(stage(2, 3, tier=[B, 0, 0], num_free_rows=0))
    assert (choice.order.tolist(), choice.preempt.tolist()) == ([1], [0])
