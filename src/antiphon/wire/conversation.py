"""The client's view of the conversation: items in order, with the text a client may be shown again.

Media are not kept here: the engine's record holds them, and items are echoed without audio bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.core.errors import ProtocolError
from antiphon.wire.effects import Payload
from antiphon.wire.errors import shown

ROOT = "root"


@dataclass(slots=True)
class WireItem:
    """A message as clients see it. `media_bytes` is what it holds in the engine's record."""

    id: str
    role: str
    status: str
    content: list[Payload] = field(default_factory=list[Payload])
    media_bytes: int = 0

    def payload(self) -> Payload:
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
