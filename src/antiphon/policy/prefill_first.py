"""Baseline: prompts before replies, each first come first served."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import Budget, StageView, StepChoice, last_come


class PrefillFirst:
    """A new prompt runs at once; running replies share what is left of the step.

    Who came last is preempted first.
    """

    name = "prefill-first"

    def decide(self, view: StageView, budget: Budget, now: float) -> StepChoice:
        prefilling = view.prefilling
        rows = np.concatenate([prefilling, view.decoding])
        return StepChoice(view.num_waiting, rows, len(prefilling), "prompts first", last_come(view))
