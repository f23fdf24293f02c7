"""What each person is doing and hearing: folds facts and outputs into session phases and playbacks.

Every response that is open, or still played, has a playback and a slot in columns, so that thousands can be
read at once. Of a session, the reply asked for last and the reply heard last are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from typing import Any, cast

from antiphon.core.facts import (
    Fact,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PersonFact,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.core.plans import AudioOut, ResponseEnded, ResponseOutput, TokensOut
from antiphon.core.playback import Playback
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.interaction.frontier import NOWHERE, Frontier

SECONDS_PER_BYTE = 1.0 / (4 * WIRE_SAMPLE_RATE_HZ)
"""Of an output's audio, which is float32."""


class PersonPhase(StrEnum):
    """What goes on in a session.

    listening  --SpeechStarted--> speaking --SpeechEnded--> listening
    listening  --ResponseRequested--> waiting --first audio (or text, of a written reply)--> replying
    replying   --ended, and played to its end or cut--> listening
    replying   --SpeechStarted--> interrupting --SpeechEnded--> replying, or what came of it
    """

    LISTENING = "listening"
    """Nothing is said or wanted: the person may begin."""
    SPEAKING = "speaking"
    WAITING = "waiting"
    """A reply was asked for and nothing of it is to be heard yet."""
    REPLYING = "replying"
    """A reply is audible, or still being made."""
    INTERRUPTING = "interrupting"
    """The person speaks while a reply is audible."""


class MonitoredReply(Playback):
    """The playback of a response that is open, still played, or the one its session heard last; the monitor
    alone writes to it.

    It is one object with what else is known of the response: with thousands of them in no order, each object
    on the way of a read costs as much as the rest of it.
    """

    __slots__ = (
        "asked_at",
        "awaits_text",
        "due_at",
        "held",
        "is_open",
        "is_spoken",
        "item",
        "name",
        "slot",
        "ttfp_s",
    )

    def __init__(self, asked: ResponseRequested, is_spoken: bool, slot: int, now: float) -> None:
        super().__init__()
        self.name, self.item = asked.response, asked.item_id
        self.asked_at = now
        self.is_spoken = is_spoken
        self.is_open = True
        self.awaits_text = not is_spoken
        """Its person reads it, and nothing of it has left yet."""
        self.held: list[ResponseOutput] | None = None
        """What was put out and is kept from the client; None: all goes there at once."""
        self.due_at = inf
        """When it is next looked at whether its playback has ended, once it is over."""
        self.slot = slot
        self.ttfp_s: float | None = None


@dataclass(slots=True, eq=False)
class _Session:
    """What is rare and not a number.

    asked    the reply that was asked for and has nothing to show yet
    heard    the reply of which something was heard (or read) last
    replies  those with a slot
    """

    is_speaking: bool = False
    asked: MonitoredReply | None = None
    heard: MonitoredReply | None = None
    replies: dict[str, MonitoredReply] = field(default_factory=dict[str, MonitoredReply])

    def find(self, response: str) -> MonitoredReply | None:
        """Also the reply heard last, when it has no slot any more."""
        heard = self.heard if self.heard is not None and self.heard.name == response else None
        return self.replies.get(response, heard)


