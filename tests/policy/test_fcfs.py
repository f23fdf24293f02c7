"""First come, first served, whatever a row is at."""

from __future__ import annotations

from antiphon.core.plans import ints
from antiphon.policy.base import Budget
from antiphon.policy.fcfs import Fcfs
from policy.test_prefill_first import View

BUDGET = Budget(16, 8)


def test_who_runs_goes_on_by_age_before_newcomers() -> None:
    view = View(ints([4, 1]), ints([0, 3]), 7, ints([0, 4, 3, 1]))
    choice = Fcfs().decide(view, BUDGET, now=0.0)
    assert choice.rows.tolist() == [0, 4, 3, 1]
    assert (choice.admit, choice.admit_at) == (7, 4)
    assert not len(choice.preempt)
    assert choice.reason


def test_a_row_that_waits_for_its_next_input_sits_out() -> None:
    choice = Fcfs().decide(View(ints([1]), ints([0]), 0, ints([0, 2, 1])), BUDGET, now=0.0)
    assert choice.rows.tolist() == [0, 1]


def test_newcomers_come_before_best_effort_work() -> None:
    late = ints([0, 0, 1, 0, 0, 0, 0, 0])
    choice = Fcfs().decide(View(ints([2]), ints([0]), 1, ints([0, 2]), best_effort=late), BUDGET, now=0.0)
    assert (choice.rows.tolist(), choice.admit_at) == ([0, 2], 1)


def test_who_came_last_makes_room() -> None:
    view = View(ints([4, 1]), ints([0]), 7, ints([0, 4, 1]), starved=True)
    assert Fcfs().decide(view, BUDGET, now=0.0).preempt.tolist() == [1]


def test_nothing_to_do() -> None:
    choice = Fcfs().decide(View(ints([]), ints([]), 0, ints([])), BUDGET, now=0.0)
    assert len(choice.rows) == choice.admit == choice.admit_at == 0
