"""A step policy that preempts whom a test names, and decides as the baseline otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.plans import ints
from antiphon.policy.base import Budget, StageView, StepChoice
from antiphon.policy.prefill_first import PrefillFirst
from antiphon.stage.ar import ArScheduler


class Whims:
    """`victims` are places among the running rows, oldest first; they are preempted at the next step."""

    name = "whims"

    def __init__(self) -> None:
        self.victims: list[int] = []
        self._baseline = PrefillFirst()

    def decide(self, view: StageView, budget: Budget, now: float) -> StepChoice:
        choice, running = self._baseline.decide(view, budget, now), view.running
        victims, self.victims = self.victims, []
        if not victims or not len(running):
            return choice
        chosen = ints([int(running[victim % len(running)]) for victim in victims])
        return replace(choice, preempt=np.union1d(choice.preempt, chosen))


def whims_of(scheduler: ArScheduler) -> Whims:
    """The stage does as its new policy's `victims` say."""
    whims = Whims()
    scheduler._policy = whims
    return whims