class Monitor:
    """Owner of phases and playbacks. Times are seconds of one clock; facts come in order.

    Reads of a session that is not open give what is true of nobody: listening, no buffer, nothing played.
    `speaks`: the model has a voice, so that a reply may begin with audio.
    """

    def __init__(self, frontier: Frontier, speaks: bool = True) -> None:
        """frontier: what is played is told there, response by response; this monitor gives out its slots."""
        self._speaks = speaks
        self._sessions: dict[str, _Session] = {}
        self._frontier = frontier
        self._ending: list[tuple[float, int, _Session, MonitoredReply]] = []
        """A heap of replies that are over and still played, by `due_at`."""
        self._num_pushed = 0
        self._folds: dict[type[Fact], Callable[[_Session, Any, float], None]] = {
            SpeechStarted: self._speech_started,
            SpeechEnded: self._speech_ended,
            PlaybackReported: self._playback_reported,
            ResponseRequested: self._requested,
            ResponseCancelled: self._cancelled,
            OutputHeld: self._output_held,
            OutputReleased: self._released,
            ItemCut: self._cut,
        }

    # -- folding -------------------------------------------------------------------------------------

    def observe(self, fact: Fact, now: float) -> None:
        """Fold one fact in. What is not about people is passed over, and so are sessions not open."""
        self._let_go(now)
        fold = self._folds.get(type(fact))
        if fold is not None:
            session = self._sessions.get(cast(PersonFact, fact).session)
            if session is not None:
                fold(session, fact, now)
        elif isinstance(fact, SessionOpened):
            self._sessions.setdefault(fact.session, _Session())
        elif isinstance(fact, SessionClosed):
            self._close(fact.session, now)

    def hear(self, outputs: Iterable[ResponseOutput], now: float) -> None:
        """Fold outputs in: they leave for their clients at `now`, unless they are held."""
        self._let_go(now)
        sessions = self._sessions
        for output in outputs:
            session = sessions.get(output.session)
            reply = None if session is None else session.replies.get(output.response)
            if session is None or reply is None:
                continue
            if reply.held is not None:
                reply.held.append(output)
            elif reply.awaits_text or type(output) is not TokensOut:
                self._leaves(session, reply, output, now)

    def _leaves(self, session: _Session, reply: MonitoredReply, output: ResponseOutput, now: float) -> None:
        match output:
            case TokensOut():
                if reply.awaits_text:
                    self._frontier.begin(reply.slot)
                    reply.awaits_text = False
                    if reply is session.asked:
                        self._begin(session, reply)
            case AudioOut():
                self._audio(session, reply, output, now)
            case ResponseEnded():
                self._ended(session, reply, output.status == "cancelled", now)

    # -- reading sessions ----------------------------------------------------------------------------

    @property
    def sessions(self) -> KeysView[str]:
        """Those that are open."""
        return self._sessions.keys()

    def phase(self, session: str, now: float) -> PersonPhase:
        known = self._sessions.get(session)
        if known is None:
            return PersonPhase.LISTENING
        heard = known.heard
        replies = heard is not None and (heard.is_open or heard.is_audible(now))
        if known.is_speaking:
            return PersonPhase.INTERRUPTING if replies else PersonPhase.SPEAKING
        if replies:
            return PersonPhase.REPLYING
        return PersonPhase.LISTENING if known.asked is None else PersonPhase.WAITING

    def buffer_s(self, session: str, now: float) -> float | None:
        """Seconds of audio that the client has and has not played; None while nothing was heard at all."""
        heard = self.heard_reply(session)
        return None if heard is None or heard.first_at is None else heard.lead_s(now)

    def waited_s(self, session: str, now: float) -> float | None:
        """How long somebody has waited for the first of a reply; None if nobody does."""
        known = self._sessions.get(session)
        return None if known is None or known.asked is None else now - known.asked.asked_at

    def heard(self, session: str) -> str | None:
        """The response that was heard (or read) last."""
        heard = self.heard_reply(session)
        return None if heard is None else heard.name

    def heard_reply(self, session: str) -> MonitoredReply | None:
        """The response that was heard (or read) last, with all that is known of it."""
        known = self._sessions.get(session)
        return None if known is None else known.heard

    # -- reading responses ---------------------------------------------------------------------------

    def slot(self, session: str, response: str) -> int | None:
        """Where to read a response: it keeps its slot while it is open or still played. None: it is not."""
        reply = self._reply(session, response)
        return None if reply is None else reply.slot

    def is_held(self, session: str, response: str) -> bool:
        """Is what the response puts out kept from the client?"""
        reply = self._reply(session, response)
        return reply is not None and reply.held is not None

    def _reply(self, session: str, response: str) -> MonitoredReply | None:
        """One that has a slot."""
        known = self._sessions.get(session)
        return None if known is None else known.replies.get(response)

    # -- people --------------------------------------------------------------------------------------

    def _close(self, name: str, now: float) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            for reply in list(session.replies.values()):
                reply.is_open = False
                reply.stop(now)
                self._free(session, reply)

    def _speech_started(self, session: _Session, fact: SpeechStarted, now: float) -> None:
        session.is_speaking = True

    def _speech_ended(self, session: _Session, fact: SpeechEnded, now: float) -> None:
        session.is_speaking = False

    def _playback_reported(self, session: _Session, fact: PlaybackReported, now: float) -> None:
        reply = session.find(fact.response)
        if reply is None:
            return
        if not reply.is_spoken:
            self._frontier.read_to(reply.slot, fact.played_s, now)
        elif reply.acked(fact.played_s, now):
            self._changed(session, reply, now)

    def _requested(self, session: _Session, fact: ResponseRequested, now: float) -> None:
        """Follow it, unless it runs beside the conversation's own reply."""
        if fact.response in session.replies:
            return
        is_spoken = fact.speech and self._speaks
        reply = MonitoredReply(fact, is_spoken, self._frontier.take(now, is_spoken, fact.rate), now)
        session.replies[reply.name] = reply
        is_busy = session.asked is not None or (session.heard is not None and session.heard.is_open)
        if fact.remember or not is_busy:
            session.asked = reply

    def _cancelled(self, session: _Session, fact: ResponseCancelled, now: float) -> None:
        """The client has stopped playing it. Its end, unless that was held, is still to come."""
        reply = session.replies.get(fact.response)
        if reply is None:
            return
        held, reply.held = reply.held or [], None
        reply.stop(now)
        if any(isinstance(output, ResponseEnded) for output in held):
            self._ended(session, reply, True, now)
        else:
            self._changed(session, reply, now)

    def _output_held(self, session: _Session, fact: OutputHeld, now: float) -> None:
        reply = session.replies.get(fact.response)
        if reply is not None and reply.held is None:
            reply.held = []

    def _released(self, session: _Session, fact: OutputReleased, now: float) -> None:
        """It leaves for the client now."""
        reply = session.replies.get(fact.response)
        if reply is not None:
            held, reply.held = reply.held or [], None
            for output in held:
                self._leaves(session, reply, output, now)

    def _cut(self, session: _Session, fact: ItemCut, now: float) -> None:
        """The client says how much of a reply was heard: it has stopped playing it."""
        for reply in list(session.replies.values()):
            if reply.item == fact.item_id:
                reply.stop(now)
                self._frontier.stop(reply.slot)
                self._changed(session, reply, now)

    # -- replies -------------------------------------------------------------------------------------

    def _audio(self, session: _Session, reply: MonitoredReply, output: AudioOut, now: float) -> None:
        if reply is session.asked:
            self._begin(session, reply)
        if reply.first_at is None:
            reply.ttfp_s = now - reply.asked_at
            self._frontier.begin(reply.slot)
        if reply.add(len(output.audio) * SECONDS_PER_BYTE, now) > 0.0:
            self._frontier.fall_silent(reply.slot)
        self._changed(session, reply, now)

    def _begin(self, session: _Session, reply: MonitoredReply) -> None:
        """The first of the reply that was asked for: from here on it is the one that is heard."""
        session.heard, session.asked = reply, None

    def _ended(self, session: _Session, reply: MonitoredReply, is_cancelled: bool, now: float) -> None:
        """What was sent of a completed reply is still played; a cancelled one is silent at once."""
        reply.is_open = False
        if reply is session.asked:
            session.asked = None
        if is_cancelled:
            reply.stop(now)
        self._changed(session, reply, now)

    # -- slots ---------------------------------------------------------------------------------------

    def _changed(self, session: _Session, reply: MonitoredReply, now: float) -> None:
        """Keep the slot of a reply that is open or still played; free any other."""
        is_audible = reply.is_audible(now)
        if not (reply.is_open or is_audible):
            self._free(session, reply)
            return
        if reply.slot == NOWHERE:  # by the client's own word it plays longer than was thought
            reply.slot = self._frontier.take(reply.asked_at, reply.is_spoken)
            session.replies[reply.name] = reply
        self._frontier.play(reply.slot, reply.dry_at, reply.source)
        if not reply.is_open and reply.dry_at < reply.due_at:
            reply.due_at = reply.dry_at
            self._num_pushed += 1
            heappush(self._ending, (reply.due_at, self._num_pushed, session, reply))

    def _let_go(self, now: float) -> None:
        """Free the slots of replies that are over and were played to their end."""
        while self._ending and self._ending[0][0] <= now:
            _, _, session, reply = heappop(self._ending)
            reply.due_at = inf
            self._changed(session, reply, now)

    def _free(self, session: _Session, reply: MonitoredReply) -> None:
        if reply.slot != NOWHERE:
            del session.replies[reply.name]
            self._frontier.free(reply.slot)
            reply.slot = NOWHERE
