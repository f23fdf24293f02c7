"""Baseline: every stage works as far ahead as it can."""

from __future__ import annotations

from antiphon.policy.base import NO_HOLD, Hold, StepView


class Unpaced:
    """Holds nothing back."""

    name = "unpaced"

    def decide(self, view: StepView, now: float) -> Hold:
        return NO_HOLD
