"""Baseline: every request that its context has room for is taken, however long it will wait."""

from __future__ import annotations

from antiphon.policy.base import Candidate, Refuse, StepView


class Unlimited:
    """Refuses nothing."""

    name = "unlimited"

    def decide(self, view: StepView, candidate: Candidate, now: float) -> Refuse | None:
        return None
