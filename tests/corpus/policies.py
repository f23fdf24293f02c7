"""Policies of records in the corpus. A record holds this file's digest: who changes it makes them again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.policy.base import NO_HOLD, Budget, Hold, StepChoice, StepView
from antiphon.policy.prefill_first import PrefillFirst


class HoldAhead:
    """Holds what is over `lead_s` seconds ahead of its listener, until it is not."""

    name = "hold-ahead"

    def __init__(self, lead_s: float = 2.0) -> None:
        self._lead_s = lead_s

    def decide(self, view: StepView, now: float) -> Hold:
        held = view.lead_s > self._lead_s
        if not held.any():
            return NO_HOLD
        return Hold(held, "far ahead", float(now + np.min(view.lead_s[held]) - self._lead_s))


class TakeTurns:
    """As the baseline; every so often the oldest of several rows is preempted, and keeps its KV."""

    name = "take-turns"

    def __init__(self, every: int = 7) -> None:
        self._every = every
        self._asked = 0
        self._baseline = PrefillFirst()

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        choice = self._baseline.decide(view, budget, now)
        if view.num_rows < 2 or len(choice.preempt):
            return choice
        self._asked += 1
        if self._asked % self._every:
            return choice
        rows = choice.order[(choice.order > 0) & (choice.order < view.num_rows)]
        return replace(choice, order=rows, preempt=np.zeros(1, np.int64), keeps=np.ones(1, np.bool_))
