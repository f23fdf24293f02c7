"""The server's side of one conversation, without the wire's bytes: what a client asks becomes facts, outputs
become what the client gets. What was heard is cut by the wire's own rule, turns are taken by the server's own
turn-taker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from antiphon.core.conversation import AudioPart, Item, Part
from antiphon.core.errors import ProtocolError
from antiphon.core.facts import (
    Fact,
    ItemAdded,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.core.ids import content_key
from antiphon.core.plans import (
    AdvisoryAnswered,
    AudioOut,
    Output,
    ResponseEnded,
    ResponseOutput,
    TokensOut,
    Usage,
)
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ, WIRE_SAMPLE_RATE_HZ
from antiphon.sim.events import Agenda
from antiphon.sim.links import Link
from antiphon.wire.spoken import Speeches, Spoken
from antiphon.wire.truncation import AUTO_RETENTION

PIECE = "abc "
"""The text of a token: of the four characters that English has on average, and a word."""
SAMPLE_BYTES = 4
"""Of float32."""


class Client(Protocol):
    """What a client gets to know, when it arrives there."""

    def created(self, response: str, item: str) -> None: ...

    def read(self, response: str, chars: int) -> None: ...

    def heard(self, response: str, audio_s: float) -> None: ...

    def done(self, response: str, status: str, reason: str, usage: Usage) -> None: ...

    def noticed(self, what: Literal["started", "stopped"]) -> None: ...

    def refused(self, ask: str, code: str, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reply shall be. `ask` names the request to who asks, should it be refused."""

    ask: str
    speech: bool
    max_tokens: int | None
    tier: Literal["latency", "best_effort"] = "latency"


@dataclass(slots=True)
class _Reply:
    """A response that is not over. It has an item once anything of it was sent."""

    spoken: Spoken
    cancelled_by: str | None = None
    has_item: bool = False
    held: list[ResponseOutput] | None = None
    """What waits while a voice over it is in doubt; None: there is no doubt."""


