"""What stands between policies and the node: one that raises, returns nonsense or is slow costs its own
decisions, and nothing else.

    asked --a valid answer in time--> carried out
       ├---it is only observed (`observe`)--> held to the baseline's (`observed`), which is carried out
       ├---it raised, or the answer is nonsense--> counted; the baseline decides this once
       ├---its stage would stand still by it, or stands idle for too long (`idle`)--> counted; the baseline
       │   decides what runs in this call
       └---too slow, MOST_SLOW times of the last WINDOW--> suspended: the baseline decides from then on

A suspension is a fact (`PolicySuspended`), because it depends on the clock: a record replays without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from antiphon.assembly.answers import plain_text
from antiphon.assembly.watched import (
    COMPARED,
    HOLDS_UP,
    AnswerListener,
    EventKey,
    Incident,
    Oversight,
    Watched,
    place_of,
)
from antiphon.core.facts import PolicySuspended
from antiphon.core.graph import Edge
from antiphon.core.snapshot import PolicyShown

MAX_EVENTS = 32
"""Of those that a policy counts itself, so that it cannot fill the metrics."""


@dataclass(frozen=True, slots=True)
class Overruled:
    """How many of a policy's decisions the baseline took, by reason."""

    unit: str
    decision: str
    policy: str
    num_decisions: int
    reasons: dict[str, int]

    @property
    def place(self) -> str:
        """The decision, and of which unit."""
        return place_of(self.decision, self.unit)

    @property
    def count(self) -> int:
        return sum(self.reasons.values())

    def __str__(self) -> str:
        reasons = ", ".join(self.reasons)
        return f"{self.place}: {self.count} of {self.num_decisions} decisions were the baseline's ({reasons})"


@dataclass(frozen=True, slots=True)
class Observed:
    """How often a policy that is observed would have done otherwise than the baseline, of the decisions in
    which either would have done anything."""

    unit: str
    decision: str
    policy: str
    num_differed: int
    num_decisions: int

    def __str__(self) -> str:
        place = place_of(self.decision, self.unit)
        count = f"{self.num_differed} of {self.num_decisions}"
        return f"{place}: observed, {self.policy} would have decided otherwise in {count} decisions"


