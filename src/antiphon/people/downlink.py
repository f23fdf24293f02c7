"""What one session has received: its replies as they come in, played or read at the listener's pace."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec

from antiphon.core.errors import AntiphonError
from antiphon.core.playback import Playback
from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ
from antiphon.metrics.log import (
    AudioDelta,
    ErrorSeen,
    ResponseEnded,
    ResponseStarted,
    SpeechNoticed,
    TextDelta,
)
from antiphon.people.acts import Journal, Wait

CHARS_PER_TOKEN = 4.0
"""English text, roughly: deltas carry characters, people are said to read tokens."""
AUDIO_BYTES_PER_S = WIRE_SAMPLE_RATE_HZ * PCM16_BYTES
AUDIO_DELTAS = frozenset(("response.output_audio.delta", "response.audio.delta"))
TRANSCRIPT_DELTAS = frozenset(("response.output_audio_transcript.delta", "response.audio_transcript.delta"))
TEXT_DELTAS = frozenset(("response.output_text.delta", "response.text.delta"))
"""GA names, and those that servers of the beta protocol still send."""
UNREADABLE = "unreadable"


class GaveUp(AntiphonError):
    """Nothing came for longer than the listener's patience."""


class ReceivedError(msgspec.Struct):
    """The `error` of an error event."""

    message: str = ""
    code: str | None = None
    type: str | None = None
    event_id: str | None = None


class ReceivedResponse(msgspec.Struct):
    """The `response` of response.created and response.done, as far as it is read."""

    id: str
    status: str | None = None
    status_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class ReceivedEvent(msgspec.Struct):
    """A server event, as far as it is read. Servers may send more fields and other types."""

    type: str
    response_id: str | None = None
    item_id: str | None = None
    content_index: int | None = None
    delta: Any = None
    response: ReceivedResponse | None = None
    session: dict[str, Any] | None = None
    error: ReceivedError | None = None


@dataclass(slots=True)
class HeardReply:
    """One response as its listener hears or reads it."""

    id: str
    turn: int
    item: str | None = None
    content_index: int = 0
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
        """Stop playback; returns the seconds heard."""
        self.playback.stop(now)
        return self.playback.played_s(now)


