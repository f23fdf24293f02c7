"""A policy as the node asks it: its answer is checked, timed and counted, and where it is none the baseline
decides. `guard` says what becomes of which answer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from antiphon.assembly.answers import CHECKS, NonsenseError, check_told, plain_text, said
from antiphon.assembly.observed import Effects, ObservedHead, effects
from antiphon.assembly.registry import decider, raised_at, source_of, teller
from antiphon.core.facts import PolicySuspended
from antiphon.policy.base import Head, Refuse, StepChoice, Told
from antiphon.policy.memory import NOTHING, KvView, Selection

LIMIT_S = 0.05
"""A decision that takes longer is slow."""
MOST_SLOW, WINDOW = 10, 100
LEAST_WAKE_S = 0.001
"""A policy that wishes to be asked again sooner is asked then."""
MAX_INCIDENTS = 100
"""Kept until the driver has told of them; more are only counted."""

COMPARED = "agreed", "differed"
"""Events by which an observed policy's decisions are counted, behind the decision's name."""
HOLDS_UP = "step", "pace", "device"
"""Decisions by which a stage can stand still."""

EventKey = tuple[str, str, str]
"""(unit, policy, event)"""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that a policy did wrong, for the log."""

    unit: str
    decision: str
    policy: str
    message: str

    def __str__(self) -> str:
        return f"policy {self.policy} ({place_of(self.decision, self.unit)}): {self.message}"


class AnswerListener(Protocol):
    """Hears every answer that is carried out, the baseline's in a policy's place included, and where one that
    is observed differs from it."""

    def said(self, asked: Watched, view: Any, answer: Any, now: float) -> None: ...

    def differed(self, unit: str, would: Effects, did: Effects, reason: str) -> None:
        """Effects that only the policy would have had, with its reason, and those that only the baseline
        had."""
        ...


class Oversight:
    """What the policies of a node share while they are asked. Owner of what they did, counted, and of which
    are suspended."""

    def __init__(
        self, stopwatch: Callable[[], float] | None = None, listener: AnswerListener | None = None
    ) -> None:
        """stopwatch: seconds of any clock; None: nothing is timed."""
        self.listener = listener
        self.counts: Counter[EventKey] = Counter()
        self.inner_s = 0.0
        """Of what is being timed, the seconds of others that were asked by it."""
        self.urgency: dict[str, int | None] = {}
        """By unit whose step policy is observed: the most urgent class in the policy's last answer."""
        self.asking: Watched | None = None
        """The policy that is being asked: /health names it if its decision does not return."""
        self._stopwatch = stopwatch
        self._incidents: list[Incident] = []
        self._suspended: set[tuple[str, str]] = set()
        self._overdue: list[PolicySuspended] = []
        self._overruled: set[str] = set()
        """Units where the baseline decides what runs."""

    def suspend(self, fact: PolicySuspended) -> None:
        """From now on the baseline decides."""
        self._suspended.add((fact.unit, fact.decision))

    def is_suspended(self, unit: str, decision: str) -> bool:
        return (unit, decision) in self._suspended

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

    def overrules(self, watched: Watched) -> bool:
        return watched.decision in HOLDS_UP and watched.unit in self._overruled

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
    """A span of time in which a policy is asked. Each owner of KV that it names is a span of its own."""

    __slots__ = ("_before", "_began", "_guard", "_outer_s", "_watched")

    def __init__(self, guard: Oversight, watched: Watched) -> None:
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
        self, guard: Oversight, decision: str, unit: str, policy: Any, baseline: Any, is_observed: bool
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
        self._ask: Callable[..., Any] = cast(Any, decider(policy, decision))
        self._tell = teller(policy, decision)
        self._has_decided = self.is_baseline
        """The last answer is its own, and not the baseline's in its place."""
        self._words_s = 0.0
        """How long it took over its words about its last decision."""
        self._num_slow_words = 0
        self._baseline: Callable[..., Any] = cast(Any, decider(baseline, decision))
        self._check = CHECKS[decision]

    @property
    def prepares(self) -> bool:
        """Of a fetch policy: it acts on advisories, and is the one that decides. One that cannot say does
        not."""
        if self.is_observed or self._guard.is_suspended(self.unit, self.decision):
            return False
        try:
            return bool(getattr(self.policy, "prepares", False))
        except Exception as error:
            self._guard.count(self, "raised", f"its `prepares` cannot be read: {said(error)}")
            return False

    @property
    def described(self) -> str:
        return f"the policy {self.name} ({place_of(self.decision, self.unit)})"

    def decide(self, view: Any, *more: Any) -> Any:
        """The policy's answer, or the baseline's."""
        if self.is_baseline:  # there is nothing else to ask
            self._words_s = 0.0
            answer = self._ask(view, *more)
        else:
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
            guard.count(self, "untold", f"what it tells of its decision is unusable: {said(error)}")
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
        guard, now = self._guard, more[-1]
        self._has_decided, self._words_s = False, 0.0
        if self.decision == "step":
            guard.urgency.pop(self.unit, None)
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
                if isinstance(answer, Selection) and answer is not NOTHING:
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
        """The view that an observed policy gets: a copy, because a column keeps what it was when it was first
        read. The heads of a device have the urgency of their observed step policies."""
        if self.decision != "device":
            return copy(view)
        return tuple(ObservedHead(head, self._guard.urgency) for head in cast(Sequence[Head], view))

    def _compare(self, answer: Any, would: Effects, view: Any, *more: Any) -> None:
        """Counts whether the policy agrees with the baseline. A question is not counted if both do nothing,
        or if it has one possible answer."""
        guard, decision = self._guard, self.decision
        if isinstance(answer, StepChoice):
            guard.urgency[self.unit] = answer.most_urgent
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
        event = "nonsense" if is_nonsense else "raised"
        what = plain_text(str(error)) if is_nonsense else said(error) + raised_at(error, self._file)
        self.overruled[event] += 1
        self._guard.count(self, event, f"{event}, and the baseline decided: {what}")

    def _owners(self, owners: Iterable[str], view: KvView, *more: Any) -> Iterator[str]:
        """Owners, each checked as it is taken. The baseline's follow the first that is nonsense."""
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
                    raise NonsenseError(f"owners: {owner!r} is named twice")
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
        yield from (owner for owner in self._baseline(view, *more).owners if owner not in seen)

    def _in_time(self, answer: Any, now: float) -> Any:
        """The answer, with a `wake_at` that is not in the past, nor now."""
        wake_at = getattr(answer, "wake_at", None)
        if wake_at is None or wake_at >= now + LEAST_WAKE_S:
            return answer
        if wake_at < now:
            message = f"wake_at is {now - wake_at:.3g} s in the past: it is asked again very soon"
            self._guard.count(self, "wake_in_past", message)
        return replace(answer, wake_at=now + LEAST_WAKE_S)


def place_of(decision: str, unit: str) -> str:
    return f"{decision} of {unit}" if unit else decision
