"""The client's view of the conversation: items in order, with the text a client may be shown again.

Media are not kept here: the engine's record holds them, and items are echoed without audio bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.errors import ProtocolError
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown
from antiphon.wire.limits import Limits, MediaRoom

ROOT = "root"


@dataclass(slots=True)
class WireItem:
    """An item as clients see it.

    media_bytes  what it holds in the engine's record
    call         `type` and fields of a function call or its output; None: a message
    record_id    the record's item that it shows, if that has another id: a reply is one item of the record,
                 and clients see its words and each of its calls as items of their own
    """

    id: str
    role: str
    status: str
    content: list[Payload] = field(default_factory=list[Payload])
    media_bytes: int = 0
    call: Payload | None = None
    record_id: str | None = None

    @property
    def recorded_as(self) -> str:
        return self.record_id or self.id

    def payload(self) -> Payload:
        if self.call is not None:
            return {"id": self.id, "object": "realtime.item", "status": self.status, **self.call}
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [dict(part) for part in self.content],
        }


class Conversation:
    """Items by id, in order."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._items: dict[str, WireItem] = {}
        self._media_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    @property
    def last_id(self) -> str | None:
        return self._order[-1] if self._order else None

    @property
    def media_bytes(self) -> int:
        return self._media_bytes

    def media_room(self, limits: Limits) -> MediaRoom:
        """For media beside those that are here."""
        return MediaRoom(limits, "Delete items with audio or images first", self._media_bytes)

    def insert(self, item: WireItem, after: str | None = None) -> str | None:
        """Put the item after item `after` ("root" the front, None the end); returns the id before it."""
        at = len(self._order) if after is None else 0 if after == ROOT else self._order.index(after) + 1
        self._order.insert(at, item.id)
        self._items[item.id] = item
        self._media_bytes += item.media_bytes
        return self.previous_id(item.id)

    def previous_id(self, item_id: str) -> str | None:
        """The id before an item that is here."""
        at = self._order.index(item_id)
        return self._order[at - 1] if at else None

    def get(self, item_id: str, code: str) -> WireItem:
        """The item, or a ProtocolError with `code`."""
        if item_id not in self._items:
            raise ProtocolError(
                f"Item with item_id {shown(item_id)} does not exist.", code=code, param="item_id"
            )
        return self._items[item_id]

    def check_call(self, call_id: str) -> None:
        """Raise unless a call with that id is here, so that its output can be added."""
        calls = (item.call for item in self._items.values() if item.call is not None)
        if all(call["type"] != "function_call" or call["call_id"] != call_id for call in calls):
            raise ProtocolError(
                f"Tool call ID {shown(call_id)} not found in conversation.",
                code="invalid_tool_call_id",
                param="item.call_id",
            )

    def recorded_as(self, place: str | None) -> str | None:
        """A place for `insert` in terms of the record's items."""
        return self._items[place].recorded_as if place in self._items else place

    def shows(self, record_id: str) -> bool:
        """Is any of what the record's item holds still here?"""
        return any(item.recorded_as == record_id for item in self._items.values())

    def remove(self, item: WireItem) -> None:
        self._order.remove(item.id)
        del self._items[item.id]
        self._media_bytes -= item.media_bytes

    def check_place(self, after: str | None) -> None:
        """Raise unless `after` names a place."""
        if after is not None and after != ROOT and after not in self._items:
            raise ProtocolError(
                f"previous_item_id {shown(after)} does not exist; it is an item's id, 'root' (the front)"
                " or null (the end).",
                param="previous_item_id",
            )
