"""What stands between policies and the node: one that raises, returns nonsense or is slow costs its own
decisions, and nothing else.

    asked --a valid answer in time--> carried out
       ├---it raised, or the answer is nonsense--> counted; the baseline decides this once
       ├---its stage would stand still by it--> counted; the baseline decides who runs in this call
       └---too slow, MOST_SLOW times of the last WINDOW--> suspended: the baseline decides from then on

A suspension is a fact (`PolicySuspended`), because it depends on the clock: a record replays without one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.assembly.registry import decider
from antiphon.core.facts import PolicySuspended
from antiphon.core.snapshot import PolicyShown
from antiphon.policy.base import DeviceChoice, Hold, Refuse, StepChoice, StepView
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


class NonsenseError(Exception):
    """A policy's answer is none."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that a policy did wrong, for the log."""

    unit: str
    decision: str
    policy: str
    message: str

    def __str__(self) -> str:
        return f"policy {self.policy} ({_place(self.decision, self.unit)}): {self.message}"


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
        self.overrules = False
        """The baseline decides who runs."""
        self.asking: Watched | None = None
        """The policy that is being asked, for whoever wonders why a decision does not return."""

    def watched(self, decision: str, unit: str, policy: Any, baseline: Any) -> Watched:
        """The policy as the node asks it."""
        kind = Watched if self.listener is None else Overheard
        made = kind(self, decision, unit, policy, baseline)
        self._watched = [one for one in self._watched if (one.decision, one.unit) != (decision, unit)]
        self._watched.append(made)
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
            own: Any = getattr(one.policy, "events", None)
            if isinstance(own, dict):
                found = list(cast(dict[Any, Any], own).items())[:MAX_EVENTS]
                counts.update({(one.unit, one.name, str(event)): n for event, n in found if type(n) is int})
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
            said = f"{message} (the {times}th time)" if times > 2 else message
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

    def stalled(self, unit: str) -> bool:
        """Nothing runs there though something could, and nothing would ever change that: until `go_on` the
        baseline decides who runs. False where it did so already."""
        named = [one for one in self._watched if unit in one.unit.split("+") and one.decision in HOLDS_UP]
        at_fault = [one for one in named if not one.is_baseline]
        for one in at_fault:
            self.count(one, "stalled", "its stage would stand still, and the baseline decided")
        self.overrules |= bool(at_fault)
        return bool(at_fault)

    def go_on(self) -> None:
        """The policies decide again."""
        self.overrules = False

    def answered(self, watched: Watched) -> None:
        """It has decided: how long that took is told."""
        seconds, watched.asked_s = watched.asked_s, 0.0
        slow = seconds > LIMIT_S
        watched.slow.append(slow)
        if not slow:
            return
        self.count(watched, "slow")
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
        self.name = str(getattr(policy, "name", type(policy).__name__))
        self.is_baseline = type(policy) is type(baseline)
        self.slow: deque[bool] = deque(maxlen=WINDOW)
        self.asked_s = 0.0
        self._guard = guard
        self._ask = decider(policy, decision)
        self._baseline = decider(baseline, decision)
        self._check = CHECKS[decision]

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
        if guard.is_suspended(self.unit, self.decision):
            return self._baseline(view, *more)
        if guard.overrules and self.decision in HOLDS_UP:
            return self._baseline(view, *more)
        try:
            with guard.timed(self):
                answer = self._check(view, self._ask(view, *more))
        except Exception as error:
            self._failed(error)
            return self._baseline(view, *more)
        finally:
            guard.answered(self)
        if isinstance(answer, Selection):
            answer = replace(answer, owners=self._owners(answer.owners, view, *more))
        return self._in_time(answer, now)

    def _failed(self, error: Exception) -> None:
        is_nonsense = isinstance(error, NonsenseError)
        event, what = "nonsense" if is_nonsense else "raised", str(error)
        if not is_nonsense:
            what = f"{type(error).__name__}: {what}"
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
                if view.find(owner) is None:
                    waiting = frozenset(view.waiting()) if waiting is None else waiting
                    if owner not in waiting:
                        raise NonsenseError(f"owners: {owner!r} has no KV here")
                seen.add(owner)
                yield owner
        except Exception as error:
            self._failed(error)
        finally:
            self._guard.answered(self)
        assert self._baseline is not None
        yield from (owner for owner in self._baseline(view, *more).owners if owner not in seen)

    def _in_time(self, answer: Any, now: float) -> Any:
        """A wish to be asked again in the past is one to be asked very soon."""
        wake_at = getattr(answer, "wake_at", None)
        if wake_at is None or wake_at > now:
            return answer
        self._guard.count(self, "wake_in_past")
        return replace(answer, wake_at=now + LEAST_WAKE_S)


class Overheard(Watched):
    """One whose answers are listened to."""

    def decide(self, view: Any, *more: Any) -> Any:
        answer = super().decide(view, *more)
        assert self._guard.listener is not None
        self._guard.listener.said(self.decision, self.unit, view, answer)
        return answer


