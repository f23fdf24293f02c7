"""When each session will need its KV again (LiveServe §5.1): from what is still to be heard of its reply, and
from how long people take to answer.

    next use = end of playback + the person's usual time from there to the end of their next turn     (eq. 4)

A reply's length is what its writer has written, at the pace at which words are spoken; not what was sent,
which under pacing is about the same for everybody. Once somebody takes longer than usual, every second that
passes makes it likelier that they take longer still: an overdue session is due as far ahead as it is overdue.
Both kinds are read from the two ends of one sorted list, since what is needed last lies farthest from now.
Each tier has a list of its own, so that sessions that have nothing there cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any, NamedTuple, cast
from weakref import WeakSet

from antiphon.core.facts import (
    Fact,
    ItemCut,
    OutputReleased,
    PersonFact,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.core.plans import AudioOut, ResponseEnded, ResponseOutput
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor

REPLY_S = 4.0
"""From the end of a reply to the end of the next turn, before anybody has shown otherwise."""
SPEECH_S = 3.0
"""How long a turn is spoken, before anybody has shown otherwise."""
TOKEN_S = 0.25
"""How long a token of a reply sounds, before any has sounded."""
OWN_WEIGHT = 0.3
"""Of the last observation in a session's moving average."""
COMMON_WEIGHT = 0.05
"""Of the last observation in what is usual among all."""
STALE_S, MOST_STALE_S, STALE_SHARE = 0.25, 1.0, 0.1
"""An estimate that is off by less, or by less than this share of what is left until then (of which so much
counts at most), stays as it is."""
WARM_S = 2.0
"""How long a session counts as about to speak after it was silent again, and beyond when it was announced."""
LONGEST_S = 60.0
"""How long a session counts as about to speak since its person began: who is not done by then may never be,
such as a client that sent some audio and never said that this was all."""
NEAR_S = 10.0
"""How long before it is due an announced turn counts as about to come: time enough to bring its KV."""
HEARD = AudioOut, ResponseEnded
"""Outputs that move the end of what is heard."""
LEAST_S = 0.2
"""What is left of a turn at least: the pause that ends it, and its encoding."""


class Average:
    """A moving average, with its workload's as the prior."""

    __slots__ = ("_common", "_own")

    def __init__(self, common: Common) -> None:
        self._common = common
        self._own = nan

    def add(self, value: float) -> None:
        self._common.add(value)
        before = self._common.value if isnan(self._own) else self._own
        self._own = before + OWN_WEIGHT * (value - before)

    @property
    def value(self) -> float:
        return self._common.value if isnan(self._own) else self._own


class Common:
    """What is usual among all."""

    def __init__(self, prior: float) -> None:
        self.value = prior

    def add(self, value: float) -> None:
        self.value += COMMON_WEIGHT * (value - self.value)


class Order:
    """Sessions of one tier by when they are due. One that has left the tier stays until somebody looks."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []

    def put(self, name: str, due_at: float) -> None:
        self.discard(name)
        self._due[name] = due_at
        insort(self._order, (due_at, name))

    def discard(self, name: str) -> None:
        due_at = self._due.pop(name, None)
        if due_at is not None:
            del self._order[bisect_left(self._order, (due_at, name))]

    def farthest(self, now: float, here: Container[str]) -> Iterator[str]:
        """Those that are `here`, the one farthest from now first; the others are forgotten. The order must
        not change meanwhile."""
        order = self._order
        first, last = 0, len(order) - 1
        while first <= last:
            is_overdue = now - order[first][0] > order[last][0] - now
            name = order[first if is_overdue else last][1]
            if name in here:
                first += is_overdue
                last -= not is_overdue
                yield name
            else:
                self.discard(name)
                last -= 1

    def check_integrity(self, due: dict[str, float]) -> None:
        """Raises AssertionError unless each is where it is due."""
        assert self._order == sorted((at, name) for name, at in self._due.items()), "out of order"
        assert self._due.items() <= due.items(), "a session is due at another time"


@dataclass(slots=True)
class _TimedSession:
    """How long its person takes to answer, and to say a turn; and what is known of both now.

    due_at         when its KV is needed again; nan while nothing is known, or it is in use
    heard_to       when its last reply was played to its end; None: there is none, or it was cut
    asked          the reply that was asked for last, until something of it is heard. Transcriptions and other
                   asides are none
    awaits         the same, unless a turn was announced since: so long the session is expected for it
    spoke_at       when its person began to speak, last
    expected_at    when its next turn is complete, by its person's voice or an advisory
    since, until   its next turn is expected at any moment in between
    unsent_s       audio of the reply heard last that is still to come
    ended_unheard  the response whose end is held back
    """

    reply: Average
    turn: Average
    due_at: float = nan
    heard_to: float | None = None
    is_speaking: bool = False
    asked: str | None = None
    awaits: str | None = None
    spoke_at: float = nan
    expected_at: float = nan
    since: float = inf
    until: float = -inf
    unsent_s: float = 0.0
    ended_unheard: str | None = None

    @property
    def is_only_announced(self) -> bool:
        """Of one that is expected: neither did its person speak, nor do they wait for a reply."""
        return isnan(self.spoke_at) and self.asked is None


class Expected(NamedTuple):
    """Sessions whose next turn is expected; this holds from `since` on and before `until`, while nothing is
    folded in. `next_at` is when another one's will be."""

    since: float
    until: float
    names: dict[str, None]
    next_at: float