class Guard(Oversight):
    """Owner of the policies of a node as they are asked. Tells what they did."""

    def __init__(
        self, stopwatch: Callable[[], float] | None = None, listener: AnswerListener | None = None
    ) -> None:
        """stopwatch: seconds of any clock; None: nothing is timed."""
        super().__init__(stopwatch, listener)
        self._watched: list[Watched] = []
        self._paced: set[str] = set()
        """Units whose requests are held up by what is not the baseline."""

    def watched(
        self, decision: str, unit: str, policy: Any, baseline: Any, is_observed: bool = False
    ) -> Watched:
        """The policy as the node asks it. `is_observed`: the baseline's answers are carried out."""
        made = Watched(self, decision, unit, policy, baseline, is_observed)
        self._watched = [one for one in self._watched if (one.decision, one.unit) != (decision, unit)]
        self._watched.append(made)
        if decision in HOLDS_UP and made.is_in_force:
            self._paced.update(unit.split("+"))
        return made

    def check_leads(self, unit: str, edge: Edge, frame_s: float) -> None:
        """Tells of policies of a unit whose `safe_s`, the lead below which a reply may run dry, is less than
        a chunk on the edge to the codec: frames of a chunk that is not whole count as ahead, but do not
        sound."""
        chunk_s = edge.chunk * frame_s
        for one in self._watched:
            safe_s = getattr(one.policy, "safe_s", None)
            if one.unit == unit and isinstance(safe_s, float) and safe_s < chunk_s:
                message = (
                    f"safe_s is {safe_s:g} and a chunk of sound {chunk_s:g} s, heard once it is whole: a "
                    "reply may run dry while it counts as well ahead; raise safe_s above "
                    f"{chunk_s:g} by what a step takes, or lower `chunk` of {edge.source} -> {edge.target}"
                )
                self._incidents.append(Incident(unit, one.decision, one.name, message))

    def overdue(self) -> list[PolicySuspended]:
        """Policies that were too slow too often, since the last call: to be told to the node as facts."""
        overdue, self._overdue = self._overdue, []
        return overdue

    def incidents(self) -> list[Incident]:
        """What policies did wrong since the last call."""
        incidents, self._incidents = self._incidents, []
        return incidents

    @property
    def events(self) -> Counter[EventKey]:
        """All that is counted, what policies count themselves (`events`, a dict of numbers) included: behind
        `observed_` for those that are observed, since it did not happen."""
        counts = self.counts.copy()
        for one in {id(one.policy): one for one in self._watched}.values():
            kind = "observed_" if one.is_observed else ""
            own = _own_events(one.policy).items()
            counts.update({(one.unit, one.name, kind + event): n for event, n in own})
        return counts

    def shown(self) -> tuple[PolicyShown, ...]:
        """Which policy takes which decisions of each unit, and what was counted."""
        decisions: dict[tuple[str, str], list[str]] = {}
        for one in self._watched:
            decisions.setdefault((one.unit, one.name), []).append(one.decision)
        observed = {(one.unit, one.name, one.decision) for one in self._watched if one.is_observed}
        events: dict[tuple[str, str], dict[str, int]] = {}
        for (unit, policy, event), count in self.events.items():
            events.setdefault((unit, policy), {})[event] = count
        return tuple(
            PolicyShown(
                unit,
                policy,
                tuple(taken),
                tuple(decision for decision in taken if self.is_suspended(unit, decision)),
                events.get((unit, policy), {}),
                tuple(decision for decision in taken if (unit, policy, decision) in observed),
            )
            for (unit, policy), taken in decisions.items()
        )

    def may_hold_up(self, unit: str) -> bool:
        """Does anything but the baseline decide what runs there?"""
        return unit in self._paced

    def stalled(self, unit: str, why: str = "its stage would stand still") -> bool:
        """Nothing runs there though something could: until `go_on` the baseline decides what runs. False
        where it did so already."""
        named = [one for one in self._watched if unit in one.unit.split("+") and one.decision in HOLDS_UP]
        at_fault = [one for one in named if one.is_in_force]
        for one in at_fault:
            self.count(one, "stalled", f"{why}, and the baseline decided")
            self._overruled.add(one.unit)
        return bool(at_fault)

    def churns(self, unit: str) -> None:
        """Its requests are preempted again and again and none gets on: the baseline decides until `go_on`."""
        for one in self._watched:
            is_asked = one.is_in_force and not self.is_suspended(one.unit, one.decision)
            if one.unit == unit and one.decision == "step" and is_asked:
                self.count(
                    one, "stalled", "it preempts and no request gets a token, and the baseline decided"
                )
                self._overruled.add(one.unit)

    def go_on(self) -> None:
        """The policies decide again."""
        self._overruled.clear()

    @property
    def refused(self) -> dict[str, int]:
        """Requests that were refused, by policy."""
        return {
            f"{policy} of {unit}": count
            for (unit, policy, event), count in self.counts.items()
            if event == "refused"
        }

    @property
    def overruled(self) -> tuple[Overruled, ...]:
        """Decisions that the baseline took for a policy."""
        return tuple(
            Overruled(one.unit, one.decision, one.name, one.num_asked, {**one.overruled})
            for one in self._watched
            if one.overruled and not one.is_observed
        )

    @property
    def observed(self) -> tuple[Observed, ...]:
        """What was counted of policies that are observed, by unit and decision."""
        return tuple(
            Observed(one.unit, one.decision, one.name, differed, agreed + differed)
            for one in self._watched
            for agreed, differed in (self._compared(one),)
            if agreed + differed
        )

    def _compared(self, one: Watched) -> tuple[int, ...]:
        """How often it agreed and differed."""
        return tuple(self.counts.get((one.unit, one.name, f"{one.decision}_{kind}"), 0) for kind in COMPARED)


def _own_events(policy: Any) -> dict[str, int]:
    """What a policy counts itself, as far as metrics can hold it; nothing if it cannot be read."""
    try:
        own = getattr(policy, "events", None)
        found = cast(dict[Any, Any], own).items() if isinstance(own, dict) else ()
        counts = {plain_text(str(event)): int(n) for event, n in found if _is_count(n)}
        return dict(list(counts.items())[:MAX_EVENTS])
    except Exception:
        return {}


def _is_count(number: Any) -> bool:
    if isinstance(number, np.integer):
        number = int(cast(Any, number))
    return type(number) is int and abs(number) < 1 << 63
