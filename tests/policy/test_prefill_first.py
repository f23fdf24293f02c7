"""Prompts first, in the order of admission."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.core.facts import Ints
from antiphon.core.plans import ints
from antiphon.policy.base import Budget
from antiphon.policy.prefill_first import PrefillFirst


@dataclass
class View:
    prefilling: Ints
    decoding: Ints
    num_waiting: int
    running: Ints
    starved: bool = False
    crowded: bool = False
    best_effort: Ints = field(default_factory=lambda: np.zeros(8, np.int64))


def test_prompts_then_the_admitted_then_replies() -> None:
    choice = PrefillFirst().decide(
        View(ints([4, 1]), ints([0, 3]), 7, ints([0, 3, 4, 1])), Budget(16, 8), now=0.0
    )
    assert choice.rows.tolist() == [4, 1, 0, 3]
    assert choice.admit == 7
    assert choice.admit_at == 2
    assert not len(choice.preempt)
    assert choice.reason


def test_who_came_last_makes_room() -> None:
    view = View(ints([4, 1]), ints([0]), 7, ints([0, 3, 4, 1]), starved=True)
    assert PrefillFirst().decide(view, Budget(16, 8), now=0.0).preempt.tolist() == [1]


def test_best_effort_makes_room_for_who_waits() -> None:
    view = View(ints([]), ints([0, 3]), 7, ints([0, 3]), crowded=True)
    assert PrefillFirst().decide(view, Budget(16, 8), now=0.0).preempt.tolist() == [3]


def test_nothing_to_do() -> None:
    choice = PrefillFirst().decide(View(ints([]), ints([]), 0, ints([])), Budget(16, 8), now=0.0)
    assert len(choice.rows) == choice.admit == 0


def test_best_effort_comes_after_prompts_and_replies() -> None:
    late = ints([0, 1, 0, 0, 1, 0, 0, 0])
    view = View(ints([1, 2]), ints([0, 4]), 0, ints([0, 2, 1, 4]), best_effort=late)
    choice = PrefillFirst().decide(view, Budget(16, 8), now=0.0)
    assert choice.rows.tolist() == [2, 0, 1, 4]
    assert choice.admit_at == 1
