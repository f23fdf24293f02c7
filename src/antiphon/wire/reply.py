"""One response from `response.created` to its one `response.done`.

    WAITING --first output--> OPEN --terminal--> ENDED
       └──────────terminal─────────────────────────┘

Items open with the first output, so a response that fails before it has none. The engine's record holds a
reply as one item; clients see its words as a message and each of its tool calls as an item of its own. A
spoken message stays open beside the calls that follow it, since its audio comes later than its words. The
record's item goes when the last of what clients see of it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from antiphon.core.plans import AudioOut, ResponseEnded, ResponseOutput
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.wire.conversation import ROOT, Conversation, WireItem
from antiphon.wire.effects import Payload
from antiphon.wire.outputs import CallItem, MessageItem
from antiphon.wire.ports import AudioEncoder, Detokeniser
from antiphon.wire.response import ResponseSpec, response_object
from antiphon.wire.spoken import Spoken
from antiphon.wire.tool_calls import Arguments, CallBegun, CallEnded, ParsedPiece, Text, call_parser


class ReplyPhase(Enum):
    WAITING = "waiting"
    OPEN = "open"
    ENDED = "ended"


class OpenReply:
    """Turns engine outputs of one response into server events, in protocol order."""

    def __init__(
        self,
        spec: ResponseSpec,
        detokeniser: Detokeniser,
        conversation: Conversation,
        encoder: AudioEncoder,
        new_id: Callable[[str], str],
        json_calls: bool = False,
    ) -> None:
        """json_calls: as `ModelInfo` has it."""
        self.spec = spec
        self.spoken = Spoken(spec.id, spec.item_id, spec.config.speech)
        self.cancelled_by: str | None = None
        self.held: list[ResponseOutput] | None = None
        """Outputs that wait while a voice over this reply is in doubt; None: there is no doubt."""
        self.phase = ReplyPhase.WAITING
        self._detokeniser = detokeniser
        self._conversation = conversation
        self._encoder = encoder
        self._new_id = new_id
        names = {tool.name for tool in spec.config.usable_tools}
        self._parser = call_parser(names, json_calls=json_calls) if names else None
        self._after = conversation.last_id or ROOT
        self._outputs: list[MessageItem | CallItem] = []
        self._message: MessageItem | None = None
        """The message that is open; `_call`: the call that is."""
        self._call: CallItem | None = None

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
        """New tokens. Their text may come later: half a character, or what may begin a call, is held back."""
        if self._is_mute:
            return []
        pieces = [self._detokeniser.push([token]) for token in token_ids]
        for piece in pieces:
            self.spoken.wrote(piece)
        return self._written("".join(pieces))

    def audio(self, output: AudioOut, now: float) -> list[Payload]:
        """New audio. After a cancel the client has stopped listening, and nothing more is sent."""
        if self.is_cancelling or not self.spec.config.speech:
            return []
        self.spoken.sounded((len(output.audio) // 4) / WIRE_SAMPLE_RATE_HZ, now)
        self.spoken.words += [(end / WIRE_SAMPLE_RATE_HZ, tokens) for tokens, end in output.words]
        return self._heard(self._encoder.push(output.audio))

    def ended(self, end: ResponseEnded) -> list[Payload]:
        """The terminal events. A cancel stands even where the engine was done before it."""
        assert self.phase is not ReplyPhase.ENDED, "a response ends once"
        if self.is_cancelling and end.status != "failed":
            end = msgspec.structs.replace(end, status="cancelled", reason=self.cancelled_by)
        events: list[Payload] = []
        if not self._is_mute:
            rest = self._detokeniser.flush()
            self.spoken.flushed(rest)
            events += self._written(rest)
        if self._parser is not None:
            events += self._pieces(self._parser.flush())
        if self._message is not None and self._message.is_spoken and not self.is_cancelling:
            events += self._heard(self._encoder.flush())
        if end.status in ("completed", "incomplete") and not self._outputs:
            events += self._open_message()
        events += self._close_message("completed" if end.status == "completed" else "incomplete")
        self.phase = ReplyPhase.ENDED
        output = [item.item.payload() for item in self._outputs]
        events.append({"type": "response.done", "response": response_object(self.spec, output, end)})
        return events

    @property
    def _is_mute(self) -> bool:
        """A spoken reply that was cancelled says no more. What is not cut shows what the record will hold."""
        return self.is_cancelling and self.spoken.cut is not None

    def _written(self, text: str) -> list[Payload]:
        if not text:
            return []
        return self._pieces([Text(text)] if self._parser is None else self._parser.push(text))

    def _pieces(self, pieces: list[ParsedPiece]) -> list[Payload]:
        return [event for piece in pieces for event in self._piece(piece)]

    def _piece(self, piece: ParsedPiece) -> list[Payload]:
        match piece:
            case Text():
                events = [] if self._message is not None else self._open_message()
                assert self._message is not None
                return events + self._message.delta(piece.text)
            case CallBegun():
                return self._open_call(piece.name)
            case Arguments():
                assert self._call is not None, "arguments are those of a call"
                return self._call.delta(piece.delta)
            case CallEnded():
                assert self._call is not None, "a call begins before it ends"
                call, self._call = self._call, None
                return call.closed("completed" if piece.is_complete else "incomplete")

    def _heard(self, audio: bytes) -> list[Payload]:
        """Audio belongs to the words before any call: there are no others that are spoken."""
        if not audio:
            return []
        events = [] if self._message is not None else self._open_message()
        assert self._message is not None
        return events + self._message.audio(audio, self.spec.config.output_format)

    def _open_message(self) -> list[Payload]:
        speaks = self.spec.config.speech and not self._outputs
        item, after = self._new_item(), self._place()
        message = MessageItem(self.spec.id, len(self._outputs), item, self._kept_in, speaks)
        self._message = message
        self._outputs.append(message)
        return message.opened(after)

    def _close_message(self, status: str) -> list[Payload]:
        message, self._message = self._message, None
        return [] if message is None else message.closed(status, self.spoken.shown)

    def _open_call(self, name: str) -> list[Payload]:
        waits = self._message is not None and self._message.is_spoken
        events = [] if waits else self._close_message("completed")
        item, after = self._new_item(), self._place()
        call = name, self._new_id("call")
        self.spoken.has_call = True
        self._call = CallItem(self.spec.id, len(self._outputs), item, self._kept_in, call)
        self._outputs.append(self._call)
        return events + self._call.added(after)

    def _new_item(self) -> WireItem:
        """The first has the id of the record's item; further ones have their own and know whose part they
        are."""
        self.phase = ReplyPhase.OPEN
        if not self._outputs:
            return WireItem(self.spec.item_id, "assistant", "in_progress")
        record_id = self.spec.item_id
        return WireItem(self._new_id("item"), "assistant", "in_progress", record_id=record_id)

    @property
    def _kept_in(self) -> Conversation | None:
        return self._conversation if self.is_remembered else None

    def _place(self) -> str | None:
        """After what came of the reply so far, or after the item that was last when it was asked for, as in
        the engine's record."""
        for output in reversed(self._outputs):
            if output.item.id in self._conversation:
                return output.item.id
        return self._after if self._after == ROOT or self._after in self._conversation else None
