"""What an open microphone lets the server hear: frames of voice and of silence, given to the turn-taker."""

from __future__ import annotations

from antiphon.core.turns import ReplyPaused, ReplyResumed, TurnStarted, TurnStopped
from antiphon.interaction.turns import FRAME_MS, Phase, TurnTaker
from antiphon.sim.events import Agenda, Rank
from antiphon.sim.sessions import Asked, ServerSession
from antiphon.workload.script import Voiced

FRAME_S = FRAME_MS / 1000
VOICE, SILENCE = 1.0, 0.0
PADDING_FRAMES = 10
"""Silence before a voice that belongs to its turn: what lies further back is never looked at."""


class Hearing:
    """One session's. While nothing is said and no turn is open, no frame is looked at."""

    def __init__(self, session: ServerSession, agenda: Agenda) -> None:
        self._session = session
        self._agenda = agenda
        self._taker = TurnTaker()
        self._voiced: list[tuple[float, float]] = []
        """Stretches of voice that are not over, in the server's time."""
        self._asked: Asked | None = None
        self._started_ms = 0
        self._is_listening = False

    def hear(self, said: tuple[Voiced, ...], asked: Asked | None) -> None:
        """Somebody begins to say this; `asked` is the reply that a turn of it gets."""
        self._asked = asked or self._asked
        at_s = self._agenda.now
        for one in said:
            self._voiced.append((at_s, at_s + one.speech_s))
            at_s += one.speech_s + one.pause_s
        if not self._is_listening:
            for _ in range(PADDING_FRAMES):
                self._taker.observe(SILENCE)
            self._is_listening = True
            self._next_frame()

    def _next_frame(self) -> None:
        self._agenda.at(self._agenda.now + FRAME_S, Rank.LINK, self._frame)

    def _frame(self) -> None:
        now = self._agenda.now
        middle_s = now - FRAME_S / 2
        is_voice = any(start <= middle_s < end for start, end in self._voiced)
        heard = self._session.is_heard if is_voice else False
        event = self._taker.observe(VOICE if is_voice else SILENCE, heard)
        match event:
            case TurnStarted():
                self._started_ms = event.audio_start_ms
                self._session.speech_began()
            case TurnStopped():
                self._session.speech_over((event.audio_end_ms - self._started_ms) / 1000, self._asked)
            case ReplyPaused():
                self._session.hold()
            case ReplyResumed():
                self._session.release()
            case None:
                pass
        self._voiced = [(start, end) for start, end in self._voiced if end > now]
        self._is_listening = bool(self._voiced) or self._taker.phase is not Phase.QUIET
        if self._is_listening:
            self._next_frame()
