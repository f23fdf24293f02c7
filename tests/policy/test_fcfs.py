"""First come, first served, whatever a row is at."""

from __future__ import annotations

import pytest

from antiphon.policy.base import Budget, StepChoice, StepView, Tier
from antiphon.policy.fcfs import Fcfs
from policy.views import short, stage

B = Tier.BEST_EFFORT


def chosen(view: StepView) -> StepChoice:
    choice = Fcfs().decide(view, Budget(16, 8), now=0.0)
    assert choice.reason
    assert choice.counts is choice.urgency is choice.wake_at is None
    assert not choice.stops
    return choice


@pytest.mark.parametrize(
    ("view", "order"),
    [
        (stage(3, 5), [0, 1, 2, 3, 4]),
        (stage(3, 5, reading=[False, True, False, True, True]), [0, 1, 2, 3, 4]),
        (stage(3, 5, ready=[True, False, True, False, True]), [0, 2, 4]),
        (stage(3, 5, tier=[0, B, 0, 0, B]), [0, 2, 3, 1, 4]),
        (stage(0, 2), [0, 1]),
        (stage(0, 0), []),
    ],
    ids=["by age", "prompts or not", "what is ready", "best effort last", "newcomers only", "nothing"],
)
def test_rows_by_age_and_then_newcomers(view: StepView, order: list[int]) -> None:
    choice = chosen(view)
    assert choice.order.tolist() == order
    assert choice.preempt.tolist() == []


def test_what_came_last_makes_room_and_nothing_joins_in_that_step() -> None:
    choice = chosen(short(3, 4))
    assert (choice.order.tolist(), choice.preempt.tolist()) == ([0, 1], [2])
    assert choice.keeps is None
