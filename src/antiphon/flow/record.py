"""The conversation record of one session: items in order, exact tokens of what was said."""

from __future__ import annotations

from antiphon.core.conversation import Item


class Record:
    """Items by id, in order. The wire checks what clients ask for; here a wrong id is ignored, not fatal."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

    @property
    def last_id(self) -> str:
        """Id of the last item, "root" if there is none."""
        return self._items[-1].id if self._items else "root"

    def add(self, item: Item, after: str | None) -> None:
        """Insert after item `after`; "root" is the front, None or an unknown id the end."""
        if after == "root":
            self._items.insert(0, item)
            return
        at = next((i for i, known in enumerate(self._items) if known.id == after), len(self._items) - 1)
        self._items.insert(at + 1, item)

    def remove(self, item_id: str) -> None:
        self._items = [item for item in self._items if item.id != item_id]
