"""One realtime session: client frames and engine outputs in, effects out.

    NEW --start--> OPEN --close--> CLOSED

A client's mistake is answered with an `error` event and changes nothing; it never ends the session.
"""

from __future__ import annotations

from enum import Enum

from antiphon.core.conversation import AudioPart
from antiphon.core.errors import AntiphonError, LimitExceeded, ProtocolError, SessionGone
from antiphon.core.facts import (
    ItemAdded,
    ItemRemoved,
    PersonFact,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, Usage
from antiphon.core.units import pcm16_ms
from antiphon.wire.asked import Asked, read_response
from antiphon.wire.audio import InputAudio, encoder_for
from antiphon.wire.client_events import (
    AppendAudio,
    CancelResponse,
    ClearAudio,
    ClientEvent,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    ResponseParams,
    RetrieveItem,
    SessionUpdate,
)
from antiphon.wire.config import Scope, session_object, updated
from antiphon.wire.content import ItemReader, NewItem
from antiphon.wire.conversation import Conversation
from antiphon.wire.effects import Effect, Payload, ServerEvent, ToEngine
from antiphon.wire.errors import error_object
from antiphon.wire.limits import Limits, check
from antiphon.wire.parsing import client_event_id, decode_object, typed_event
from antiphon.wire.ports import DetokeniserFactory, Media
from antiphon.wire.reply import Reply
from antiphon.wire.response import ResponseSpec
from antiphon.wire.transcription import Transcripts

MIN_COMMIT_MS = 100


class Phase(Enum):
    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


class RealtimeSession:
    """The server's side of one client's conversation. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        info: ModelInfo,
        ids: IdSource,
        media: Media,
        detokenisers: DetokeniserFactory,
        limits: Limits | None = None,
    ) -> None:
        self.id = ids.new("sess")
        self.limits = limits or Limits()
        self.phase = Phase.NEW
        self._ids = ids
        self._scope = Scope(info, self.limits)
        self._reader = ItemReader(media, self.limits, ids)
        self._media = media
        self._input_audio = InputAudio(media)
        self._detokenisers = detokenisers
        self._transcripts = Transcripts(self.id, ids, detokenisers)
        self._config = self._scope.defaults
        self._conversation_id = ids.new("conv")
        self._conversation = Conversation()
        self._buffer = bytearray()
        self._replies: dict[str, Reply] = {}

    @property
    def num_open_responses(self) -> int:
        return len(self._replies)

    @property
    def buffered_audio_s(self) -> float:
        return pcm16_ms(len(self._buffer)) / 1000

    def start(self, now: float) -> list[Effect]:
        """Open the session, unprompted; once."""
        assert self.phase is Phase.NEW, f"start needs a new session, this one is {self.phase.value}"
        self.phase = Phase.OPEN
        return [ToEngine(SessionOpened(self.id)), self._event(self._session_event("session.created"))]

    def receive(self, frame: str | bytes, now: float) -> list[Effect]:
        """A client's frame. Whatever is in it, the answer is effects; SessionGone after close."""
        if self.phase is not Phase.OPEN:
            raise SessionGone(f"receive needs an open session, this one is {self.phase.value}")
        event_id = None
        try:
            raw = decode_object(frame, self.limits)
            event_id = client_event_id(raw)
            return self._handle(typed_event(raw))
        except (ProtocolError, LimitExceeded) as error:
            return [self.error(error, event_id)]

    def deliver(self, output: Output, now: float) -> list[Effect]:
        """An engine's output. Those of responses that are over are dropped."""
        if output.response in self._transcripts:
            return self._events(self._transcribed(output))
        reply = self._replies.get(output.response)
        if reply is None or self.phase is not Phase.OPEN:
            return []
        match output:
            case TokensOut():
                return self._events(reply.text(output.tokens[:, 0].tolist()) if is_text(output) else [])
            case AudioOut():
                return self._events(reply.audio(output.audio))
            case ResponseEnded():  # pragma: no branch
                del self._replies[output.response]
                return self._events(reply.ended(output))

    def abandon(self, reason: str, message: str, now: float) -> list[Effect]:
        """End all open responses and transcriptions as failed: the server cannot wait for them any longer."""
        effects: list[Effect] = []
        for response in list(self._replies):
            end = ResponseEnded(self.id, response, 0, "failed", reason, message, Usage())
            effects += [ToEngine(ResponseCancelled(self.id, response, reason)), *self.deliver(end, now)]
        for response in self._transcripts.open:
            end = ResponseEnded(self.id, response, 0, "failed", reason, message, Usage())
            effects += [ToEngine(ResponseCancelled(self.id, response, reason)), *self.deliver(end, now)]
        return effects

    def close(self, now: float) -> list[Effect]:
        """The client is gone; the engine frees all that is the session's. Harmless when repeated."""
        was_open, self.phase = self.phase is Phase.OPEN, Phase.CLOSED
        self._replies.clear()
        self._transcripts.clear()
        self._buffer.clear()
        return [ToEngine(SessionClosed(self.id))] if was_open else []

    def error(self, error: AntiphonError, event_id: str | None = None) -> ServerEvent:
        """The error as an event; `event_id` is the client's own."""
        return self._event({"type": "error", "error": {**error_object(error), "event_id": event_id}})

    def _handle(self, event: ClientEvent) -> list[Effect]:
        match event:
            case SessionUpdate():
                self._config = updated(self._config, event.session, self._scope)
                return self._events([self._session_event("session.updated")])
            case AppendAudio():
                return self._append(event.audio)
            case CommitAudio():
                return self._commit()
            case ClearAudio():
                self._buffer.clear()
                return self._events([{"type": "input_audio_buffer.cleared"}])
            case CreateItem():
                return self._create_item(event)
            case RetrieveItem():
                item = self._conversation.get(event.item_id, "item_retrieve_invalid_item_id")
                return self._events([{"type": "conversation.item.retrieved", "item": item.payload()}])
            case DeleteItem():
                return self._delete(event.item_id)
            case CreateResponse():
                return self._create_response(event.response or ResponseParams())
            case CancelResponse():  # pragma: no branch
                return self._cancel(event.response_id)

    def _append(self, audio: bytes) -> list[Effect]:
        check("max_append_bytes", self.limits.max_append_bytes, len(audio))
        audio = self._input_audio.pcm16(audio, self._config.input_format)
        total_s = pcm16_ms(len(self._buffer) + len(audio)) / 1000
        check("max_audio_s", self.limits.max_audio_s, total_s, "Commit or clear the input buffer first")
        self._buffer += audio
        return []

    def _commit(self) -> list[Effect]:
        buffered_ms = pcm16_ms(len(self._buffer))
        if buffered_ms < MIN_COMMIT_MS:
            raise ProtocolError(
                f"Error committing input audio buffer: buffer too small. Expected at least {MIN_COMMIT_MS}ms"
                f" of audio, but buffer only has {buffered_ms:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        self._check_room(0)
        item = self._reader.spoken(bytes(self._buffer))
        self._check_room(item.shown.media_bytes)
        self._buffer.clear()
        committed: Payload = {
            "type": "input_audio_buffer.committed",
            "previous_item_id": self._conversation.last_id,
            "item_id": item.shown.id,
        }
        return [self._event(committed), *self._insert(item, None), *self._transcribe(item)]

    def _transcribe(self, item: NewItem) -> list[Effect]:
        """Have what the person said written down, where the session asks for it."""
        asked, (part,) = self._config.transcription, item.record.parts
        if asked is None or not isinstance(part, AudioPart):
            return []
        return [ToEngine(self._transcripts.begin(item.shown, part, asked))]

    def _transcribed(self, output: Output) -> list[Payload]:
        match output:
            case TokensOut():
                return self._transcripts.tokens(output)
            case ResponseEnded():
                return self._transcripts.ended(output)
            case AudioOut():
                return []

    def _create_item(self, event: CreateItem) -> list[Effect]:
        self._check_room(0)
        message = self._reader.message(event.item, "item")
        if message.id is not None and self._is_taken(message.id):
            raise ProtocolError(
                f"Error adding item: an item with id '{message.id}' already exists.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        self._conversation.check_place(event.previous_item_id)
        item = self._reader.item(message, "item", self._config.input_format)
        self._check_room(item.shown.media_bytes)
        return self._insert(item, event.previous_item_id)

    def _insert(self, item: NewItem, after: str | None) -> list[Effect]:
        previous = self._conversation.insert(item.shown, after)
        kinds = ("conversation.item.added", "conversation.item.done")
        payload = item.shown.payload()
        events = self._events(
            [{"type": kind, "previous_item_id": previous, "item": payload} for kind in kinds]
        )
        place = self._conversation.recorded_as(after)
        return [ToEngine(ItemAdded(self.id, item.record, place)), *events]

    def _delete(self, item_id: str) -> list[Effect]:
        item = self._conversation.get(item_id, "item_delete_invalid_item_id")
        if any(reply.spec.item_id == item.recorded_as for reply in self._replies.values()):
            raise ProtocolError(
                "The item is still being generated; cancel its response first.", param="item_id"
            )
        self._conversation.remove(item)
        deleted: Payload = {"type": "conversation.item.deleted", "item_id": item_id}
        facts: list[PersonFact] = [*self._transcripts.forget(item_id)]
        if not self._conversation.shows(item.recorded_as):
            facts.append(ItemRemoved(self.id, item.recorded_as))
        return [*map(ToEngine, facts), self._event(deleted)]

    def _create_response(self, params: ResponseParams) -> list[Effect]:
        asked = read_response(params, self._config, self._scope, self._reader, self._conversation)
        if asked.remember and self._active is not None:
            raise ProtocolError(
                f"Conversation already has an active response in progress: {self._active.spec.id}."
                " Wait until the response is finished before creating a new one.",
                code="conversation_already_has_active_response",
            )
        check("max_open_responses", self.limits.max_open_responses, self.num_open_responses + 1)
        self._check_room(sum(item.shown.media_bytes for item in asked.items or ()))
        spec = ResponseSpec(
            self._ids.new("resp"),
            self._ids.new("item"),
            asked.config,
            self._conversation_id if asked.remember else None,
            asked.metadata,
        )
        encoder = encoder_for(spec.config.output_format, self._media)
        reply = Reply(spec, self._detokenisers(), self._conversation, encoder, self._ids.new)
        self._replies[spec.id] = reply
        return [ToEngine(self._request(spec, asked)), self._event(reply.created())]

    def _request(self, spec: ResponseSpec, asked: Asked) -> ResponseRequested:
        return ResponseRequested(
            session=self.id,
            response=spec.id,
            item_id=spec.item_id,
            speech=spec.config.speech,
            instructions=spec.config.instructions,
            voice=self._scope.speaker(spec.config),
            max_tokens=spec.config.max_output_tokens,
            remember=asked.remember,
            items=None if asked.items is None else tuple(item.record for item in asked.items),
            tools=tuple(tool.schema() for tool in spec.config.tools),
            tool_choice=spec.config.tool_choice,
        )

    def _cancel(self, response_id: str | None) -> list[Effect]:
        reply = self._active if response_id is None else self._replies.get(response_id)
        if reply is None or reply.is_cancelling:
            raise ProtocolError(
                "Cancellation failed: no active response found.",
                code="response_cancel_not_active",
                param=None if response_id is None else "response_id",
            )
        reply.is_cancelling = True
        return [ToEngine(ResponseCancelled(self.id, reply.spec.id))]

    @property
    def _active(self) -> Reply | None:
        """The conversation's own response; out-of-band ones run beside it."""
        return next((reply for reply in self._replies.values() if reply.is_remembered), None)

    def _is_taken(self, item_id: str) -> bool:
        """Ids of items, and those kept for replies that have not begun."""
        replies = self._replies.values()
        return item_id in self._conversation or any(reply.spec.item_id == item_id for reply in replies)

    def _check_room(self, media_bytes: int) -> None:
        """Room for one more item with so many media bytes, beside the replies that will become items."""
        num_items = len(self._conversation) + len(self._replies) + 1
        check("max_items", self.limits.max_items, num_items, "Delete items first")
        total = self._conversation.media_bytes + media_bytes
        check(
            "max_media_bytes", self.limits.max_media_bytes, total, "Delete items with audio or images first"
        )

    def _session_event(self, kind: str) -> Payload:
        return {"type": kind, "session": session_object(self._config, self.id, self._scope.info)}

    def _event(self, payload: Payload) -> ServerEvent:
        return ServerEvent({"event_id": self._ids.new("event"), **payload})

    def _events(self, payloads: list[Payload]) -> list[Effect]:
        return [self._event(payload) for payload in payloads]


def is_text(output: TokensOut) -> bool:
    """Codec frames have one column a codebook; text has one."""
    return output.tokens.shape[1] == 1
