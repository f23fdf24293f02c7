"""What each person is doing and hearing: folds facts and outputs into session phases and playback cursors.

Every session that is open has a slot in columns, so that a read is a few array look-ups and thousands of
sessions can be read at once. Of a session, the reply asked for last and the reply heard last are followed.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView, Sequence
from enum import StrEnum

import numpy as np

from antiphon.core.facts import (
    Fact,
    ItemCut,
    PlaybackReported,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.interaction.cursors import Cursors, Floats, Source

SECONDS_PER_BYTE = 1.0 / (4 * WIRE_SAMPLE_RATE_HZ)
"""Of an output's audio, which is float32."""


class Phase(StrEnum):
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


class _Session:
    """What is rare and not a number: which replies are followed."""

    __slots__ = (
        "asked",
        "asked_at",
        "heard",
        "heard_item",
        "is_heard_open",
        "is_spoken",
        "item",
        "slot",
        "ttfp_s",
    )

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.asked: str | None = None
        """The reply that was asked for and has nothing to show yet; `item` is what it becomes."""
        self.item = ""
        self.asked_at = 0.0
        self.is_spoken = True
        self.heard: str | None = None
        """The reply of which something was heard (or read) last."""
        self.heard_item = ""
        self.is_heard_open = False
        self.ttfp_s: float | None = None


