"""What one session has heard: the replies as they come in, played or read at the listener's pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from antiphon.bench.logfile import LogWriter
from antiphon.bench.wire_client import UNREADABLE, Answer, ConnectionLost, Got, WireClient
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

CHARS_PER_TOKEN = 4.0
"""English text, roughly: deltas carry characters, people are said to read tokens."""
AUDIO_BYTES_PER_S = WIRE_SAMPLE_RATE_HZ * PCM16_BYTES
AUDIO_DELTAS = frozenset(("response.output_audio.delta", "response.audio.delta"))
TRANSCRIPT_DELTAS = frozenset(("response.output_audio_transcript.delta", "response.audio_transcript.delta"))
TEXT_DELTAS = frozenset(("response.output_text.delta", "response.text.delta"))
"""GA names, and those that servers of the beta protocol still send."""


class GaveUp(AntiphonError):
    """Nothing came for longer than the listener's patience."""


@dataclass(slots=True)
class Reply:
    """One response as its listener meets it."""

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
        """Stop playback; seconds heard."""
        self.playback.stop(now)
        return self.playback.played_s(now)


class Ear:
    """Takes a session's events, logs them, and lets one task wait for what it expects of them.

    `reading_tokens_per_s`: None for one who does not read (a job): text is over when it has come.
    """

    def __init__(self, session: str, log: LogWriter, reading_tokens_per_s: float | None) -> None:
        self.session = session
        self.config: dict[str, Any] = {}
        """The session object, as the server last said it."""
        self.num_configs = 0
        self.is_hearing = False
        """The server says that the person is speaking."""
        self.speech_started_s: float | None = None
        self.last_event_s = log.now_s()
        self.num_events = 0
        self.last_error = ""
        self.refused: set[str] = set()
        """event_ids of ours that the server answered with an error."""
        self.replies: dict[str, Reply] = {}
        self._log = log
        self._reading_chars_per_s = reading_tokens_per_s and reading_tokens_per_s * CHARS_PER_TOKEN
        self._turn = 0
        self._wants: Literal["speech", "text"] = "speech"
        self._lost: ConnectionLost | None = None
        self._rung = asyncio.Event()

    async def listen(self, client: WireClient) -> None:
        """Until the connection breaks; whoever waits then gets ConnectionLost."""
        try:
            async for event, now in client.events():
                self.receive(event, now)
        except ConnectionLost as error:
            self._lost = error
            self._rung.set()

    def begin(self, turn: int, wants: Literal["speech", "text"]) -> None:
        """Responses created from now on answer this turn."""
        self._turn = turn
        self._wants = wants

    def answers(self) -> list[Reply]:
        """Replies to the current turn, in order."""
        return [reply for reply in self.replies.values() if reply.turn == self._turn]

    @property
    def latest(self) -> Reply | None:
        return next(reversed(self.replies.values()), None)

    def open_replies(self) -> list[Reply]:
        return [reply for reply in self.replies.values() if not reply.is_done]

    async def until(self, is_so: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until events made it so (True) or `deadline_s` has come (False). Raises ConnectionLost."""
        while True:
            if self._lost is not None:
                raise self._lost
            if is_so():
                return True
            left_s = deadline_s - self._log.now_s()
            if left_s <= 0:
                return False
            self._rung.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._rung.wait()
            except TimeoutError:
                pass

    def receive(self, event: Got, now: float) -> None:
        self.last_event_s = now
        self.num_events += 1
        kind = event.type
        if kind in AUDIO_DELTAS:
            self._heard(event, now)
        elif kind in TEXT_DELTAS or kind in TRANSCRIPT_DELTAS:
            self._read(event, now, is_text=kind in TEXT_DELTAS)
        elif kind == "response.created" and event.response is not None:
            self._reply(event.response.id, now)
        elif kind == "response.done" and event.response is not None:
            self._done(event.response, now)
        elif kind.startswith("input_audio_buffer.speech_"):
            self._noticed(kind == "input_audio_buffer.speech_started", now)
        elif kind in ("session.created", "session.updated"):
            self.config = event.session or {}
            self.num_configs += 1
        elif kind in ("error", UNREADABLE):
            self._error(event, now)
        self._rung.set()

    def _reply(self, response: str, now: float) -> Reply:
        reply = self.replies.get(response)
        if reply is None:
            reply = self.replies[response] = Reply(response, self._turn)
            self._log.write(
                ResponseStarted(
                    t_s=now, session=self.session, turn=self._turn, response=response, wants=self._wants
                )
            )
        return reply

    def _heard(self, event: Got, now: float) -> None:
        audio_s = pcm_bytes(str(event.delta or "")) / AUDIO_BYTES_PER_S
        reply = self._reply(event.response_id or "", now)
        reply.has_audio = True
        reply.item = event.item_id or reply.item
        reply.content_index = event.content_index or 0
        reply.playback.add(audio_s, now)
        self._log.write(AudioDelta(t_s=now, session=self.session, response=reply.id, audio_s=audio_s))

    def _read(self, event: Got, now: float, *, is_text: bool) -> None:
        chars = len(str(event.delta or ""))
        reply = self._reply(event.response_id or "", now)
        reply.item = event.item_id or reply.item
        if is_text and self._reading_chars_per_s:
            reply.playback.add(chars / self._reading_chars_per_s, now)
        self._log.write(TextDelta(t_s=now, session=self.session, response=reply.id, chars=chars))

    def _done(self, answer: Answer, now: float) -> None:
        reply = self._reply(answer.id, now)
        reply.is_done = True
        details = answer.status_details or {}
        self._log.write(
            ResponseEnded(
                t_s=now,
                session=self.session,
                response=reply.id,
                status=answer.status or "",
                reason=_reason(details),
                **_tokens(answer.usage or {}),
            )
        )

    def _noticed(self, is_start: bool, now: float) -> None:
        self.is_hearing = is_start
        if is_start:
            self.speech_started_s = now
        self._log.write(
            SpeechNoticed(t_s=now, session=self.session, what="started" if is_start else "stopped")
        )

    def _error(self, event: Got, now: float) -> None:
        error = event.error
        code = (error.code or error.type if error else None) or "error"
        if error is not None and error.event_id:
            self.refused.add(error.event_id)
        self.last_error = error.message if error else ""
        self._log.write(ErrorSeen(t_s=now, session=self.session, code=code, message=self.last_error))


def pcm_bytes(text: str) -> int:
    """Length of what base64 `text` decodes to."""
    return len(text) * 3 // 4 - text.count("=", -2) if text else 0


def _reason(details: dict[str, Any]) -> str:
    error = details.get("error") or {}
    return str(details.get("reason") or error.get("message") or error.get("code") or "")


def _tokens(usage: dict[str, Any]) -> dict[str, int | None]:
    read = usage.get("input_token_details") or {}
    written = usage.get("output_token_details") or {}
    return {
        "input_tokens": usage.get("input_tokens"),
        "cached_tokens": read.get("cached_tokens"),
        "output_text_tokens": written.get("text_tokens"),
        "output_audio_tokens": written.get("audio_tokens"),
    }
