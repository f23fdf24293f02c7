"""One realtime session: client frames, engine outputs and time in, effects out.

    NEW --start--> OPEN --close--> CLOSED

A client's mistake is answered with an `error` event and changes nothing; it never ends the session.
The parts: `listener` hears, `items` edits the conversation, `responses` replies; here they meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

from antiphon.core.conversation import AudioPart, Item, TextPart
from antiphon.core.errors import AntiphonError, LimitExceeded, ProtocolError, SessionGone, Throttled
from antiphon.core.facts import (
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
    TurnDropped,
    TurnForeseen,
    WordsWanted,
)
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import AdvisoryAnswered, Output, WordsHeard
from antiphon.core.turns import ReplyPaused, ReplyResumed
from antiphon.core.units import pcm16_ms
from antiphon.wire.advisories import Advisories, AdvisoryRequest
from antiphon.wire.audio import MIN_AUDIO_MS, ClientAudio
from antiphon.wire.client_events import (
    Advise,
    AppendAudio,
    CancelResponse,
    ClearAudio,
    ClientEvent,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    PlaybackAck,
    ResponseParams,
    RetrieveItem,
    SessionPatch,
    SessionUpdate,
    TruncateItem,
)
from antiphon.wire.config import Scope, SessionConfig, session_object, updated
from antiphon.wire.content import ItemReader
from antiphon.wire.effects import Effect, Payload, ServerEvent, Step, ToEngine
from antiphon.wire.errors import error_object
from antiphon.wire.items import Items
from antiphon.wire.limits import Limits, check
from antiphon.wire.listener import (
    Listener,
    Noticed,
    PushBegan,
    PushOver,
    SpeechBegan,
    SpeechContinues,
    SpeechOver,
    SpeechPaused,
)
from antiphon.wire.parsing import client_event_id, decode_object, typed_event
from antiphon.wire.ports import DetokeniserFactory, Media, TurnDetectorFactory
from antiphon.wire.pushes import Pushes
from antiphon.wire.readers import ReaderRates
from antiphon.wire.response_params import AskedResponse, read_response
from antiphon.wire.responses import Responses, Shared
from antiphon.wire.transcription import SessionTranscriptions

LONG_MS = 2000
"""A recording from which on it takes more than a millisecond to take it up."""
NOTHING_SAID = Item("", "user", (TextPart("Hello"),))
"""In the place of what will be said: any word, since a prompt without one is refused."""


class SessionPhase(Enum):
    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


class RealtimeSession:
    """The server's side of one client's conversation. Not thread-safe: one caller at a time.

    `detectors` None: nobody hears when turns start and end; the client commits by hand whatever is asked for.
    """

    def __init__(
        self,
        info: ModelInfo,
        ids: IdSource,
        media: Media,
        detokenisers: DetokeniserFactory,
        limits: Limits | None = None,
        detectors: TurnDetectorFactory | None = None,
        postpones: bool = False,
        readers: ReaderRates = ReaderRates(),
        transcript_detokenisers: DetokeniserFactory | None = None,
    ) -> None:
        """postpones: `receive` leaves what takes milliseconds, as long recordings do, to `go_on`. readers: of
        replies in writing. transcript_detokenisers: of a transcriber; None: it writes as replies are."""
        self.id = ids.new("sess")
        self.limits = limits or Limits()
        self.phase = SessionPhase.NEW
        scope = Scope(info, self.limits, readers)
        reader = ItemReader(media, self.limits, ids, info)
        conversation_id = ids.new("conv")
        self._shared = Shared(self.id, conversation_id, ids, scope, self.limits, reader, scope.defaults)
        self._listener = Listener(self.limits, ids, detectors, info.reads_ahead)
        self._input_audio = ClientAudio(media)
        self._transcripts = SessionTranscriptions(self.id, info, ids, transcript_detokenisers or detokenisers)
        self._responses = Responses(self._shared, detokenisers, media)
        self._items = Items(self._shared, self._responses, self._transcripts)
        self._advisories, self._pushes = Advisories(self.id), Pushes()
        self._prefaced: SessionConfig | None = None
        """What the engine was told before the first turn."""
        self._owes_reply = False
        """A turn ended while a reply was still on its way out: the next follows it."""
        self._has_refused_sound = False
        """Of a model that does not hear: the client was told so."""
        self._postpones = postpones
        self._rest: Callable[[], list[Effect]] | None = None

    @property
    def num_open_responses(self) -> int:
        return len(self._responses)

    @property
    def num_cut(self) -> int:
        """Spoken replies that were interrupted or truncated."""
        return self._responses.num_cut

    @property
    def unheard_s(self) -> float:
        """Seconds of sound that were sent of them and never heard: by the client's word, or as estimated."""
        return self._responses.unheard_s

    @property
    def buffered_audio_s(self) -> float:
        return self._listener.buffered_ms / 1000

    @property
    def wake_at(self) -> float | None:
        """When `tick` is next wanted, unless something else happens before."""
        times = self._responses.held_until, self._idle_at, self._pushes.due_at
        return min((time for time in times if time is not None), default=None)

    def start(self) -> list[Effect]:
        """Open the session, unprompted; once."""
        assert self.phase is SessionPhase.NEW, f"start needs a new session, this one is {self.phase.value}"
        self.phase = SessionPhase.OPEN
        self._listener.configure(self._shared.config.turn_detection)
        return self._effects([SessionOpened(self.id), self._session_event("session.created")])

    def receive(self, frame: str | bytes, now: float) -> list[Effect]:
        """A client's frame. Whatever is in it, the answer is effects; SessionGone after close."""
        if self.phase is not SessionPhase.OPEN:
            raise SessionGone(f"receive needs an open session, this one is {self.phase.value}")
        try:
            raw = decode_object(frame, self.limits)
        except (ProtocolError, LimitExceeded) as error:
            return [self.error(error)]
        return self.receive_object(raw, now)

    def receive_object(self, raw: dict[str, Any], now: float) -> list[Effect]:
        """A client's frame that is decoded already; audio in it may be bytes. As `receive`."""
        try:
            event = typed_event(raw)
        except (ProtocolError, LimitExceeded) as error:
            return [self.error(error, client_event_id(raw))]
        if isinstance(event, CommitAudio) and self._is_long(self._listener.buffered_ms):
            self._rest = lambda: self._answered(event, client_event_id(raw), now)
            return []
        return self._answered(event, client_event_id(raw), now)

    @property
    def has_rest(self) -> bool:
        """Is something of the last frame left to be done by `go_on`?"""
        return self._rest is not None

    def go_on(self) -> list[Effect]:
        """Do what is left of the last frame, before the session is told anything else. It takes milliseconds,
        and may be done in any thread."""
        rest, self._rest = self._rest, None
        return [] if rest is None else rest()

    def _answered(self, event: ClientEvent, event_id: str | None, now: float) -> list[Effect]:
        try:
            return self._effects(self._handle(event, now))
        except (ProtocolError, LimitExceeded) as error:
            return [self.error(error, event_id)]

    def deliver(self, output: Output, now: float) -> list[Effect]:
        """An engine's output. Those of responses that are over are dropped."""
        if self.phase is not SessionPhase.OPEN:
            return []
        if isinstance(output, AdvisoryAnswered):
            told = self._advisories.answered(output)
            return [] if told is None else self._effects([told])
        if isinstance(output, WordsHeard):
            return self._effects([*self._transcripts.heard(output)])
        if output.response in self._transcripts:
            return self._effects([*self._transcripts.deliver(output)])
        return self._effects([*self._responses.deliver(output, now), *self._owed()])

    def advise(self, asked: AdvisoryRequest, now: float) -> list[Effect]:
        """An advisory that came beside the socket; `deliver` gets its answer, and says nothing of it to the
        client. Raises Throttled, and SessionGone after close."""
        if self.phase is not SessionPhase.OPEN:
            raise SessionGone(f"advise needs an open session, this one is {self.phase.value}")
        return self._effects([self._advised(asked, now)])

    def tick(self, now: float) -> list[Effect]:
        """Time has passed. Harmless at any time."""
        if self.phase is not SessionPhase.OPEN:
            return []
        steps: list[Step] = []
        held_until, idle_at = self._responses.held_until, self._idle_at
        if held_until is not None and held_until <= now:
            steps += [*self._responses.release(now), *self._owed()]
        if idle_at is not None and idle_at <= now:
            steps += self._idle()
        return self._effects([*steps, *self._pushed(now)])

    def abandon(self, reason: str, message: str, now: float) -> list[Effect]:
        """End all open responses and transcriptions as failed: the server cannot wait for them any longer."""
        self._owes_reply = False
        steps = self._responses.abandon(reason, message, now)
        return self._effects([*steps, *self._transcripts.abandon(reason, message)])

    def close(self, now: float) -> list[Effect]:
        """The client is gone; the engine frees all that is the session's. Harmless when repeated."""
        was_open, self.phase = self.phase is SessionPhase.OPEN, SessionPhase.CLOSED
        self._responses.drop(now)
        self._transcripts.clear()
        self._listener.clear()
        return [ToEngine(SessionClosed(self.id))] if was_open else []

    def error(self, error: AntiphonError, event_id: str | None = None) -> ServerEvent:
        """The error as an event; `event_id` is the client's own."""
        return self._event(_error(error, event_id))

    def _handle(self, event: ClientEvent, now: float) -> list[Step]:
        match event:
            case SessionUpdate():
                return self._update(event.session, now)
            case AppendAudio():
                return self._append(event.audio, now)
            case CommitAudio():
                return self._commit(now)
            case ClearAudio():
                return self._clear(now)
            case CreateItem():
                return self._items.create(event)
            case RetrieveItem():
                return self._items.retrieve(event)
            case DeleteItem():
                return self._items.delete(event.item_id)
            case TruncateItem():
                return self._responses.truncate(event, now)
            case CreateResponse():
                return self._create_response(event.response or ResponseParams())
            case CancelResponse():
                self._owes_reply = False
                return self._responses.cancel(event.response_id, now)
            case PlaybackAck():
                return self._responses.acked(event, now)
            case Advise():
                return [self._advise(event, now)]

    def _append(self, audio: bytes, now: float) -> list[Step]:
        info = self._shared.scope.info
        if "audio" not in info.inputs:
            if self._has_refused_sound:  # once a session: microphones append 50 times a second
                return []
            self._has_refused_sound = True
            raise ProtocolError(f"The model {info.name} does not hear: send text.")
        check("max_append_bytes", self.limits.max_append_bytes, len(audio))
        pcm16 = self._input_audio.pcm16(audio, self._shared.config.input_format)
        reply_is_heard = self._interrupts and self._responses.is_heard(now)
        return self._all_noticed(self._listener.append(pcm16, reply_is_heard), now)

    def _update(self, patch: SessionPatch, now: float) -> list[Step]:
        self._shared.config = updated(self._shared.config, patch, self._shared.scope)
        steps = self._all_noticed(self._listener.configure(self._shared.config.turn_detection), now)
        if not self._interrupts:
            steps += self._responses.release(now)
        return [*steps, self._session_event("session.updated")]

    def _advise(self, asked: Advise, now: float) -> Step:
        try:
            return self._advised(asked, now)
        except Throttled as error:
            return self._advisories.refused(asked, error)

    def _advised(self, asked: Advise | AdvisoryRequest, now: float) -> TurnAdvised:
        self._advisories.check(now)
        reply = self._responses.expected(self._read(ResponseParams())) if asked.prepare == "turn" else None
        return self._advisories.advise(asked, now, reply)

    # -- turns ---------------------------------------------------------------------------------------

    @property
    def _interrupts(self) -> bool:
        detection = self._shared.config.turn_detection
        return detection is not None and detection.interrupt_response

    def _all_noticed(self, noticed: list[Noticed], now: float) -> list[Step]:
        """What follows, in order; from the first long recording on, in `go_on`."""
        num_short = 0
        while num_short < len(noticed) and not self._is_long(_length_ms(noticed[num_short])):
            num_short += 1
        if rest := noticed[num_short:]:
            self._rest = lambda: self._effects([step for one in rest for step in self._noticed(one, now)])
        return [step for one in noticed[:num_short] for step in self._noticed(one, now)]

    def _is_long(self, length_ms: float) -> bool:
        """Is a recording of this length better resampled elsewhere?"""
        return self._postpones and length_ms >= LONG_MS

    def _noticed(self, noticed: Noticed, now: float) -> list[Step]:
        match noticed:
            case ReplyPaused():
                return self._responses.hold(now)
            case ReplyResumed():
                return [*self._responses.release(now), *self._owed()]
            case PushBegan():
                self._pushes.begin()
                return self._pushed(now)
            case PushOver():
                return [SpeechEnded(self.id)] if self._pushes.end() else []
            case SpeechBegan():
                return self._began(noticed, now)
            case SpeechPaused():
                foreseen = self._foreseen(lambda: self._items.spoken(noticed.audio, noticed.item_id).record)
                return [*foreseen, *self._words_wanted(noticed)]
            case SpeechContinues():
                return self._words_wanted(noticed)
            case SpeechOver():
                return self._over(noticed)

    def _pushed(self, now: float) -> list[Step]:
        """A client that commits by hand appends audio: the engine is told, unless that is too early."""
        return [SpeechStarted(self.id), *self._preface()] if self._pushes.tell(now) else []

    def _began(self, speech: SpeechBegan, now: float) -> list[Step]:
        self._responses.done_at = None
        self._owes_reply = False
        started: Payload = {
            "type": "input_audio_buffer.speech_started",
            "audio_start_ms": speech.audio_start_ms,
            "item_id": speech.item_id,
        }
        steps: list[Step] = [SpeechStarted(self.id), started, *self._preface()]
        return steps + (self._responses.interrupt(now) if self._interrupts else [])

    def _preface(self) -> list[Step]:
        """Instructions and tools, with which the first prompt begins; once, while they are the same."""
        config = self._shared.config
        reads_ahead = self._shared.scope.info.reads_ahead
        if not reads_ahead or len(self._shared.conversation) or self._prefaced == config:
            return []
        self._prefaced = config
        return self._foreseen(lambda: NOTHING_SAID)

    def _foreseen(self, item: Callable[[], Item]) -> list[Step]:
        """The turn as it will be if it ends here; nothing, where it could not be taken."""
        try:
            return [TurnForeseen(self.id, item(), self._responses.expected(self._read(ResponseParams())))]
        except (ProtocolError, LimitExceeded):
            return []

    def _words_wanted(self, speech: SpeechPaused | SpeechContinues) -> list[Step]:
        """Have the turn so far written down, where the session asks for its input in writing; nothing, where
        it could not be taken."""
        if self._shared.config.transcription is None:
            return []
        try:
            said = self._items.spoken(speech.audio, speech.item_id).record.parts
        except (ProtocolError, LimitExceeded):
            return []
        parts = tuple(part for part in said if isinstance(part, AudioPart))
        self._transcripts.expect(speech.item_id)
        return [WordsWanted(self.id, speech.item_id, parts, isinstance(speech, SpeechPaused))]

    def _over(self, speech: SpeechOver) -> list[Step]:
        stopped: Payload = {
            "type": "input_audio_buffer.speech_stopped",
            "audio_end_ms": speech.audio_end_ms,
            "item_id": speech.item_id,
        }
        steps: list[Step] = [stopped, SpeechEnded(self.id)]
        if speech.audio is None:
            return steps
        try:
            steps += self._items.commit(self._items.spoken(speech.audio, speech.item_id))
        except (ProtocolError, LimitExceeded) as error:
            return [*steps, _error(error)]
        detection = self._shared.config.turn_detection
        self._owes_reply = detection is not None and detection.create_response
        return [*steps, *self._owed()]

    def _owed(self, answers_silence: bool = False) -> list[Step]:
        """The reply to a turn that ended, once nothing is in its way."""
        if not self._owes_reply or self._responses.active is not None:
            return []
        self._owes_reply = False
        try:
            return self._create_response(ResponseParams(), answers_silence)
        except (ProtocolError, LimitExceeded) as error:
            return [_error(error)]

    def _clear(self, now: float) -> list[Step]:
        """Drop what was said; the engine learns that the turn it may be reading does not come."""
        dropped: list[Step] = []
        if self._listener.is_speaking and self._shared.scope.info.reads_ahead:
            dropped = [TurnDropped(self.id, self._listener.item_id)]
        steps = self._all_noticed(self._listener.clear(), now)
        self._items.drop()
        return [*steps, *dropped, {"type": "input_audio_buffer.cleared"}]

    def _commit(self, now: float) -> list[Step]:
        buffered_ms = self._listener.buffered_ms
        if buffered_ms < MIN_AUDIO_MS:
            raise ProtocolError(
                f"Error committing input audio buffer: buffer too small. Expected at least {MIN_AUDIO_MS}ms"
                f" of audio, but buffer only has {buffered_ms:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        item = self._items.spoken(self._listener.audio, self._listener.item_id)
        steps = self._all_noticed(self._listener.clear(), now)
        self._pushes.commit()
        return [*steps, *self._items.commit(item)]

    # -- replies -------------------------------------------------------------------------------------

    def _create_response(self, params: ResponseParams, answers_silence: bool = False) -> list[Step]:
        asked = self._read(params)
        if answers_silence:
            asked = replace(asked, answers_silence=True)
        self._responses.check_free(asked)
        self._items.check_room(sum(item.shown.media_bytes for item in asked.items or ()))
        return self._responses.create(asked)

    def _read(self, params: ResponseParams) -> AskedResponse:
        shared = self._shared
        return read_response(params, shared.config, shared.scope, shared.reader, shared.conversation)

    @property
    def _idle_at(self) -> float | None:
        """When a person who says nothing after a reply is spoken to."""
        detection, since = self._shared.config.turn_detection, self._responses.heard_until
        if detection is None or detection.idle_timeout_ms is None or since is None:
            return None
        if self._listener.is_speaking or self._responses.active is not None:
            return None
        return since + detection.idle_timeout_ms / 1000

    def _idle(self) -> list[Step]:
        """Nobody spoke: commit the silence and reply to it."""
        detection = self._shared.config.turn_detection
        assert detection is not None
        assert detection.idle_timeout_ms is not None
        self._responses.done_at = None
        end_ms, audio, item_id = self._listener.written_ms, self._listener.audio, self._listener.item_id
        self._listener.clear()
        triggered: Payload = {
            "type": "input_audio_buffer.timeout_triggered",
            "audio_start_ms": max(0, end_ms - detection.idle_timeout_ms),
            "audio_end_ms": end_ms,
            "item_id": item_id,
        }
        self._owes_reply = True
        try:
            committed = self._items.commit(self._items.spoken(audio, item_id)) if audio else []
        except (ProtocolError, LimitExceeded) as error:
            committed = [_error(error)]
        return [triggered, *committed, *self._owed(answers_silence=True)]

    # -- effects -------------------------------------------------------------------------------------

    def _session_event(self, kind: str) -> Payload:
        session = session_object(self._shared.config, self.id, self._shared.scope.info)
        return {"type": kind, "session": session}

    def _event(self, payload: Payload) -> ServerEvent:
        return ServerEvent({"event_id": self._shared.ids.new("event"), **payload})

    def _effects(self, steps: list[Step]) -> list[Effect]:
        return [self._event(step) if isinstance(step, dict) else ToEngine(step) for step in steps]


def _length_ms(noticed: Noticed) -> float:
    """Of the recording that has to be taken up."""
    audio = noticed.audio if isinstance(noticed, SpeechPaused | SpeechContinues | SpeechOver) else None
    return pcm16_ms(len(audio or b""))


def _error(error: AntiphonError, event_id: str | None = None) -> Payload:
    return {"type": "error", "error": {**error_object(error), "event_id": event_id}}
