"""The policies that one unit asks, what they said of the stage as it stands, and when to ask them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from math import inf
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import numpy as np

from antiphon.core.facts import Ints
from antiphon.interaction.frontier import Slots
from antiphon.policy.base import (
    PREPARATORY,
    AdmissionPolicy,
    Budget,
    PacePolicy,
    StepChoice,
    StepPolicy,
    StepView,
    soonest,
)
from antiphon.policy.memory import KvPolicies
from antiphon.stage.candidates import Candidates, Surroundings


@dataclass(frozen=True, slots=True)
class StagePolicies:
    """One for each decision about a unit's requests and KV."""

    step: StepPolicy
    pace: PacePolicy
    admission: AdmissionPolicy
    kv: KvPolicies


MOST_SILENT_S = 0.25
"""A question is asked again after so long, when the node is called, though nothing has changed."""


class Question:
    """Owner of when something was asked last, of what, and when it is to be asked again: once that has
    changed, or when a policy wishes it."""

    def __init__(self) -> None:
        self.wake_at: float | None = None
        """When a policy wishes to be asked again though nothing changes, of those asked last."""
        self._of: object = None
        self._due_at = -inf

    def is_due(self, of: object, now: float) -> bool:
        """Is it time, or is what it is asked of not what it was?"""
        return now >= self._due_at or of != self._of

    def asked(self, of: object, wake_at: float | None, now: float) -> None:
        self._of, self.wake_at = of, wake_at
        self._due_at = min(now + MOST_SILENT_S, inf if wake_at is None else wake_at)

    def reopen(self) -> None:
        """Ask again at the next call, whatever has changed."""
        self._due_at = -inf


F = TypeVar("F")


class Flights(dict[int, F]):
    """A stage's steps in flight, in the order in which they are reported. F: what is noted of one."""

    @property
    def last(self) -> int | None:
        """What is given up now may still be named by this step; None: by none."""
        return next(reversed(self), None)


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Chooser[Any, Any]")
V = TypeVar("V", bound=Candidates)


def changes(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Of a scheduler: what it does may give its policies something else to say."""

    @wraps(method)
    def changing(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        self.num_changes += 1
        return method(self, *args, **kwargs)

    return changing


class Chooser(ABC, Generic[V, F]):
    """Base of all schedulers: asks which candidates are held back and which run, once until the stage
    changes. Owner of when these policies wish to be asked again, and of the steps in flight. V: candidates;
    F: what is noted of a step."""

    def __init__(self, policies: StagePolicies, around: Surroundings | None = None) -> None:
        self.num_changes: int = 0
        """Of the stage itself."""
        self._flights = Flights[F]()
        self._around = around or Surroundings()
        self._policies = policies
        self._slots: Slots = np.zeros(0, np.intp)
        """Of the candidates that were chosen from last."""
        self._chosen: tuple[V, StepChoice] | None = None
        self.wake_at: float | None = None
        """When a policy of this stage wishes to be asked again, of those asked since `tell_time`."""
        self.seen: tuple[V, StepChoice] | None = None
        """What was said last since `tell_time`, whether it still counts or not."""

    @property
    def num_in_flight(self) -> int:
        """Steps."""
        return len(self._flights)

    def is_flying(self, step: int) -> bool:
        """Is its report still to come?"""
        return step in self._flights

    @property
    @abstractmethod
    def budget(self) -> Budget:
        """Of any step, however long it takes."""

    def spendable(self, now: float) -> Budget:
        """Of the next step, with what those beside it leave of time."""
        return self.budget

    @abstractmethod
    def _candidates(self, now: float) -> V:
        """The stage as it stands."""

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self._chosen = self.seen = self.wake_at = None

    def reopen(self) -> None:
        """Others may decide from now on: ask again, whatever has changed."""
        self.num_changes += 1

    def choose(self, now: float) -> tuple[V, StepChoice]:
        """What the policies say of the stage as it stands. Nothing is changed by it."""
        if self._chosen is None:
            view = self._candidates(now)
            seen, self._slots = cast(StepView, view), view.slots
            hold = self._policies.pace.decide(seen, now)
            view.hold(hold.held)
            choice = self._policies.step.decide(seen, self.spendable(now), now)
            self.wake_at = soonest(self.wake_at, hold.wake_at, choice.wake_at)
            self._chosen = self.seen = view, choice
        return self._chosen

    @property
    def state(self) -> tuple[int, int]:
        """Another one after all changes that policies go by, but for time and what is heard."""
        return self.num_changes, 0

    @property
    def num_heard(self) -> int:
        """Grows with what is made and heard of those that were chosen from last."""
        return self._around.frontier.num_changes(self._slots)

    def _taken(self, now: float) -> tuple[V, StepChoice]:
        """What the policies say, to be carried out: they are asked anew after it."""
        chosen = self.choose(now)
        self._chosen = None
        return chosen


def to_run(view: Candidates, choice: StepChoice) -> tuple[Ints, Ints | None]:
    """The chosen candidates that are ready and are to run something, and the tokens for each. What is
    preparatory makes no step longer: it runs where nothing else was chosen."""
    order, counts = choice.order, choice.counts
    chosen = view.ready[order]
    if counts is not None:
        chosen &= counts > 0
    served = chosen & (view.tier[order] != PREPARATORY)
    if np.count_nonzero(served):
        chosen = served
    return order[chosen], None if counts is None else counts[chosen]