class NextUseTimes:
    """Owner of the averages and of the order. Facts and outputs come in order, after the monitor has them."""

    def __init__(self, monitor: Monitor, frontier: Frontier) -> None:
        self._monitor, self._frontier = monitor, frontier
        self._reply, self._turn, self._token_s = Common(REPLY_S), Common(SPEECH_S), Common(TOKEN_S)
        self._sessions: dict[str, _TimedSession] = {}
        self._orders = WeakSet[Order]()
        self.num_changes = 0
        """Of when anybody's KV is due, and of whose next turn is expected, but for time."""
        self._coming: dict[str, None] = {}
        """Sessions whose next turn is expected, or will be: the one that was told of first is first."""
        self._expected: Expected | None = None
        """Until something is folded in that may change it: every unit asks for it."""
        self._folds: dict[type, Callable[[str, _TimedSession, Any, float], None]] = {
            SpeechStarted: self._speech_started,
            SpeechEnded: self._speech_ended,
            TurnAdvised: self._advised,
            ResponseRequested: self._requested,
            ResponseCancelled: self._cancelled,
            OutputReleased: self._released,
            ItemCut: self._cut,
            PlaybackReported: self._played,
        }

    # -- folding -------------------------------------------------------------------------------------

    def observe(self, fact: Fact, now: float) -> None:
        fold = self._folds.get(type(fact))
        if fold is not None:
            name = cast(PersonFact, fact).session
            if name in self._monitor.sessions:
                self.num_changes += not isinstance(fact, PlaybackReported)
                fold(name, self._known(name), fact, now)
                self._expected = None
        elif isinstance(fact, SessionClosed):
            self._expected = None
            self.num_changes += 1
            self._close(fact.session)

    def hear(self, outputs: Iterable[ResponseOutput], now: float) -> None:
        """Outputs left for their clients."""
        for output in outputs:
            if type(output) not in HEARD or output.session not in self._sessions:
                continue
            name, response, session = output.session, output.response, self._sessions[output.session]
            is_over = isinstance(output, ResponseEnded)
            if self._monitor.is_held(name, response):
                session.ended_unheard = response if is_over else session.ended_unheard
                continue
            is_cut = isinstance(output, ResponseEnded) and output.status == "cancelled"
            self._heard(name, session, response, is_over, is_cut, now)

    # -- reading -------------------------------------------------------------------------------------

    def due_s(self, session: str, now: float) -> float:
        """When its KV will be needed again, in seconds of the clock; nan: unknown."""
        known = self._sessions.get(session)
        if known is None:
            return nan
        if self.is_expected(session, now):
            return max(known.expected_at, now + LEAST_S)
        return now + abs(known.due_at - now)

    def overdue_s(self, session: str, now: float) -> float:
        """How long ago its KV was due, unless its next turn is coming; 0: it is not overdue."""
        known = self._sessions.get(session)
        if known is None or isnan(known.due_at) or self.is_expected(session, now):
            return 0.0
        return max(now - known.due_at, 0.0)

    def order(self) -> Order:
        """A new one, which is kept up as long as somebody has it: of what is in a tier, as `rests` says."""
        made = Order()
        self._orders.add(made)
        return made

    def rests(self, session: str, order: Order) -> None:
        """The session has KV in the order's tier."""
        known = self._sessions.get(session)
        if known is not None and not isnan(known.due_at):
            order.put(session, known.due_at)

    def farthest(self, order: Order, here: Container[str], now: float) -> Iterator[str]:
        """Sessions that are `here`, by when they will need their KV again, the last first; not those that are
        `expected`."""
        for name in order.farthest(now, here):
            if not self.is_expected(name, now):
                yield name

    def is_expected(self, session: str, now: float) -> bool:
        """Is its next turn expected at any moment?"""
        return session in self._coming and session in self._expected_at(now).names

    def expected(self, now: float) -> Iterator[str]:
        """Sessions whose next turn is coming: those whose person speaks or waits for a reply, then those of
        which it was only announced, so that a client that advises takes no place from people who speak; each
        the first first."""
        return iter(self._expected_at(now).names)

    def expects_at(self, now: float) -> float:
        """When the next session will count as expected that does not yet; inf: none was announced."""
        return self._expected_at(now).next_at

    def _expected_at(self, now: float) -> Expected:
        """Forgets sessions that are expected no more. That shows nowhere else: asking changes no answer."""
        known = self._expected
        if known is None or not known.since <= now < known.until:
            coming = {name: self._sessions[name] for name in self._coming}
            self._coming = {name: None for name, one in coming.items() if one.until >= now}
            here = [coming[name] for name in self._coming]
            next_at = min((one.since for one in here if one.since > now), default=inf)
            names = [name for name in self._coming if coming[name].since <= now]
            names.sort(key=lambda name: coming[name].is_only_announced)
            known = self._expected = Expected(
                now,
                min((next_at, *(one.until for one in here))),
                dict.fromkeys(names),
                next_at,
            )
        return known

    # -- people --------------------------------------------------------------------------------------

    def _known(self, name: str) -> _TimedSession:
        if name not in self._sessions:
            self._sessions[name] = _TimedSession(Average(self._reply), Average(self._turn))
        return self._sessions[name]

    def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._coming.pop(name, None)
            self._unlist(name, session)

    def _speech_started(self, name: str, session: _TimedSession, fact: SpeechStarted, now: float) -> None:
        session.is_speaking, session.spoke_at = True, now
        session.expected_at = now + session.turn.value
        self._announced(name, session, now)
        self._expect(name, session, now, now + LONGEST_S, now)
        session.awaits = None

    def _speech_ended(self, name: str, session: _TimedSession, fact: SpeechEnded, now: float) -> None:
        was_speaking, session.is_speaking = session.is_speaking, False
        session.expected_at = now
        if self.is_expected(name, now):
            session.until = min(now + WARM_S, session.since + LONGEST_S)
        elif was_speaking:  # for longer than it was waited for
            self._expect(name, session, now, now + WARM_S, now)
        if session.heard_to is not None and not isnan(session.due_at):
            self._answered(name, session, session.heard_to, now)

    def _advised(self, name: str, session: _TimedSession, fact: TurnAdvised, now: float) -> None:
        if not fact.is_likely:
            return
        expected_at = now + (session.turn.value if isnan(fact.expected_s) else fact.expected_s)
        is_near = expected_at <= now + NEAR_S
        if self.is_expected(name, now) and (session.is_speaking or not is_near):
            return  # what is known already says more
        if not session.is_speaking and not self.is_expected(name, now):
            session.spoke_at = nan  # that voice was no turn
        session.expected_at = expected_at
        self._announced(name, session, now)
        self._expect(name, session, max(now, expected_at - NEAR_S), expected_at + WARM_S, now)
        session.awaits = None

    def _announced(self, name: str, session: _TimedSession, now: float) -> None:
        """Its KV is due with the turn that is coming, unless a reply is asked for that needs it now. So it is
        if the session never had a reply: what was read ahead of its first turn must be able to leave."""
        if not isnan(session.due_at) or self._monitor.waited_s(name, now) is None:
            self._list(name, session, session.expected_at, now)

    def _expect(self, name: str, session: _TimedSession, since: float, until: float, now: float) -> None:
        """An expectation that has begun goes on, `LONGEST_S` in all: renewing it for ever without a turn
        keeps no place before others. One that has not begun is replaced."""
        if self.is_expected(name, now):
            session.until = min(max(until, session.until), session.since + LONGEST_S)
        else:
            session.since, session.until = since, until
        self._coming.setdefault(name)

    def _requested(self, name: str, session: _TimedSession, fact: ResponseRequested, now: float) -> None:
        """The turn is complete: it tells how long its person took, unless they broke in. Its KV is needed
        from now until something of the reply is heard."""
        if not fact.remember:
            return
        if not isnan(session.spoke_at) and self.is_expected(name, now):
            session.turn.add(min(now - session.spoke_at, LONGEST_S))
        heard_to, spoke_at = session.heard_to, session.spoke_at
        if heard_to is not None and now >= heard_to and (isnan(spoke_at) or spoke_at >= heard_to):
            session.reply.add(min(now - heard_to, LONGEST_S))
        session.spoke_at, session.heard_to, session.ended_unheard = nan, None, None
        session.is_speaking, session.expected_at = False, now
        self._unlist(name, session)
        self._coming.pop(name, None)
        self._expect(name, session, now, now + LONGEST_S, now)
        session.asked = session.awaits = fact.response

    def _cancelled(self, name: str, session: _TimedSession, fact: ResponseCancelled, now: float) -> None:
        if session.ended_unheard == fact.response:
            self._heard(name, session, fact.response, True, True, now)
        elif fact.response == self._monitor.heard(name):
            self._cut_short(name, session, now)

    def _cut(self, name: str, session: _TimedSession, fact: ItemCut, now: float) -> None:
        heard = self._monitor.heard_reply(name)
        if heard is not None and heard.item == fact.item_id:
            self._cut_short(name, session, now)

    def _cut_short(self, name: str, session: _TimedSession, now: float) -> None:
        """Its person hears no more of the reply."""
        if not isnan(session.due_at):
            session.heard_to = None
            self._answered(name, session, now, now)

    def _played(self, name: str, session: _TimedSession, fact: PlaybackReported, now: float) -> None:
        """The client has another buffer than was thought; what was to come after it still is. Where nothing
        is, it says no more than when it was heard to the end."""
        if session.heard_to is None or fact.response != self._monitor.heard(name):
            return
        ahead_s = (self._monitor.buffer_s(name, now) or 0.0) + session.unsent_s
        if ahead_s or session.heard_to > now:
            session.heard_to = now + ahead_s
            self._answered(name, session, session.heard_to, now)

    # -- replies -------------------------------------------------------------------------------------

    def _released(self, name: str, session: _TimedSession, fact: OutputReleased, now: float) -> None:
        """What was held back has left for its client."""
        is_over = session.ended_unheard == fact.response
        if is_over or self._monitor.heard(name) == fact.response:
            self._heard(name, session, fact.response, is_over, False, now)

    def _heard(
        self, name: str, session: _TimedSession, response: str, is_over: bool, is_cut: bool, now: float
    ) -> None:
        """More of a reply is there, or it is over."""
        if session.asked == response:
            self.num_changes += 1
            session.asked = self._expected = None
            if session.awaits == response:
                session.awaits = None
                self._coming.pop(name, None)
        heard = self._monitor.heard_reply(name)
        is_heard = heard is not None and heard.name == response
        if not is_heard and not (is_over and isnan(session.due_at)):
            return
        session.ended_unheard = None
        if heard is None or not is_heard or is_cut:
            session.heard_to = None
            self._answered(name, session, now, now)
            return
        if heard.is_stopped:  # it was cut before, and is still made
            return
        sent_s, num_written = heard.audio_s, self._frontier.made(0, heard.slot)
        session.unsent_s = 0.0 if is_over else max(num_written * self._token_s.value - sent_s, 0.0)
        if is_over and sent_s and num_written:
            self._token_s.add(sent_s / num_written)
        session.heard_to = now + heard.lead_s(now) + session.unsent_s
        self._answered(name, session, session.heard_to, now)

    def _answered(self, name: str, session: _TimedSession, heard_to: float, now: float) -> None:
        """The next turn is due as long after the reply as is usual, unless it is being spoken or announced.
        What was spoken is a turn once a reply is asked for; until then it may have been a cough."""
        is_coming = name in self._coming and session.until >= now
        is_coming &= session.is_speaking or session.expected_at > now
        due_at = session.expected_at if is_coming else heard_to + session.reply.value
        self._list(name, session, due_at, now)

    # -- the order -----------------------------------------------------------------------------------

    def _list(self, name: str, session: _TimedSession, due_at: float, now: float) -> None:
        if abs(session.due_at - due_at) < max(STALE_S, min(STALE_SHARE * (due_at - now), MOST_STALE_S)):
            return
        session.due_at = due_at
        self.num_changes += 1
        for order in self._orders:
            order.put(name, due_at)

    def _unlist(self, name: str, session: _TimedSession) -> None:
        if isnan(session.due_at):
            return
        for order in self._orders:
            order.discard(name)
        session.due_at = nan

    def check_integrity(self) -> None:
        """Raises AssertionError unless the orders are those of the sessions."""
        due = {name: one.due_at for name, one in self._sessions.items() if not isnan(one.due_at)}
        for order in self._orders:
            order.check_integrity(due)
        assert self._coming.keys() <= self._sessions.keys(), "a session is expected that is not there"
