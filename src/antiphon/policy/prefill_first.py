"""Baseline: prompts before replies, each first come first served."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import Budget, StageView, StepChoice, last_come


class PrefillFirst:
    """A new prompt runs at once; running replies share what is left of the step.

    Best-effort work gets what is left over after both. Who came last is preempted first, best effort before
    all else.
    """

    name = "prefill-first"

    def decide(self, view: StageView, budget: Budget, now: float) -> StepChoice:
        prefilling, decoding = view.prefilling, view.decoding
        rows = np.concatenate([prefilling, decoding]) if len(prefilling) else decoding
        late = view.best_effort[rows]
        num_urgent = len(prefilling) - int(np.count_nonzero(late[: len(prefilling)]))
        if late.any():
            rows = rows[late.argsort(kind="stable")]
        return StepChoice(view.num_waiting, rows, num_urgent, "prompts first", last_come(view))
