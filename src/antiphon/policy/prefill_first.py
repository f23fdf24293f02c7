"""Baseline: prompts before replies, each first come first served."""

from __future__ import annotations

from antiphon.policy.base import Budget, StepChoice, StepView, prompts_first


class PrefillFirst:
    """A new prompt runs at once; running replies share what is left of the step.

    Best-effort work gets what is left over after both. What came last is preempted first, best effort before
    all else; a step that preempts admits no request. Where there are no prompts, as in a codec, all go
    in their order.
    """

    name = "prefill-first"

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        return prompts_first(view)
