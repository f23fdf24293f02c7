"""`response.create`, read: what the client asks for over the session's settings."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.conversation import Item
from antiphon.core.errors import ProtocolError
from antiphon.wire.client_events import ResponseParams, Strict
from antiphon.wire.config import Scope, SessionConfig, overridden, with_output
from antiphon.wire.content import ItemIn, ItemReader, NewItem
from antiphon.wire.conversation import Conversation, WireItem
from antiphon.wire.errors import shown
from antiphon.wire.input_settings import Incoming
from antiphon.wire.limits import MediaRoom, check
from antiphon.wire.parsing import converted
from antiphon.wire.tools import check_required

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """One response as asked for. `items` replaces the conversation as input; `answers_silence`: it is wanted
    even where nobody spoke, since it has instructions of its own."""

    config: SessionConfig
    remember: bool
    items: tuple[NewItem, ...] | None
    metadata: dict[str, str] | None
    answers_silence: bool = False


def read_response(
    params: ResponseParams,
    session: SessionConfig,
    scope: Scope,
    reader: ItemReader,
    conversation: Conversation,
) -> AskedResponse:
    """Check everything and decode inline input; raises before anything changes."""
    if params.conversation not in (None, "auto", "none"):
        raise ProtocolError(
            f"conversation is 'auto' or 'none'; got {shown(params.conversation)}.",
            param="response.conversation",
        )
    if params.output_modalities == ["audio"] and not scope.info.voices:
        raise ProtocolError(
            f"The model {scope.info.name} has no voice: output_modalities is ['text'], or left out.",
            param="response.output_modalities",
        )
    config = overridden(session, params, scope, session, "response")
    check_required(config.tool_choice, config.tools, "response.tool_choice")
    output = params.audio.output if params.audio else None
    config = with_output(config, output, session, "response")
    _check_metadata(params.metadata)
    items = None
    if params.input is not None:
        check("max_parts", scope.limits.max_parts, len(params.input), "response.input has too many items")
        room = conversation.media_room(scope.limits)
        inputs = Inputs(reader, conversation, session.incoming, room)
        items = inputs.read(params.input)
    is_told = bool(params.instructions)
    return AskedResponse(config, params.conversation != "none", items, params.metadata, is_told)


class ItemReference(Strict, frozen=True, kw_only=True):
    """An item of the conversation, by its id."""

    type: str
    id: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """Reads `response.input`: items of its own, and references to those of the conversation."""

    reader: ItemReader
    conversation: Conversation
    incoming: Incoming
    room: MediaRoom

    def read(self, raw: list[dict[str, object]]) -> tuple[NewItem, ...]:
        """All are checked before any media are decoded, which take the conversation's room together."""
        places = [f"response.input[{index}]" for index in range(len(raw))]
        checked = [self._checked(item, at) for item, at in zip(raw, places, strict=True)]
        items = [
            item if isinstance(item, NewItem) else self.reader.item(item, at, self.room, self.incoming)
            for item, at in zip(checked, places, strict=True)
        ]
        # the words and the calls of one reply are one item of the record
        return tuple(item for i, item in enumerate(items) if not i or not _repeats(item, items[i - 1]))

    def _checked(self, raw: dict[str, object], at: str) -> ItemIn | NewItem:
        if raw.get("type") != "item_reference":
            return self.reader.message(raw, at)
        item_id = converted(raw, ItemReference, at).id
        if item_id not in self.conversation:
            raise ProtocolError(f"Item {shown(item_id)} does not exist.", param=f"{at}.id")
        item = self.conversation.get(item_id, "")
        kept = WireItem(item.id, item.role, item.status)  # its media are counted already
        return NewItem(kept, Item(item.recorded_as, "user", ()))


def _repeats(item: NewItem, before: NewItem) -> bool:
    return not item.record.parts and item.record == before.record


def _check_metadata(metadata: dict[str, str] | None) -> None:
    pairs = metadata or {}
    check("max_metadata_pairs", MAX_METADATA_PAIRS, len(pairs))
    check("max_metadata_key_chars", MAX_METADATA_KEY_CHARS, max(map(len, pairs.keys()), default=0))
    check("max_metadata_value_chars", MAX_METADATA_VALUE_CHARS, max(map(len, pairs.values()), default=0))