class Downlink:
    """Takes a session's events and logs them.

    It rings `listeners` when what they wait for may have changed. More of a reply that is being heard rings
    nobody: they look again when its playback ends.

    `reading_tokens_per_s`: None where nobody reads (a job): text is over when it has come.
    """

    def __init__(self, session: str, log: Journal, reading_tokens_per_s: float | None) -> None:
        self.session = session
        self.config: dict[str, Any] = {}
        """The session object, as the server last said it."""
        self.num_configs = 0
        self.is_hearing = False
        """The server says that the person is speaking."""
        self.speech_started_s: float | None = None
        self.last_event_s = log.now_s()
        self.last_error = ""
        self.refused: set[str] = set()
        """event_ids of ours that the server answered with an error."""
        self.replies: dict[str, HeardReply] = {}
        self.listeners: list[Callable[[], None]] = []
        self._log = log
        self._reading_chars_per_s = reading_tokens_per_s and reading_tokens_per_s * CHARS_PER_TOKEN
        self._turn = 0
        self._wants: Literal["speech", "text"] = "speech"

    def begin(self, turn: int, wants: Literal["speech", "text"]) -> None:
        """Responses created from now on answer this turn."""
        self._turn = turn
        self._wants = wants

    def answers(self) -> list[HeardReply]:
        """Replies to the current turn, in order."""
        return [reply for reply in self.replies.values() if reply.turn == self._turn]

    @property
    def latest(self) -> HeardReply | None:
        """The reply that began last."""
        return next(reversed(self.replies.values()), None)

    @property
    def open_replies(self) -> list[HeardReply]:
        return [reply for reply in self.replies.values() if not reply.is_done]

    @property
    def interrupts(self) -> bool:
        """The server says that speech interrupts a reply."""
        heard = _object(_object(self.config.get("audio")).get("input"))
        detection = _object(heard.get("turn_detection") or self.config.get("turn_detection"))
        return bool(detection.get("interrupt_response", False))

    def until(self, is_so: Callable[[], bool], deadline_s: float) -> Generator[Wait, None, bool]:
        """Wait until events made it so (True) or `deadline_s` has come (False)."""
        while not is_so():
            if self._log.now_s() >= deadline_s:
                return False
            yield Wait(deadline_s, listens=True)
        return True

    def receive(self, event: ReceivedEvent, now: float) -> None:
        """An event that came at `now`."""
        self.last_event_s = now
        kind = event.type
        if kind in AUDIO_DELTAS:
            self._heard(event, now)
        elif kind in TEXT_DELTAS or kind in TRANSCRIPT_DELTAS:
            self._read(event, now, is_text=kind in TEXT_DELTAS)
        elif kind == "response.created" and event.response is not None:
            self._reply(event.response.id, now)
            self.ring()
        elif kind == "response.done" and event.response is not None:
            self._done(event.response, now)
        elif kind.startswith("input_audio_buffer.speech_"):
            self._noticed(kind == "input_audio_buffer.speech_started", now)
        elif kind in ("session.created", "session.updated"):
            self.config = event.session or {}
            self.num_configs += 1
            self.ring()
        elif kind in ("error", UNREADABLE):
            self._error(event, now)

    def ring(self) -> None:
        """Have every listener look again."""
        for listener in [*self.listeners]:
            listener()

    def _reply(self, response: str, now: float) -> HeardReply:
        reply = self.replies.get(response)
        if reply is None:
            reply = self.replies[response] = HeardReply(response, self._turn)
            self._log.write(
                ResponseStarted(
                    t_s=now, session=self.session, turn=self._turn, response=response, wants=self._wants
                )
            )
        return reply

    def _heard(self, event: ReceivedEvent, now: float) -> None:
        audio_s = pcm_bytes(str(event.delta or "")) / AUDIO_BYTES_PER_S
        reply = self._reply(event.response_id or "", now)
        reply.item = event.item_id or reply.item
        reply.content_index = event.content_index or 0
        reply.playback.add(audio_s, now)
        self._log.write(AudioDelta(t_s=now, session=self.session, response=reply.id, audio_s=audio_s))
        if not reply.has_audio:
            reply.has_audio = True
            self.ring()

    def _read(self, event: ReceivedEvent, now: float, *, is_text: bool) -> None:
        chars = len(str(event.delta or ""))
        reply = self._reply(event.response_id or "", now)
        reply.item = event.item_id or reply.item
        if is_text and self._reading_chars_per_s:
            reply.playback.add(chars / self._reading_chars_per_s, now)
        self._log.write(TextDelta(t_s=now, session=self.session, response=reply.id, chars=chars))

    def _done(self, response: ReceivedResponse, now: float) -> None:
        reply = self._reply(response.id, now)
        reply.is_done = True
        self._log.write(
            ResponseEnded(
                t_s=now,
                session=self.session,
                response=reply.id,
                status=response.status or "",
                reason=_reason(response.status_details or {}),
                **_tokens(response.usage or {}),
            )
        )
        self.ring()

    def _noticed(self, is_start: bool, now: float) -> None:
        self.is_hearing = is_start
        if is_start:
            self.speech_started_s = now
        self._log.write(
            SpeechNoticed(t_s=now, session=self.session, what="started" if is_start else "stopped")
        )
        self.ring()

    def _error(self, event: ReceivedEvent, now: float) -> None:
        error = event.error
        code = (error.code or error.type if error else None) or "error"
        if error is not None and error.event_id:
            self.refused.add(error.event_id)
        self.last_error = error.message if error else ""
        self._log.write(ErrorSeen(t_s=now, session=self.session, code=code, message=self.last_error))
        self.ring()


def unreadable(why: str) -> ReceivedEvent:
    """What stands for a frame that is no event."""
    return ReceivedEvent(UNREADABLE, error=ReceivedError(f"not an event: {why}", UNREADABLE))


def pcm_bytes(text: str) -> int:
    """Length of what base64 `text` decodes to."""
    return len(text) * 3 // 4 - text.count("=", -2) if text else 0


def _reason(details: dict[str, Any]) -> str:
    error = _object(details.get("error"))
    return str(details.get("reason") or error.get("message") or error.get("code") or "")


def _tokens(usage: dict[str, Any]) -> dict[str, int | None]:
    read = _object(usage.get("input_token_details"))
    written = _object(usage.get("output_token_details"))
    return {
        "input_tokens": usage.get("input_tokens"),
        "cached_tokens": read.get("cached_tokens"),
        "output_text_tokens": written.get("text_tokens"),
        "output_audio_tokens": written.get("audio_tokens"),
    }


def _object(value: Any) -> dict[str, Any]:
    """A field that should hold an object; empty where it holds none."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
