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

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from antiphon.assembly.answers import CHECKS, NonsenseError, check_told, plain_text
from antiphon.assembly.observed import Effects, ObservedHead, effects
from antiphon.assembly.registry import decider, raised_at, source_of, teller
from antiphon.core.facts import NO_INTS, PolicySuspended
from antiphon.core.snapshot import PolicyShown
from antiphon.policy.base import Head, Refuse, StepChoice, Told
from antiphon.policy.memory import KvView, Selection

LIMIT_S = 0.05
"""A decision that takes longer is slow."""
MOST_SLOW, WINDOW = 10, 100
LEAST_WAKE_S = 0.001
"""A policy that wishes to be asked again sooner is asked then."""
MAX_INCIDENTS = 100
"""Kept until the driver has told of them; more are only counted."""
MAX_EVENTS = 32
"""Of those that a policy counts itself, so that it cannot fill the metrics."""

COMPARED = "agreed", "differed"
"""Events by which an observed policy's decisions are counted, behind the decision's name."""
HOLDS_UP = "step", "pace", "device"
"""Decisions by which a stage can stand still."""

Key = tuple[str, str, str]
"""(unit, policy, event)"""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that a policy did wrong, for the log."""

    unit: str
    decision: str
    policy: str
    message: str

    def __str__(self) -> str:
        return f"policy {self.policy} ({_place(self.decision, self.unit)}): {self.message}"


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
        return _place(self.decision, self.unit)

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
        place = _place(self.decision, self.unit)
        count = f"{self.num_differed} of {self.num_decisions}"
        return f"{place}: observed, {self.policy} would have decided otherwise in {count} decisions"


class Listener(Protocol):
    """Hears every answer that is carried out, the baseline's in a policy's place included, and where one that
    is observed differs from it."""

    def said(self, asked: Watched, view: Any, answer: Any, now: float) -> None: ...

    def differed(self, unit: str, would: Effects, did: Effects, reason: str) -> None:
        """What only the policy would have done, with its reason, and what only the baseline did."""
        ...


class Guard:
    """Owner of what policies did, counted, and of which are suspended."""

    def __init__(
        self, stopwatch: Callable[[], float] | None = None, listener: Listener | None = None
    ) -> None:
        """stopwatch: seconds of any clock; None: nothing is timed."""
        self.listener = listener
        self.counts: Counter[Key] = Counter()
        self._stopwatch = stopwatch
        self._incidents: list[Incident] = []
        self._suspended: set[tuple[str, str]] = set()
        self._overdue: list[PolicySuspended] = []
        self._watched: list[Watched] = []
        self.inner_s = 0.0
        """Of what is being timed, the seconds of others that were asked by it."""
        self._overruled: set[str] = set()
        """Units where the baseline decides what runs."""
        self._paced: set[str] = set()
        """Units whose requests are held up by what is not the baseline."""
        self.urgency: dict[str, int] = {}
        """Of each unit whose step policy is observed, the most urgent that it would have run, as of its last
        answer if that was one."""
        self.asking: Watched | None = None
        """The policy that is being asked: /health names it if its decision does not return."""

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

    def suspend(self, fact: PolicySuspended) -> None:
        """From now on the baseline decides."""
        self._suspended.add((fact.unit, fact.decision))

    def is_suspended(self, unit: str, decision: str) -> bool:
        return (unit, decision) in self._suspended

    def overdue(self) -> list[PolicySuspended]:
        """Policies that were too slow too often, since the last call: to be told to the node as facts."""
        overdue, self._overdue = self._overdue, []
        return overdue

    def incidents(self) -> list[Incident]:
        """What policies did wrong since the last call."""
        incidents, self._incidents = self._incidents, []
        return incidents

    @property
    def events(self) -> Counter[Key]:
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

    def names(self, unit: str) -> dict[str, str]:
        """The policy of each decision, as the preset names it."""
        return {one.decision: one.name for one in self._watched if one.unit == unit}

    def count(self, watched: Watched, event: str, message: str = "") -> None:
        """The log is told of the first, the second, the fourth … time."""
        key = watched.unit, watched.name, event
        times = self.counts[key] = self.counts[key] + 1
        if message and times & (times - 1) == 0 and len(self._incidents) < MAX_INCIDENTS:
            said = f"{message} ({times} times)" if times > 1 else message
            self._incidents.append(Incident(watched.unit, watched.decision, watched.name, said))

    def now(self) -> float:
        return 0.0 if self._stopwatch is None else self._stopwatch()

    def timed(self, watched: Watched) -> Timed:
        """It is asked, and its `asked_s` grows; what others are asked by it in between is not its time."""
        return Timed(self, watched)

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

    def overrules(self, watched: Watched) -> bool:
        return watched.decision in HOLDS_UP and watched.unit in self._overruled

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

    def answered(self, watched: Watched) -> None:
        """It has decided: how long that took is told."""
        seconds, watched.asked_s = watched.asked_s, 0.0
        slow = seconds > LIMIT_S
        watched.slow.append(slow)
        if not slow:
            return
        self.count(watched, "slow", f"took {seconds:.3f} s, and over {LIMIT_S:g} s is slow")
        is_known = watched.is_baseline or self.is_suspended(watched.unit, watched.decision)
        if sum(watched.slow) >= MOST_SLOW and not is_known:
            message = f"slow ({seconds:.3f} s) too often: the baseline decides from now on"
            self.count(watched, "suspended", message)
            self._overdue.append(PolicySuspended(watched.unit, watched.decision))
            watched.slow.clear()


class Timed:
    """A stretch of time in which a policy is asked; one is begun for every owner of KV that it names."""

    __slots__ = ("_before", "_began", "_guard", "_outer_s", "_watched")

    def __init__(self, guard: Guard, watched: Watched) -> None:
        self._guard, self._watched = guard, watched

    def __enter__(self) -> None:
        guard = self._guard
        self._before, guard.asking = guard.asking, self._watched
        self._outer_s, guard.inner_s = guard.inner_s, 0.0
        self._began = guard.now()

    def __exit__(self, *raised: object) -> None:
        guard = self._guard
        whole_s = guard.now() - self._began
        guard.asking = self._before
        self._watched.asked_s += whole_s - guard.inner_s
        guard.inner_s = self._outer_s + whole_s


class Watched:
    """A policy as the node asks it: `decide` as the decision's protocol has it."""

    def __init__(
        self, guard: Guard, decision: str, unit: str, policy: Any, baseline: Any, is_observed: bool
    ) -> None:
        self.decision = decision
        self.unit = unit
        self.policy = policy
        self.name = plain_text(str(getattr(policy, "name", type(policy).__name__)))
        self.is_baseline = type(policy) is type(baseline)
        self.is_observed = is_observed and not self.is_baseline
        self.is_in_force = not self.is_observed and not self.is_baseline
        self.slow: deque[bool] = deque(maxlen=WINDOW)
        self.asked_s = 0.0
        self.num_asked = 0
        self.overruled: Counter[str] = Counter()
        """Decisions that the baseline took, by reason."""
        self._guard = guard
        self._file = source_of(policy)
        self._ask = decider(policy, decision)
        self._tell = teller(policy, decision)
        self._has_decided = False
        """The last answer is its own, and not the baseline's in its place."""
        self._words_s = 0.0
        """How long it took to tell of its last decision."""
        self._num_slow_words = 0
        self._baseline = decider(baseline, decision)
        self._check = CHECKS[decision]

    @property
    def prepares(self) -> bool:
        """Of a fetch policy: it acts on advisories, and is the one that decides."""
        is_asked = not self.is_observed and not self._guard.is_suspended(self.unit, self.decision)
        return is_asked and bool(getattr(self.policy, "prepares", False))

    @property
    def described(self) -> str:
        return f"the policy {self.name} ({_place(self.decision, self.unit)})"

    def decide(self, view: Any, *more: Any) -> Any:
        """The policy's answer, or the baseline's."""
        answer = self._answer(view, *more)
        if self._guard.listener is not None:
            self._guard.listener.said(self, view, answer, more[-1])
        return answer

    def tell(self, view: Any, one: Any, now: float) -> Told | None:
        """What the policy says of a candidate or owner about which it has just decided; None if it says
        nothing, or the baseline decided in its place. One that takes longer than `LIMIT_S` over its words is
        asked for no more about this decision, and after `MOST_SLOW` such never again."""
        if self._tell is None or not self._has_decided or self._words_s > LIMIT_S:
            return None
        guard = self._guard
        try:
            with guard.timed(self):
                return check_told(self._tell(view, one, now))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
            guard.count(self, "untold", f"what it tells of its decision is unusable: {what}")
            return None
        finally:
            self._words_s, self.asked_s = self._words_s + self.asked_s, 0.0
            if self._words_s > LIMIT_S:
                self._told_slowly()

    def _told_slowly(self) -> None:
        """Counted."""
        guard, took = self._guard, f"took {self._words_s:.3f} s to tell of a decision"
        guard.count(self, "slow_words", f"{took}, and over {LIMIT_S:g} s is slow")
        self._num_slow_words += 1
        if self._num_slow_words == MOST_SLOW:
            guard.count(self, "silenced", f"{took}, and that too often: it is asked for no more words")
            self._tell = None

    def _answer(self, view: Any, *more: Any) -> Any:
        assert self._ask is not None
        assert self._baseline is not None
        guard, now = self._guard, more[-1]
        self._has_decided, self._words_s = self.is_baseline, 0.0
        if self.decision == "step":
            guard.urgency.pop(self.unit, None)
        if self.is_baseline:  # there is nothing else to ask
            return self._ask(view, *more)
        self.num_asked += 1
        if guard.is_suspended(self.unit, self.decision):
            self.overruled["suspended"] += 1
            return self._baseline(view, *more)
        if guard.overrules(self):
            self.overruled["stalled"] += 1
            return self._baseline(view, *more)
        seen = self._apart(view) if self.is_observed else view
        try:
            with guard.timed(self):
                answer = self._check(seen, self._ask(seen, *more))
                if isinstance(answer, Selection):
                    answer = replace(answer, owners=self._owners(answer.owners, view, *more))
                would = effects(self.decision, seen, answer, *more) if self.is_observed else {}
        except BaseException as error:
            self._failed(error)
            return self._baseline(view, *more)
        finally:
            guard.answered(self)
        self._has_decided = not self.is_observed
        if self.is_observed:
            self._compare(answer, would, seen, *more)
            return self._baseline(view, *more)
        if isinstance(answer, Refuse):
            guard.count(self, "refused", f"refused a request: {answer.reason}")
        return self._in_time(answer, now)

    def _apart(self, view: Any) -> Any:
        """For one that is observed: a copy, since a column stays as it was when it was read first. Units of a
        device are as urgent as their observed step policies say."""
        if self.decision != "device":
            return copy(view)
        return tuple(ObservedHead(head, self._guard.urgency) for head in cast(Sequence[Head], view))

    def _compare(self, answer: Any, would: Effects, view: Any, *more: Any) -> None:
        """Counts whether it would have done what the baseline does. Questions to which both do nothing, and
        those with one possible answer, are not counted."""
        assert self._baseline is not None
        guard, decision = self._guard, self.decision
        if isinstance(answer, StepChoice):
            urgency = NO_INTS if answer.urgency is None else answer.urgency
            guard.urgency[self.unit] = int(urgency.min()) if len(urgency) else 0
        did = effects(decision, view, self._baseline(view, *more), *more)
        if not would and not did:
            return
        agreed, differed = COMPARED
        guard.count(self, f"{decision}_{agreed if would.keys() == did.keys() else differed}")
        if guard.listener is not None and would.keys() != did.keys():
            only_would = {effect: None for effect in would if effect not in did}
            only_did = {effect: None for effect in did if effect not in would}
            guard.listener.differed(self.unit, only_would, only_did, getattr(answer, "reason", ""))

    def _failed(self, error: BaseException) -> None:
        """Counted. Raises what ends the process, or a generator, again."""
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise error
        is_nonsense = isinstance(error, NonsenseError)
        event, what = "nonsense" if is_nonsense else "raised", str(error)
        if not is_nonsense:
            what = f"{type(error).__name__}: {what}{raised_at(error, self._file)}"
        self.overruled[event] += 1
        self._guard.count(self, event, f"{event}, and the baseline decided: {what}")

    def _owners(self, owners: Iterable[str], view: KvView, *more: Any) -> Iterator[str]:
        """One by one as they are taken; from the first that is nonsense on the baseline's."""
        seen: set[str] = set()
        waiting: frozenset[str] | None = None
        try:
            taken = iter(owners)
            while True:
                with self._guard.timed(self):
                    owner = next(taken, None)
                if owner is None:
                    return
                if owner in seen:
                    raise NonsenseError(f"owners: {owner!r} stands there twice")
                if not view.has(owner):
                    waiting = frozenset(view.waiting()) if waiting is None else waiting
                    if owner not in waiting:
                        raise NonsenseError(f"owners: {owner!r} has no KV here")
                seen.add(owner)
                yield owner
        except BaseException as error:
            self._failed(error)
            self._has_decided = False
        finally:
            self._guard.answered(self)
        assert self._baseline is not None
        yield from (owner for owner in self._baseline(view, *more).owners if owner not in seen)

    def _in_time(self, answer: Any, now: float) -> Any:
        """A wish to be asked again in the past, or at once, is one to be asked very soon."""
        wake_at = getattr(answer, "wake_at", None)
        if wake_at is None or wake_at >= now + LEAST_WAKE_S:
            return answer
        if wake_at < now:
            message = f"wake_at is {now - wake_at:.3g} s in the past: it is asked again very soon"
            self._guard.count(self, "wake_in_past", message)
        return replace(answer, wake_at=now + LEAST_WAKE_S)


def _place(decision: str, unit: str) -> str:
    return f"{decision} of {unit}" if unit else decision


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
