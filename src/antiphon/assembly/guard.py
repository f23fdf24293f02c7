"""What stands between policies and the node: one that raises, returns nonsense or is slow costs its own
decisions, and nothing else.

    asked --a valid answer in time--> carried out
       ├---it raised, or the answer is nonsense--> counted; the baseline decides this once
       ├---its stage would stand still by it, or stands idle for too long (`idle`)--> counted; the baseline
       │   decides what runs in this call
       └---too slow, MOST_SLOW times of the last WINDOW--> suspended: the baseline decides from then on

A suspension is a fact (`PolicySuspended`), because it depends on the clock: a record replays without one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np

from antiphon.assembly.answers import CHECKS, NonsenseError, plain_text
from antiphon.assembly.registry import decider, raised_at, source_of
from antiphon.core.facts import PolicySuspended
from antiphon.core.snapshot import PolicyShown
from antiphon.policy.base import Refuse
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


class Listener(Protocol):
    """Hears every answer of a policy, the baseline's in its place included."""

    def said(self, decision: str, unit: str, view: Any, answer: Any) -> None: ...


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
        self._inner_s = 0.0
        """Of what is being timed, the seconds of others that were asked by it."""
        self._overruled: set[str] = set()
        """Units where the baseline decides what runs."""
        self._paced: set[str] = set()
        """Units whose requests are held up by what is not the baseline."""
        self.asking: Watched | None = None
        """The policy that is being asked: /health names it if its decision does not return."""

    def watched(self, decision: str, unit: str, policy: Any, baseline: Any) -> Watched:
        """The policy as the node asks it."""
        kind = Watched if self.listener is None else Overheard
        made = kind(self, decision, unit, policy, baseline)
        self._watched = [one for one in self._watched if (one.decision, one.unit) != (decision, unit)]
        self._watched.append(made)
        if decision in HOLDS_UP and not made.is_baseline:
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
        """All that is counted, what policies count themselves (`events`, a dict of numbers) included."""
        counts = self.counts.copy()
        for one in {id(one.policy): one for one in self._watched}.values():
            counts.update({(one.unit, one.name, event): n for event, n in _own_events(one.policy).items()})
        return counts

    def shown(self) -> tuple[PolicyShown, ...]:
        """Which policy takes which decisions of each unit, and what was counted."""
        decisions: dict[tuple[str, str], list[str]] = {}
        for one in self._watched:
            decisions.setdefault((one.unit, one.name), []).append(one.decision)
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

    @contextmanager
    def timed(self, watched: Watched) -> Generator[None]:
        """It is asked, and its `asked_s` grows; what others are asked by it in between is not its time."""
        before, self.asking = self.asking, watched
        outer, self._inner_s = self._inner_s, 0.0
        began = self.now()
        try:
            yield
        finally:
            whole_s = self.now() - began
            self.asking = before
            watched.asked_s += whole_s - self._inner_s
            self._inner_s = outer + whole_s

    def may_hold_up(self, unit: str) -> bool:
        """Does anything but the baseline decide what runs there?"""
        return unit in self._paced

    def stalled(self, unit: str, why: str = "its stage would stand still") -> bool:
        """Nothing runs there though something could: until `go_on` the baseline decides what runs. False
        where it did so already."""
        named = [one for one in self._watched if unit in one.unit.split("+") and one.decision in HOLDS_UP]
        at_fault = [one for one in named if not one.is_baseline]
        for one in at_fault:
            self.count(one, "stalled", f"{why}, and the baseline decided")
            self._overruled.add(one.unit)
        return bool(at_fault)

    def churns(self, unit: str) -> None:
        """Its requests are preempted again and again and none gets on: the baseline decides until `go_on`."""
        for one in self._watched:
            is_asked = not one.is_baseline and not self.is_suspended(one.unit, one.decision)
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
            if one.overruled
        )

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


class Watched:
    """A policy as the node asks it: `decide` as the decision's protocol has it."""

    def __init__(self, guard: Guard, decision: str, unit: str, policy: Any, baseline: Any) -> None:
        self.decision = decision
        self.unit = unit
        self.policy = policy
        self.name = plain_text(str(getattr(policy, "name", type(policy).__name__)))
        self.is_baseline = type(policy) is type(baseline)
        self.slow: deque[bool] = deque(maxlen=WINDOW)
        self.asked_s = 0.0
        self.num_asked = 0
        self.overruled: Counter[str] = Counter()
        """Decisions that the baseline took, by reason."""
        self._guard = guard
        self._file = source_of(policy)
        self._ask = decider(policy, decision)
        self._baseline = decider(baseline, decision)
        self._check = CHECKS[decision]

    @property
    def prepares(self) -> bool:
        """Of a fetch policy: it acts on advisories, and is the one that decides."""
        is_asked = not self._guard.is_suspended(self.unit, self.decision)
        return is_asked and bool(getattr(self.policy, "prepares", False))

    @property
    def described(self) -> str:
        return f"the policy {self.name} ({_place(self.decision, self.unit)})"

    def decide(self, view: Any, *more: Any) -> Any:
        """The policy's answer, or the baseline's."""
        assert self._ask is not None
        assert self._baseline is not None
        guard, now = self._guard, more[-1]
        if self.is_baseline:  # there is nothing else to ask
            return self._ask(view, *more)
        self.num_asked += 1
        if guard.is_suspended(self.unit, self.decision):
            self.overruled["suspended"] += 1
            return self._baseline(view, *more)
        if guard.overrules(self):
            self.overruled["stalled"] += 1
            return self._baseline(view, *more)
        try:
            with guard.timed(self):
                answer = self._check(view, self._ask(view, *more))
        except BaseException as error:
            self._failed(error)
            return self._baseline(view, *more)
        finally:
            guard.answered(self)
        if isinstance(answer, Selection):
            answer = replace(answer, owners=self._owners(answer.owners, view, *more))
        if isinstance(answer, Refuse):
            guard.count(self, "refused", f"refused a request: {answer.reason}")
        return self._in_time(answer, now)

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


class Overheard(Watched):
    """One whose answers are listened to."""

    def decide(self, view: Any, *more: Any) -> Any:
        answer = super().decide(view, *more)
        assert self._guard.listener is not None
        self._guard.listener.said(self.decision, self.unit, view, answer)
        return answer


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