class ServerSession:
    """One conversation. Its methods are called when the client's messages arrive."""

    def __init__(
        self, name: str, instructions: str, agenda: Agenda, tell: Callable[[Fact], None], down: Link
    ) -> None:
        self.name = name
        self.client: Client | None = None
        self._instructions = instructions
        self._agenda = agenda
        self._tell = tell
        self._down = down
        self._speeches = Speeches()
        self._open: dict[str, _Reply] = {}
        self._num_named = 0
        self._owed: Asked | None = None
        """A turn ended while a reply was still on its way out: the next follows it."""
        self._is_open = False
        self._is_pushed = False
        """Without a detector: audio was appended since the last commit or clear."""

    def open(self) -> None:
        self._is_open = True
        self._tell(SessionOpened(self.name))

    def close(self) -> None:
        """The client is gone."""
        if self._is_open:
            self._is_open = False
            self._open.clear()
            self._tell(SessionClosed(self.name))

    # -- what a client sends -------------------------------------------------------------------------

    def add(self, *parts: Part) -> None:
        """One item of the user's."""
        self._tell(ItemAdded(self.name, Item(self._named("item"), "user", parts)))

    def add_voice(self, audio_s: float) -> None:
        """A turn's audio: silence of this length, and content of its own."""
        num_samples = round(audio_s * MODEL_SAMPLE_RATE_HZ)
        key = content_key(self._named("voice").encode())
        self.add(AudioPart(bytes(num_samples * SAMPLE_BYTES), key))

    def append(self) -> None:
        """Audio of a client that commits by hand."""
        if not self._is_pushed:
            self._is_pushed = True
            self._tell(SpeechStarted(self.name))

    def commit(self, audio_s: float) -> None:
        """All that was appended, of this length, is a turn."""
        self.clear()
        self.add_voice(audio_s)

    def clear(self) -> None:
        """What was appended is no turn."""
        if self._is_pushed:
            self._is_pushed = False
            self._tell(SpeechEnded(self.name))

    def create(self, asked: Asked) -> None:
        """A reply is wanted. One at a time."""
        if self._active is not None:
            code = "conversation_already_has_active_response"
            self._say("refused", asked.ask, code, "Conversation already has an active response")
            return
        response, item = self._named("resp"), self._named("reply")
        spoken = Spoken(response, item, asked.speech)
        self._open[response] = _Reply(spoken)
        self._speeches.add(spoken)
        self._tell(
            ResponseRequested(
                self.name,
                response,
                item,
                speech=asked.speech,
                instructions=self._instructions,
                max_tokens=asked.max_tokens,
                tier=asked.tier,
                retention=AUTO_RETENTION,
            )
        )
        self._say("created", response, item)

    def cancel(self, response: str) -> None:
        """The client wants no more of it."""
        reply = self._open.get(response)
        if reply is not None and reply.cancelled_by is None:
            self._cancel(reply, "client_cancelled")

    def truncate(self, response: str, audio_end_ms: int) -> None:
        """The client's word on how far a reply was heard."""
        spoken, reply = self._speeches.find(None, response), self._open.get(response)
        if spoken is not None and spoken.speech and (reply is None or reply.has_item):
            try:
                self._speeches.truncate(spoken, audio_end_ms, self._agenda.now)
            except ProtocolError as error:
                self._say("refused", response, error.code, str(error))
                return
            self._cut(spoken)

    def acknowledge(self, response: str, played_s: float) -> None:
        """The client has played so much of it."""
        spoken = self._speeches.find(None, response)
        if spoken is not None and spoken.speech:
            played_s = min(played_s, spoken.playback.audio_s)
            if spoken.playback.acked(played_s, self._agenda.now):
                self._tell(PlaybackReported(self.name, response, played_s))

    # -- who has the turn ----------------------------------------------------------------------------

    def speech_began(self) -> None:
        """The turn-taker heard the person begin: whatever is audible stops."""
        self._owed = None
        self._tell(SpeechStarted(self.name))
        self._say("noticed", "started")
        self._interrupt()

    def speech_over(self, audio_s: float, asked: Asked | None) -> None:
        """It heard them end. Their turn is answered as soon as nothing is in its way."""
        self._say("noticed", "stopped")
        self._tell(SpeechEnded(self.name))
        self.add_voice(audio_s)
        self._owed = asked
        self._answer_owed()

    @property
    def is_heard(self) -> bool:
        """A voice would interrupt a reply: one that is playing, or held back."""
        is_held = self._active is not None and self._active.held is not None
        return is_held or bool(self._speeches.audible(self._agenda.now))

    def hold(self) -> None:
        """A voice over the reply is in doubt: keep back what it says."""
        reply = self._active
        if reply is not None and reply.cancelled_by is None and reply.held is None:
            reply.held = []
            self._tell(OutputHeld(self.name, reply.spoken.response))

    def release(self) -> None:
        """It was no interruption."""
        reply = self._active
        if reply is not None and reply.held is not None:
            held, reply.held = reply.held, None
            self._tell(OutputReleased(self.name, reply.spoken.response))
            for output in held:
                self.deliver(output)

    def _answer_owed(self) -> None:
        asked = self._owed
        if asked is not None and self._active is None:
            self._owed = None
            self.create(asked)

    def _interrupt(self) -> None:
        reply = self._active
        if reply is not None:
            if reply.cancelled_by is None:
                self._cancel(reply, "turn_detected")
            return
        for spoken in self._speeches.audible(self._agenda.now):
            if not spoken.is_truncated:
                self._speeches.interrupt(spoken, self._agenda.now)
                self._cut(spoken)

    # -- what the engine sends -----------------------------------------------------------------------

    def deliver(self, output: Output) -> None:
        """Those of responses that are over are dropped."""
        if isinstance(output, AdvisoryAnswered):  # nobody here says what it does with it
            return
        reply = self._open.get(output.response)
        if reply is None:
            return
        if reply.held is not None:
            reply.held.append(output)
            return
        match output:
            case TokensOut():
                self._wrote(reply, len(output.tokens))
            case AudioOut():
                self._spoke(reply, len(output.audio) // SAMPLE_BYTES / WIRE_SAMPLE_RATE_HZ)
            case ResponseEnded():
                self._ended(reply, output)

    def _wrote(self, reply: _Reply, num_tokens: int) -> None:
        if reply.cancelled_by is not None and reply.spoken.cut is not None:
            return
        reply.has_item = True
        for _ in range(num_tokens):
            reply.spoken.wrote(PIECE)
        self._say("read", reply.spoken.response, len(PIECE) * num_tokens)

    def _spoke(self, reply: _Reply, audio_s: float) -> None:
        """After a cancel the client has stopped listening, and nothing more is sent."""
        if reply.cancelled_by is None:
            reply.has_item = True
            reply.spoken.playback.add(audio_s, self._agenda.now)
            self._say("heard", reply.spoken.response, audio_s)

    def _ended(self, reply: _Reply, end: ResponseEnded) -> None:
        spoken = reply.spoken
        del self._open[spoken.response]
        status, reason = end.status, end.reason
        if reply.cancelled_by is not None and status != "failed":
            status, reason = "cancelled", reply.cancelled_by
        elif status in ("completed", "incomplete"):
            self._speeches.completed(spoken)
        if not (reply.has_item or status in ("completed", "incomplete")):
            self._speeches.forget(spoken.item_id)
        if reply.cancelled_by is not None and end.status != "cancelled":
            self._cut(spoken)
        self._say("done", spoken.response, status, reason or end.message, end.usage)
        self._answer_owed()

    # -- shared --------------------------------------------------------------------------------------

    @property
    def _active(self) -> _Reply | None:
        return next(iter(self._open.values()), None)

    def _cancel(self, reply: _Reply, reason: str) -> None:
        reply.cancelled_by = reason
        keep = self._speeches.interrupt(reply.spoken, self._agenda.now)
        self._tell(ResponseCancelled(self.name, reply.spoken.response, reason, keep))
        held, reply.held = reply.held or [], None
        for output in held:
            self.deliver(output)

    def _cut(self, spoken: Spoken) -> None:
        if spoken.cut is not None:
            self._tell(ItemCut(self.name, spoken.item_id, spoken.cut.num_tokens))

    def _named(self, kind: str) -> str:
        self._num_named += 1
        return f"{self.name}/{kind}-{self._num_named}"

    def _say(self, what: str, *told: object) -> None:
        if self.client is not None:
            self._down.send(getattr(self.client, what), *told)
