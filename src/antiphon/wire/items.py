"""What clients do with the conversation's items, under the limits."""

from __future__ import annotations

from antiphon.core.conversation import AudioPart
from antiphon.core.errors import ProtocolError
from antiphon.core.facts import ItemAdded, ItemRemoved
from antiphon.wire.client_events import CreateItem, RetrieveItem
from antiphon.wire.content import CallOutputIn, NewItem
from antiphon.wire.effects import Payload, Step
from antiphon.wire.limits import MediaRoom, check
from antiphon.wire.responses import Responses, Shared
from antiphon.wire.transcription import SessionTranscriptions


class Items:
    """Adds, shows and removes; the engine's record follows by facts."""

    def __init__(self, shared: Shared, responses: Responses, transcripts: SessionTranscriptions) -> None:
        self._shared, self._responses, self._transcripts = shared, responses, transcripts
        self._spoken: tuple[tuple[object, ...], NewItem] | None = None
        """What was spoken last, until it is over: its item, length and transcription, and what
        was made of it."""

    def create(self, event: CreateItem) -> list[Step]:
        self.check_room(0)
        message = self._shared.reader.message(event.item, "item")
        if message.id is not None and self._is_taken(message.id):
            raise ProtocolError(
                f"Error adding item: an item with id '{message.id}' already exists.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        self._shared.conversation.check_place(event.previous_item_id)
        if isinstance(message, CallOutputIn):
            self._shared.conversation.check_call(message.call_id)
        item = self._shared.reader.item(message, "item", self._room, self._shared.config.incoming)
        self.check_room(item.shown.media_bytes)
        return self._insert(item, event.previous_item_id)

    def spoken(self, audio: bytes, item_id: str) -> NewItem:
        """Spoken audio as the user's message; raises where there is no room for it. All recordings of an item
        begin with the same sound: one of the same length is the same."""
        self.check_room(0)
        asked = self._shared.config.transcription
        known = item_id, len(audio), asked
        if self._spoken is not None and self._spoken[0] == known:
            item = self._spoken[1]
        else:
            item = self._shared.reader.spoken(audio, item_id, asked)
        self._spoken = known, item
        self.check_room(item.shown.media_bytes)
        return item

    def commit(self, item: NewItem) -> list[Step]:
        """The spoken message goes to the end. Its sound is the engine's from then on."""
        self._spoken = None
        committed: Payload = {
            "type": "input_audio_buffer.committed",
            "previous_item_id": self._shared.conversation.last_id,
            "item_id": item.shown.id,
        }
        return [committed, *self._insert(item, None), *self._transcribe(item)]

    def drop(self) -> None:
        """What was spoken so far becomes no message."""
        self._spoken = None
        self._transcripts.drop()

    def retrieve(self, event: RetrieveItem) -> list[Step]:
        item = self._shared.conversation.get(event.item_id, "item_retrieve_invalid_item_id")
        return [{"type": "conversation.item.retrieved", "item": item.payload()}]

    def delete(self, item_id: str) -> list[Step]:
        item = self._shared.conversation.get(item_id, "item_delete_invalid_item_id")
        if item.recorded_as in self._responses.item_ids:
            raise ProtocolError(
                "The item is still being generated; cancel its response first.", param="item_id"
            )
        self._shared.conversation.remove(item)
        self._responses.forget(item_id)
        deleted: Payload = {"type": "conversation.item.deleted", "item_id": item_id}
        steps: list[Step] = [*self._transcripts.forget(item_id)]
        if not self._shared.conversation.shows(item.recorded_as):
            steps.append(ItemRemoved(self._shared.session, item.recorded_as))
        return [*steps, deleted]

    def check_room(self, media_bytes: int) -> None:
        """Room for one more item with so many media bytes, beside the replies that will become items."""
        limits, conversation = self._shared.limits, self._shared.conversation
        num_items = len(conversation) + len(self._responses) + 1
        check("max_items", limits.max_items, num_items, "Delete items first")
        self._room.check(media_bytes)

    @property
    def _room(self) -> MediaRoom:
        return self._shared.conversation.media_room(self._shared.limits)

    def _insert(self, item: NewItem, after: str | None) -> list[Step]:
        previous = self._shared.conversation.insert(item.shown, after)
        kinds = ("conversation.item.added", "conversation.item.done")
        payload = item.shown.payload()
        events: list[Step] = [{"type": kind, "previous_item_id": previous, "item": payload} for kind in kinds]
        place = self._shared.conversation.recorded_as(after)
        return [ItemAdded(self._shared.session, item.record, place), *events]

    def _transcribe(self, item: NewItem) -> list[Step]:
        """Have what the person said written down, where the session asks for it."""
        asked = self._shared.config.transcription
        parts = tuple(part for part in item.record.parts if isinstance(part, AudioPart))
        return [] if asked is None else [self._transcripts.begin(item.shown, parts, asked)]

    def _is_taken(self, item_id: str) -> bool:
        """Ids of items, and those kept for replies that have not begun."""
        return item_id in self._shared.conversation or item_id in self._responses.item_ids
