"""The policies that one unit asks, and what they said of the stage as it stands."""

from __future__ import annotations

from collections.abc import Callable
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


class Chooser(Generic[V]):
    """Asks who is held back and who runs, once until the stage changes. Owner of when these policies wish to
    be asked again."""

    def __init__(self, policies: StagePolicies) -> None:
        self._policies = policies
        self._chosen: tuple[V, StepChoice] | None = None
        self.seen: tuple[V, StepChoice] | None = None
        """What was said last since `tell_time`, whether it still counts or not."""
        self.wake_at: float | None = None

    def tell_time(self) -> None:
        """Another call of the node begins."""
        self._chosen = self.seen = self.wake_at = None

    def changed(self) -> None:
        """What was said counts no more."""
        self._chosen = None

    def ask(self, view_of: Callable[[], V], budget: Budget, now: float) -> tuple[V, StepChoice]:
        """The view and the choice. Nothing is changed by it."""
        if self._chosen is None:
            view = view_of()
            seen = cast(StepView, view)
            hold = self._policies.pace.decide(seen, now)
            view.held_back = hold.held
            choice = self._policies.step.decide(seen, budget, now)
            for wished in (hold.wake_at, choice.wake_at):
                if wished is not None:
                    self.wake_at = wished if self.wake_at is None else min(self.wake_at, wished)
            self._chosen = self.seen = view, choice
        return self._chosen


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
