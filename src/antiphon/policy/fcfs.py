"""Baseline: continuous batching first come first served, as vLLM's scheduler does it (LiveServe §4)."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import LATENCY, Budget, StepChoice, StepView, last_come, ready_beside


class Fcfs:
    """What runs goes on, oldest first, in its prompt or its reply; newcomers take what is left.

    Best-effort work comes after newcomers, and is preempted before all else; then what came last. A step that
    preempts admits no request.
    """

    name = "fcfs"

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        preempt, first = last_come(view), view.num_rows
        ready = ready_beside(view, preempt)
        order = ready[np.lexsort((ready >= first, view.tier[ready] != LATENCY))]
        return StepChoice(order, "first come first served", preempt=preempt)
