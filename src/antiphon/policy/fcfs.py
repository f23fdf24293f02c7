"""Baseline: continuous batching first come first served, as vLLM's scheduler does it (LiveServe §4)."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import Budget, StageView, StepChoice, last_come


class Fcfs:
    """Whoever runs goes on, oldest first, in its prompt or its reply; newcomers take what is left.

    Best-effort work comes after newcomers, and is preempted before all else; then who came last.
    """

    name = "fcfs"

    def decide(self, view: StageView, budget: Budget, now: float) -> StepChoice:
        rows = view.running[np.isin(view.running, np.concatenate([view.prefilling, view.decoding]))]
        num_urgent = int((view.best_effort[rows] == 0).sum())
        return StepChoice(view.num_waiting, rows, num_urgent, "first come first served", last_come(view))
