"""The conversation record of one session: items in order, exact tokens of what was said, and what of it was
heard."""

from __future__ import annotations

import msgspec

from antiphon.core.conversation import Item, TokensPart


class Record:
    """Items by id, in order. The wire checks what clients ask for; here a wrong id is ignored, not fatal."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._cuts: dict[str, int] = {}
        self._left_behind: set[str] = set()

    @property
    def items(self) -> tuple[Item, ...]:
        """What the next prompt is made of: replies up to where they were heard, unheard ones left out, and
        nothing that was left behind."""
        heard = (self._heard(item) for item in self._items if item.id not in self._left_behind)
        return tuple(item for item in heard if item is not None)

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

    def resolved(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """Items with those of the record in place of their names; unheard or unknown ones stay empty."""
        known = {item.id: item for item in self.items}
        return tuple(item if item.parts else known.get(item.id, item) for item in items)

    def remove(self, item_id: str) -> None:
        self._items = [item for item in self._items if item.id != item_id]
        self._cuts.pop(item_id, None)
        self._left_behind.discard(item_id)

    def leave_behind(self, item_ids: set[str]) -> None:
        """No room for these any more, in this prompt and those to come."""
        self._left_behind |= item_ids

    def cut(self, item_id: str, num_tokens: int) -> None:
        """Of this reply only so many tokens were heard. All tokens are kept: a later cut may be longer."""
        self._cuts[item_id] = num_tokens

    def _heard(self, item: Item) -> Item | None:
        num_tokens = self._cuts.get(item.id)
        if num_tokens is None:
            return item
        if num_tokens <= 0:
            return None
        parts = tuple(
            TokensPart(part.token_ids[:num_tokens]) if isinstance(part, TokensPart) else part
            for part in item.parts
        )
        return msgspec.structs.replace(item, parts=parts)
