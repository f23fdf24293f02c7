"""Policies that go by what steps and copies cost, for tests of what they see."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np

from antiphon.policy.base import Budget, StepChoice, StepView
from antiphon.policy.memory import NOTHING, KvView, Selection
from antiphon.policy.prefill_first import PrefillFirst


class Thrifty:
    """Runs as few rows as a step of `MOST_S` has time for, and tells what everything costs as its reason, so
    that plans differ where costs do. It writes while the link is idle."""

    name = "thrifty"
    MOST_S = 0.02

    def __init__(self) -> None:
        self._baseline = PrefillFirst()

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        choice = self._baseline.decide(view, budget, now)
        order = choice.order
        if view.cost is None or not len(order) or len(choice.preempt):
            return choice
        while len(order) > 1 and not (self._seconds(view, order) <= self.MOST_S):
            if isnan(self._seconds(view, order)):
                break
            order = order[:-1]
        reason = f"{self._seconds(view, order)!r} {view.reload_s.tolist()}"
        return replace(choice, order=order, reason=reason) if view.ready[order].any() else choice

    def decide_write(self, view: KvView, now: float) -> Selection:
        out = view.out
        step_s = 0.005 if isnan(view.step_s) else view.step_s
        count = 2 if isnan(out.block_s) else int(max(step_s - out.queued_s, 0.0) / out.block_s)
        return Selection(view.dirty(), count, "as fast as the link") if count else NOTHING

    @staticmethod
    def _seconds(view: StepView, order: np.ndarray) -> float:
        assert view.cost is not None
        return view.cost.seconds(view.tokens[order], view.context[order])
