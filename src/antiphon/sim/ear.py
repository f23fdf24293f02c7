"""What one session has heard: the replies as they come in, played or read at the listener's pace."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

from antiphon.core.errors import AntiphonError
from antiphon.core.plans import Usage
from antiphon.core.playback import Playback
from antiphon.metrics.log import (
    AudioDelta,
    ErrorSeen,
    ResponseEnded,
    ResponseStarted,
    SpeechNoticed,
    TextDelta,
)
from antiphon.sim.log import Log
from antiphon.sim.process import Process, Wait

CHARS_PER_TOKEN = 4.0


class GaveUp(AntiphonError):
    """Nothing came for longer than the listener's patience."""


@dataclass(slots=True)
class Reply:
    """One response as its listener meets it."""

    id: str
    turn: int
    has_audio: bool = False
    is_done: bool = False
    playback: Playback = field(default_factory=Playback)

    def is_over(self, now: float) -> bool:
        """All of it has come, and has been played or read (or was silenced)."""
        return self.is_done and not self.is_audible(now)

    def is_audible(self, now: float) -> bool:
        """More of it is to be heard than has been."""
        return self.playback.is_audible(now)

    def silence(self, now: float) -> float:
        """Stop playback; seconds heard."""
        self.playback.stop(now)
        return self.playback.played_s(now)


class Ear:
    """Takes what comes, logs it, and rings those who listen when it may matter to them: not at every delta.

    `reading_tokens_per_s`: None for one who does not read (a job): text is over when it has come.
    """

    def __init__(self, session: str, log: Log, reading_tokens_per_s: float | None) -> None:
        self.session = session
        self.is_hearing = False
        """The server says that the person is speaking."""
        self.speech_started_s: float | None = None
        self.last_event_s = log.now_s()
        self.num_rings = 0
        self.refusals: set[str] = set()
        """What we asked for and the server refused."""
        self.replies: dict[str, Reply] = {}
        self.listeners: list[Process] = []
        self._log = log
        self._reading_chars_per_s = reading_tokens_per_s and reading_tokens_per_s * CHARS_PER_TOKEN
        self._turn = 0
        self._wants: Literal["speech", "text"] = "speech"

    def begin(self, turn: int, wants: Literal["speech", "text"]) -> None:
        """Responses created from now on answer this turn."""
        self._turn = turn
        self._wants = wants

    def answers(self) -> list[Reply]:
        """Replies to the current turn, in order."""
        return [reply for reply in self.replies.values() if reply.turn == self._turn]

    @property
    def open_replies(self) -> list[Reply]:
        return [reply for reply in self.replies.values() if not reply.is_done]

    @property
    def latest(self) -> Reply | None:
        """The reply that began last."""
        return self.replies[next(reversed(self.replies))] if self.replies else None

    def until(self, is_so: Callable[[], bool], deadline_s: float) -> Generator[Wait, None, bool]:
        """Wait for something that a ring may bring; False if it did not come in time."""
        while not is_so():
            if self._log.now_s() >= deadline_s:
                return False
            yield Wait(deadline_s, listens=True)
        return True

    # -- what comes ----------------------------------------------------------------------------------

    def created(self, response: str, item: str) -> None:
        self._reply(response)
        self._ring()

    def read(self, response: str, chars: int) -> None:
        now = self._came()
        reply = self._reply(response)
        is_read = self._wants == "text" and self._reading_chars_per_s
        if is_read:
            reply.playback.add(chars / is_read, now)
        self._log.write(TextDelta(t_s=now, session=self.session, response=response, chars=chars))

    def heard(self, response: str, audio_s: float) -> None:
        now = self._came()
        reply = self._reply(response)
        reply.playback.add(audio_s, now)
        self._log.write(AudioDelta(t_s=now, session=self.session, response=response, audio_s=audio_s))
        if not reply.has_audio:
            reply.has_audio = True
            self._ring()

    def done(self, response: str, status: str, reason: str, usage: Usage) -> None:
        self._reply(response).is_done = True
        self._log.write(
            ResponseEnded(
                t_s=self._came(),
                session=self.session,
                response=response,
                status=status,
                reason=reason,
                input_tokens=usage.input_text_tokens + usage.input_audio_tokens + usage.input_image_tokens,
                cached_tokens=usage.cached_tokens,
                output_text_tokens=usage.output_text_tokens,
                output_audio_tokens=usage.output_audio_tokens,
            )
        )
        self._ring()

    def noticed(self, what: Literal["started", "stopped"]) -> None:
        now = self._came()
        self.is_hearing = what == "started"
        if self.is_hearing:
            self.speech_started_s = now
        self._log.write(SpeechNoticed(t_s=now, session=self.session, what=what))
        self._ring()

    def refused(self, ask: str, code: str, message: str) -> None:
        self.refusals.add(ask)
        self._log.write(ErrorSeen(t_s=self._came(), session=self.session, code=code, message=message))
        self._ring()

    def _came(self) -> float:
        self.last_event_s = now = self._log.now_s()
        return now

    def _reply(self, response: str) -> Reply:
        reply = self.replies.get(response)
        if reply is None:
            reply = self.replies[response] = Reply(response, self._turn)
            self._log.write(
                ResponseStarted(
                    t_s=self._came(),
                    session=self.session,
                    turn=self._turn,
                    response=response,
                    wants=self._wants,
                )
            )
        return reply

    def _ring(self) -> None:
        self.num_rings += 1
        for process in [*self.listeners]:
            process.ring()