def check_step(view: StepView, choice: Any) -> StepChoice:
    """Raises NonsenseError for what no step can be made of."""
    _is_a(choice, StepChoice)
    ready = view.ready
    _check_indices("order", choice.order, len(ready))
    _check_indices("preempt", choice.preempt, view.num_rows)
    for name, like, low in (("counts", choice.order, 1), ("urgency", choice.order, None)):
        column = getattr(choice, name)
        if column is not None:
            _check_column(name, column, len(like))
            if low is not None and len(column) and int(column.min()) < low:
                raise NonsenseError(f"{name}: {int(column.min())} is below {low}")
    if choice.keeps is not None:
        _check_mask("keeps", choice.keeps, len(choice.preempt))
    _check_wake(choice.wake_at)
    is_idle = choice.wake_at is None and not len(choice.preempt) and not ready[choice.order].any()
    if is_idle and ready.any():
        raise NonsenseError("order: it has nothing that could run, though something could; say wake_at")
    return choice


def check_hold(view: StepView, hold: Any) -> Hold:
    _is_a(hold, Hold)
    if hold.held is not None:
        _check_mask("held", hold.held, len(view.ready))
    _check_wake(hold.wake_at)
    if hold.held is not None and hold.wake_at is None:
        ready = view.ready
        if ready.any() and not (ready & ~hold.held).any():
            raise NonsenseError("held: all that could run is, and wake_at does not say until when")
    return hold


def check_admission(view: StepView, answer: Any) -> Refuse | None:
    if answer is not None:
        _is_a(answer, Refuse)
        if not 0 <= answer.retry_s < float("inf"):
            raise NonsenseError(f"retry_s: {answer.retry_s} is no time to wait")
    return answer


def check_device(heads: Any, choice: Any) -> DeviceChoice:
    _is_a(choice, DeviceChoice)
    _check_index("index", choice.index, len(heads))
    _check_wake(choice.wake_at)
    most: Any = choice.most
    if most is not None and not isinstance(most, int | np.integer):
        raise NonsenseError(f"most: {most!r} is no urgency")
    if most is not None and choice.wake_at is None and most < heads[choice.index].urgency:
        raise NonsenseError(f"most: nothing of that stage is as urgent as {most}; say wake_at")
    return choice


def check_replica(view: Any, index: Any) -> int:
    _check_index("the replica", index, len(view.loads))
    return int(index)


def check_selection(view: KvView, selection: Any) -> Selection:
    """Owners are taken one by one, as far as they are needed, so that the check must not ask for them all."""
    _is_a(selection, Selection)
    count = selection.count
    if not isinstance(count, int | np.integer) or count < 0:
        raise NonsenseError(f"count: {count!r} is no number of blocks")
    if not isinstance(selection.owners, Iterable):
        raise NonsenseError(f"owners: {type(selection.owners).__name__} is no sequence of names")
    reach: Any = selection.reach
    if reach is not None and not all(isinstance(end, int | np.integer) for end in reach.values()):
        raise NonsenseError("reach: it must map owners to numbers of blocks")
    if selection.groups is not None and (unknown := set(selection.groups) - set(view.groups)):
        raise NonsenseError(f"groups: {sorted(unknown)} are none; there are {', '.join(view.groups)}")
    _check_wake(selection.wake_at)
    return selection


CHECKS: dict[str, Callable[[Any, Any], Any]] = {
    "step": check_step,
    "pace": check_hold,
    "admission": check_admission,
    "device": check_device,
    "replica": check_replica,
    "evict": check_selection,
    "write": check_selection,
    "fetch": check_selection,
}


def _place(decision: str, unit: str) -> str:
    return f"{decision} of {unit}" if unit else decision


def _is_a(answer: Any, kind: type) -> None:
    if not isinstance(answer, kind):
        raise NonsenseError(f"{type(answer).__name__} is no {kind.__name__}")


def _check_index(name: str, index: Any, size: int) -> None:
    if not isinstance(index, int | np.integer) or not 0 <= index < size:
        raise NonsenseError(f"{name}: {index!r} is none of {size}")


def _array(value: Any) -> NDArray[Any]:
    """The column that it is, or one of no kind."""
    return cast(NDArray[Any], value) if isinstance(value, np.ndarray) else np.array(None)


def _check_column(name: str, value: Any, size: int | None) -> None:
    column = _array(value)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise NonsenseError(f"{name}: it must be a column of integers")
    if size is not None and len(column) != size:
        raise NonsenseError(f"{name}: {len(column)} entries for {size} candidates")


def _check_indices(name: str, value: Any, size: int) -> None:
    _check_column(name, value, None)
    column = _array(value)
    if not len(column):
        return
    if int(column.min()) < 0 or int(column.max()) >= size:
        raise NonsenseError(f"{name}: candidate {int(column.max())} is none of {size}")
    if np.bincount(column).max() > 1:
        raise NonsenseError(f"{name}: a candidate stands there twice")


def _check_mask(name: str, value: Any, size: int) -> None:
    mask = _array(value)
    if mask.dtype != np.bool_ or mask.shape != (size,):
        raise NonsenseError(f"{name}: it must be a mask over {size}")


def _check_wake(wake_at: Any) -> None:
    if wake_at is not None and (not isinstance(wake_at, int | float) or not isfinite(wake_at)):
        raise NonsenseError(f"wake_at: {wake_at!r} is no time")
