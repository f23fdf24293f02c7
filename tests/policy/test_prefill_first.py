"""Prompts first, in the order of admission."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.facts import Ints
from antiphon.core.plans import ints
from antiphon.policy.base import Budget
from antiphon.policy.prefill_first import PrefillFirst


@dataclass
class View:
    prefilling: Ints
    decoding: Ints
    num_waiting: int


def test_prompts_then_the_admitted_then_replies() -> None:
    choice = PrefillFirst().decide(View(ints([4, 1]), ints([0, 3]), 7), Budget(16, 8), now=0.0)
    assert choice.rows.tolist() == [4, 1, 0, 3]
    assert choice.admit == 7
    assert choice.admit_at == 2
    assert choice.reason


def test_nothing_to_do() -> None:
    choice = PrefillFirst().decide(View(ints([]), ints([]), 0), Budget(16, 8), now=0.0)
    assert len(choice.rows) == choice.admit == 0
