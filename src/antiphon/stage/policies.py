"""The policies that one unit asks, and what they said of the stage as it stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from antiphon.core.facts import Ints
from antiphon.policy.base import AdmissionPolicy, Budget, PacePolicy, StepChoice, StepPolicy, StepView
from antiphon.policy.memory import KvPolicies
from antiphon.stage.candidates import Candidates


@dataclass(frozen=True, slots=True)
class StagePolicies:
    """One for each decision about a unit's requests and KV."""

    step: StepPolicy
    pace: PacePolicy
    admission: AdmissionPolicy
    kv: KvPolicies


V = TypeVar("V", bound=Candidates)


class Chooser(ABC, Generic[V]):
    """Base of all schedulers: asks which candidates are held back and which run, once until the stage
    changes. Owner of when these policies wish to be asked again."""

    def __init__(self, policies: StagePolicies) -> None:
        self._policies = policies
        self._chosen: tuple[V, StepChoice] | None = None
        self._wished_at: float | None = None
        self.seen: tuple[V, StepChoice] | None = None
        """What was said last since `tell_time`, whether it still counts or not."""

    @property
    @abstractmethod
    def budget(self) -> Budget:
        """Of the next step."""

    @abstractmethod
    def _candidates(self, now: float) -> V:
        """The stage as it stands."""

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self._chosen = self.seen = self._wished_at = None

    @property
    def wake_at(self) -> float | None:
        """When a policy of this stage wishes to be asked again, of those asked since `tell_time`."""
        return self._wished_at

    def choose(self, now: float) -> tuple[V, StepChoice]:
        """What the policies say of the stage as it stands. Nothing is changed by it."""
        if self._chosen is None:
            view = self._candidates(now)
            seen = cast(StepView, view)
            hold = self._policies.pace.decide(seen, now)
            view.held_back = hold.held
            choice = self._policies.step.decide(seen, self.budget, now)
            for wished in (hold.wake_at, choice.wake_at):
                if wished is not None:
                    self._wished_at = wished if self._wished_at is None else min(self._wished_at, wished)
            self._chosen = self.seen = view, choice
        return self._chosen

    def _taken(self, now: float) -> tuple[V, StepChoice]:
        """The same, to be carried out: what was said counts no more."""
        chosen = self.choose(now)
        self._chosen = None
        return chosen


def up_to(view: Candidates, choice: StepChoice, most: int | None) -> tuple[Ints, Ints | None]:
    """The chosen candidates of this urgency and below it (None: all) that are ready and are to run something,
    and the tokens for each."""
    order, counts = choice.order, choice.counts
    chosen = view.ready[order]
    if counts is not None:
        chosen &= counts > 0
    if most is not None and choice.urgency is not None:
        chosen &= choice.urgency <= most
    return order[chosen], None if counts is None else counts[chosen]
