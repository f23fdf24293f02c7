"""One response from `response.created` to its one `response.done`.

    WAITING --first output--> OPEN --terminal--> ENDED
       └──────────terminal─────────────────────────┘

The assistant's item opens with the first output, so a response that fails before it has none.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from antiphon.core.plans import Output, ResponseEnded
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.wire.audio import audio_deltas
from antiphon.wire.conversation import ROOT, Conversation, WireItem
from antiphon.wire.effects import Payload
from antiphon.wire.ports import Detokeniser
from antiphon.wire.response import ResponseSpec, response_object
from antiphon.wire.spoken import Spoken


class Phase(Enum):
    WAITING = "waiting"
    OPEN = "open"
    ENDED = "ended"


class Reply:
    """Turns engine outputs of one response into server events, in protocol order."""

    def __init__(self, spec: ResponseSpec, detokeniser: Detokeniser, conversation: Conversation) -> None:
        self.spec = spec
        self.spoken = Spoken(spec.id, spec.item_id, spec.config.speech)
        self.cancelled_by: str | None = None
        self.held: list[Output] | None = None
        """Outputs that wait while a voice over this reply is in doubt; None: there is no doubt."""
        self.phase = Phase.WAITING
        self._detokeniser = detokeniser
        self._conversation = conversation
        self._after = conversation.last_id or ROOT
        self._item = WireItem(spec.item_id, "assistant", "in_progress")
        self._ids = {
            "response_id": spec.id,
            "item_id": spec.item_id,
            "output_index": 0,
            "content_index": 0,
        }

    @property
    def is_remembered(self) -> bool:
        return self.spec.conversation_id is not None

    def created(self) -> Payload:
        return {"type": "response.created", "response": response_object(self.spec, [])}

    @property
    def is_cancelling(self) -> bool:
        """Cancelled here, and not yet ended by the engine."""
        return self.cancelled_by is not None

    def text(self, token_ids: list[int]) -> list[Payload]:
        """New tokens. Their text may come later: half a character is held back. A spoken reply that was
        cancelled says no more; a written one shows what the record will hold."""
        if self.is_cancelling and self.spec.config.speech:
            return []
        pieces = [self._detokeniser.push([token]) for token in token_ids]
        events = self._delta("".join(pieces))
        for piece in pieces:
            self.spoken.wrote(piece)
        return events

    def audio(self, samples: bytes, now: float) -> list[Payload]:
        """New audio, float32. After a cancel the client has stopped listening, and nothing more is sent."""
        if self.is_cancelling or not self.spec.config.speech:
            return []
        self.spoken.playback.sent(1000.0 * (len(samples) // 4) / WIRE_SAMPLE_RATE_HZ, now)
        deltas = audio_deltas(samples)
        events: list[Payload] = [self._event("response.output_audio.delta", delta=delta) for delta in deltas]
        return self._opened() + events if events else []

    def ended(self, end: ResponseEnded) -> list[Payload]:
        """The terminal events. A cancel stands even where the engine was done before it."""
        assert self.phase is not Phase.ENDED, "a response ends once"
        if self.is_cancelling and end.status != "failed":
            end = msgspec.structs.replace(end, status="cancelled", reason=self.cancelled_by)
        events: list[Payload] = []
        if not (self.is_cancelling and self.spec.config.speech):
            rest = self._detokeniser.flush()
            events += self._delta(rest)
            self.spoken.flushed(rest)
        if end.status in ("completed", "incomplete"):
            events += self._opened()
        output: list[Payload] = []
        if self.phase is Phase.OPEN:
            events += self._closed("completed" if end.status == "completed" else "incomplete")
            output = [self._item.payload()]
        self.phase = Phase.ENDED
        events.append({"type": "response.done", "response": response_object(self.spec, output, end)})
        return events

    def _event(self, kind: str, **fields: object) -> Payload:
        return {"type": kind, **self._ids, **fields}

    def _delta(self, text: str) -> list[Payload]:
        if not text:
            return []
        events = self._opened()
        kind = "output_audio_transcript" if self.spec.config.speech else "output_text"
        return [*events, self._event(f"response.{kind}.delta", delta=text)]

    def _opened(self) -> list[Payload]:
        """The events that open the item and its one content part, once."""
        if self.phase is Phase.OPEN:
            return []
        self.phase = Phase.OPEN
        events: list[Payload] = [self._item_event("response.output_item.added")]
        if self.is_remembered:
            previous = self._conversation.insert(self._item, self._place())
            events.append(self._conversation_event("conversation.item.added", previous))
        events.append(self._event("response.content_part.added", part=self._part()))
        return events

    def _place(self) -> str | None:
        """After the item that was last when the reply was asked for, as in the engine's record."""
        return self._after if self._after == ROOT or self._after in self._conversation else None

    def _closed(self, status: str) -> list[Payload]:
        """The events that close the content part, with all that was sent, and the item, as heard."""
        kind, field = ("output_audio", "transcript") if self.spec.config.speech else ("output_text", "text")
        self._item.status = status
        self._item.content = [{"type": kind, field: self.spoken.shown}]
        events: list[Payload] = []
        if self.spec.config.speech:
            events.append(self._event("response.output_audio.done"))
            events.append(self._event("response.output_audio_transcript.done", transcript=self.spoken.text))
        else:
            events.append(self._event("response.output_text.done", text=self.spoken.text))
        events.append(self._event("response.content_part.done", part=self._part()))
        if self.is_remembered:
            previous = self._conversation.previous_id(self._item.id)
            events.append(self._conversation_event("conversation.item.done", previous))
        events.append(self._item_event("response.output_item.done"))
        return events

    def _part(self) -> Payload:
        if self.spec.config.speech:
            return {"type": "audio", "transcript": self.spoken.text}
        return {"type": "text", "text": self.spoken.text}

    def _item_event(self, kind: str) -> Payload:
        return {"type": kind, "response_id": self.spec.id, "output_index": 0, "item": self._item.payload()}

    def _conversation_event(self, kind: str, previous: str | None) -> Payload:
        return {"type": kind, "previous_item_id": previous, "item": self._item.payload()}
