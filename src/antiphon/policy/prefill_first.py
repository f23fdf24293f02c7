"""Baseline: prompts before replies, each first come first served."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import LATENCY, Budget, StepChoice, StepView, last_come, ready_beside


class PrefillFirst:
    """A new prompt runs at once; running replies share what is left of the step.

    Best-effort work gets what is left over after both. What came last is preempted first, best effort before
    all else; a step that preempts admits no request. Where there are no prompts, as in a codec, all go
    in their order.
    """

    name = "prefill-first"

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        preempt, first = last_come(view), view.num_rows
        ready = ready_beside(view, preempt)
        reading, late = view.reading[ready], view.tier[ready] != LATENCY
        if np.count_nonzero(reading) or np.count_nonzero(late):
            # prompts, then those that wait, then replies; of best effort, those that wait come last
            turn = np.where(reading, np.where(ready >= first, np.where(late, 3, 1), 0), 2)
            ready = ready[np.lexsort((turn, late))]
        return StepChoice(ready, "prompts first", preempt=preempt)
