"""The items that one reply becomes: messages and function calls, each as the events clients see of it."""

from __future__ import annotations

from antiphon.wire.audio import framed
from antiphon.wire.conversation import Conversation, WireItem
from antiphon.wire.effects import Payload
from antiphon.wire.input_settings import AudioFormat


class OutputItem:
    """One item of a response. `conversation` None: it stays out of the conversation."""

    def __init__(
        self, response_id: str, index: int, item: WireItem, conversation: Conversation | None
    ) -> None:
        self.item = item
        self._response_id = response_id
        self._index = index
        self._conversation = conversation
        self._ids: Payload = {"response_id": response_id, "item_id": item.id, "output_index": index}

    def added(self, after: str | None) -> list[Payload]:
        """The item opens, after another one of the conversation."""
        events: list[Payload] = [self._item_event("response.output_item.added")]
        if self._conversation is not None:
            previous = self._conversation.insert(self.item, after)
            events.append(self._conversation_event("conversation.item.added", previous))
        return events

    def done(self) -> list[Payload]:
        """The item is as it will stay."""
        events: list[Payload] = []
        if self._conversation is not None:
            previous = self._conversation.previous_id(self.item.id)
            events.append(self._conversation_event("conversation.item.done", previous))
        return [*events, self._item_event("response.output_item.done")]

    def _item_event(self, kind: str) -> Payload:
        return {
            "type": kind,
            "response_id": self._response_id,
            "output_index": self._index,
            "item": self.item.payload(),
        }

    def _conversation_event(self, kind: str, previous: str | None) -> Payload:
        return {"type": kind, "previous_item_id": previous, "item": self.item.payload()}


class MessageItem(OutputItem):
    """Words, in one content part. `is_spoken`: audio goes with them, and they are its transcript."""

    def __init__(
        self, response_id: str, index: int, item: WireItem, conversation: Conversation | None, is_spoken: bool
    ) -> None:
        super().__init__(response_id, index, item, conversation)
        self.is_spoken = is_spoken
        self.text = ""
        self._ids["content_index"] = 0

    def opened(self, after: str | None) -> list[Payload]:
        return [*self.added(after), self._event("response.content_part.added", part=self._part())]

    def delta(self, text: str) -> list[Payload]:
        """More words."""
        self.text += text
        kind = "output_audio_transcript" if self.is_spoken else "output_text"
        return [self._event(f"response.{kind}.delta", delta=text)]

    def audio(self, audio: bytes, audio_format: AudioFormat) -> list[Payload]:
        """More sound, in the client's format."""
        deltas = framed(audio, audio_format)
        return [self._event("response.output_audio.delta", delta=delta) for delta in deltas]

    def closed(self, status: str, heard: str | None) -> list[Payload]:
        """The content part with all that was sent; the item with what of it was `heard`, None for all."""
        kind, field = ("output_audio", "transcript") if self.is_spoken else ("output_text", "text")
        self.item.status = status
        is_cut = self.is_spoken and heard is not None
        self.item.content = [{"type": kind, field: heard if is_cut else self.text}]
        events: list[Payload] = []
        if self.is_spoken:
            events.append(self._event("response.output_audio.done"))
            events.append(self._event("response.output_audio_transcript.done", transcript=self.text))
        else:
            events.append(self._event("response.output_text.done", text=self.text))
        events.append(self._event("response.content_part.done", part=self._part()))
        return [*events, *self.done()]

    def _event(self, kind: str, **fields: object) -> Payload:
        return {"type": kind, **self._ids, **fields}

    def _part(self) -> Payload:
        if self.is_spoken:
            return {"type": "audio", "transcript": self.text}
        return {"type": "text", "text": self.text}


class CallItem(OutputItem):
    """A function call. Its arguments stay empty in the item until they are whole."""

    def __init__(
        self,
        response_id: str,
        index: int,
        item: WireItem,
        conversation: Conversation | None,
        call: tuple[str, str],
    ) -> None:
        """`call` is the function's name and the call's id."""
        super().__init__(response_id, index, item, conversation)
        self._name, self._call_id = call
        self._arguments = ""
        self._show("")

    def delta(self, arguments: str) -> list[Payload]:
        self._arguments += arguments
        return [self._event("response.function_call_arguments.delta", delta=arguments)]

    def closed(self, status: str) -> list[Payload]:
        self.item.status = status
        self._show(self._arguments)
        done = self._event(
            "response.function_call_arguments.done", arguments=self._arguments, name=self._name
        )
        return [done, *self.done()]

    def _event(self, kind: str, **fields: object) -> Payload:
        return {"type": kind, **self._ids, "call_id": self._call_id, **fields}

    def _show(self, arguments: str) -> None:
        self.item.call = {
            "type": "function_call",
            "name": self._name,
            "call_id": self._call_id,
            "arguments": arguments,
        }
