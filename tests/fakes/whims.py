"""A step policy that preempts as a test names, and decides as another otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.plans import ints
from antiphon.policy.base import Budget, StepChoice, StepPolicy, StepView
from antiphon.stage.ar import ArScheduler


class Whims:
    """`victims` are places among the rows, oldest first; they are preempted at the next step, and keep their
    KV if `keeps` says so."""

    name = "whims"

    def __init__(self, otherwise: StepPolicy) -> None:
        self.victims: list[int] = []
        self.keeps = False
        self._otherwise = otherwise

    def decide(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        choice = self._otherwise.decide(view, budget, now)
        victims, self.victims = self.victims, []
        if not victims or not view.num_rows:
            return choice
        chosen = np.union1d(choice.preempt, ints([victim % view.num_rows for victim in victims]))
        stays = (choice.order < view.num_rows) & ~np.isin(choice.order, chosen)
        keeps = np.full(len(chosen), self.keeps, np.bool_)
        urgency = None if choice.urgency is None else choice.urgency[stays]
        return replace(choice, order=choice.order[stays], urgency=urgency, preempt=chosen, keeps=keeps)


def whims_of(scheduler: ArScheduler) -> Whims:
    """The stage does as its new policy's `victims` say."""
    whims = Whims(scheduler._policies.step)
    scheduler._policies = replace(scheduler._policies, step=whims)
    return whims