class Monitor:
    """Owner of phases and cursors. Times are seconds of one clock; facts come in order.

    Reads of a session that is not open give what is true of nobody: listening, no buffer, nothing played.
    `speaks`: the model has a voice, so that a reply may begin with audio.
    """

    def __init__(self, speaks: bool = True) -> None:
        self._speaks = speaks
        self._sessions: dict[str, _Session] = {}
        self._cursors = Cursors()
        self._speaking = bytearray(len(self._cursors))
        self._free = list(range(len(self._cursors)))
        self._folds: dict[type, Callable[[_Session, Fact, float], None]] = {
            SpeechStarted: self._speech_started,
            SpeechEnded: self._speech_ended,
            PlaybackReported: self._playback_reported,
            ResponseRequested: self._requested,
            ItemCut: self._cut,
        }

    # -- folding -------------------------------------------------------------------------------------

    def observe(self, fact: Fact, now: float) -> None:
        """Fold one fact in. What is not about people is passed over, and so are sessions not open."""
        match fact:
            case SessionOpened():
                self._open(fact.session)
            case SessionClosed():
                self._close(fact.session)
            case SpeechStarted() | SpeechEnded() | PlaybackReported() | ResponseRequested() | ItemCut():
                session = self._sessions.get(fact.session)
                if session is not None:
                    self._folds[type(fact)](session, fact, now)
            case _:
                pass

    def hear(self, output: Output, now: float) -> None:
        """Fold an output in: it leaves for the client at `now`."""
        session = self._sessions.get(output.session)
        if session is None:
            return
        match output:
            case TokensOut():
                if session.asked == output.response and not session.is_spoken:
                    self._begin(session)
            case AudioOut():
                self._audio(session, output, now)
            case ResponseEnded():  # pragma: no branch
                self._ended(session, output, now)

    # -- reading -------------------------------------------------------------------------------------

    @property
    def sessions(self) -> KeysView[str]:
        """Those that are open."""
        return self._sessions.keys()

    def phase(self, session: str, now: float) -> Phase:
        known = self._sessions.get(session)
        if known is None:
            return Phase.LISTENING
        replies = known.is_heard_open or self._cursors.buffer_s(known.slot, now) > 0.0
        if self._speaking[known.slot]:
            return Phase.INTERRUPTING if replies else Phase.SPEAKING
        if replies:
            return Phase.REPLYING
        return Phase.LISTENING if known.asked is None else Phase.WAITING

    def source(self, session: str) -> Source:
        """How the session's cursor is known."""
        known = self._sessions.get(session)
        return Source.UNKNOWN if known is None else self._cursors.source(known.slot)

    def buffer_s(self, session: str, now: float) -> float | None:
        """Seconds of audio that the client has and has not played; None while nothing was heard at all."""
        known = self._sessions.get(session)
        if known is None or self._cursors.is_unknown(known.slot):
            return None
        return self._cursors.buffer_s(known.slot, now)

    def buffers_s(self, sessions: Sequence[str], now: float) -> Floats:
        """`buffer_s` of many open sessions, 0 where nothing was heard: float64 [n]."""
        slots = np.fromiter((self._sessions[name].slot for name in sessions), np.intp, len(sessions))
        return self._cursors.buffers_s(slots, now)

    def generated_s(self, session: str) -> float:
        """Seconds of the reply heard last that were sent."""
        known = self._sessions.get(session)
        return 0.0 if known is None else self._cursors.generated_s(known.slot)

    def played_s(self, session: str, now: float) -> float:
        """Seconds of the reply heard last that were audible by `now`."""
        known = self._sessions.get(session)
        return 0.0 if known is None else self._cursors.played_s(known.slot, now)

    def ttfp_s(self, session: str) -> float | None:
        """From the last reply's request to its first audio; None before."""
        known = self._sessions.get(session)
        return None if known is None else known.ttfp_s

    def waited_s(self, session: str, now: float) -> float | None:
        """How long somebody has waited for the first of a reply; None if nobody does."""
        known = self._sessions.get(session)
        return None if known is None or known.asked is None else now - known.asked_at

    def heard(self, session: str) -> str | None:
        """The response that the cursor is of."""
        known = self._sessions.get(session)
        return None if known is None else known.heard

    # -- people --------------------------------------------------------------------------------------

    def _open(self, name: str) -> None:
        if name in self._sessions:
            return
        if not self._free:
            size = len(self._cursors)
            self._cursors.grow(2 * size)
            self._speaking += bytes(size)
            self._free = list(range(size, 2 * size))
        self._sessions[name] = _Session(self._free.pop())

    def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._cursors.reset(session.slot)
            self._speaking[session.slot] = 0
            self._free.append(session.slot)

    def _speech_started(self, session: _Session, fact: Fact, now: float) -> None:
        self._speaking[session.slot] = 1

    def _speech_ended(self, session: _Session, fact: Fact, now: float) -> None:
        self._speaking[session.slot] = 0

    def _playback_reported(self, session: _Session, fact: Fact, now: float) -> None:
        assert isinstance(fact, PlaybackReported)
        if fact.response == session.heard:
            self._cursors.acked(session.slot, fact.played_s, now)

    def _requested(self, session: _Session, fact: Fact, now: float) -> None:
        """Follow it, unless it runs beside the conversation's own reply."""
        assert isinstance(fact, ResponseRequested)
        if not fact.remember and (session.asked is not None or session.is_heard_open):
            return
        session.asked, session.item, session.asked_at = fact.response, fact.item_id, now
        session.is_spoken = fact.speech and self._speaks

    def _cut(self, session: _Session, fact: Fact, now: float) -> None:
        """The client says how much of a reply was heard: it has stopped playing it."""
        assert isinstance(fact, ItemCut)
        if fact.item_id == session.heard_item:
            self._cursors.stop(session.slot, now)

    # -- replies -------------------------------------------------------------------------------------

    def _audio(self, session: _Session, output: AudioOut, now: float) -> None:
        if output.response == session.asked:
            self._begin(session)
            self._cursors.start(session.slot, now)
            session.ttfp_s = now - session.asked_at
        elif output.response != session.heard:
            return
        self._cursors.generated(session.slot, len(output.audio) * SECONDS_PER_BYTE, now)

    def _begin(self, session: _Session) -> None:
        """The first of the reply that was asked for: from here on it is the one that is heard."""
        session.heard, session.heard_item = session.asked, session.item
        session.is_heard_open = True
        session.asked = None
        session.ttfp_s = None
        self._cursors.reset(session.slot)

    def _ended(self, session: _Session, output: ResponseEnded, now: float) -> None:
        """What was sent of a completed reply is still played; a cancelled one is silent at once."""
        if output.response == session.asked:
            session.asked = None
        elif output.response == session.heard:
            session.is_heard_open = False
            if output.status == "cancelled":
                self._cursors.stop(session.slot, now)
