"""The conversation record of one session: items in order, exact tokens of what was said, what of it was
heard, and what it leaves behind once it has outgrown its model: the oldest messages first."""

from __future__ import annotations

import msgspec

from antiphon.core.conversation import Item, TokensPart, ToolCallPart, ToolOutputPart, media_of, num_chars


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


SURE = 0.5
"""Of the text that is too much by its characters, what may go at once: some has more tokens than other."""
MOST_AT_ONCE = 64
"""Messages: each is a look at all of them, and others wait."""


def shortened(items: tuple[Item, ...], over: float = 1.0) -> tuple[Item, ...] | None:
    """Without the oldest message, and of a prompt that is `over` times too long without as many more as it is
    sure not to have room for, so that a long conversation is not rendered again for each. None: none may go.
    """
    kept = _without_oldest(items)
    if kept is None or not over > 1.0 or len(media_of(kept)) < len(media_of(items)):
        return kept
    num_before = sum(map(num_chars, items))
    surplus = SURE * (1.0 - 1.0 / over) * num_before - (num_before - sum(map(num_chars, kept)))
    for _ in range(MOST_AT_ONCE):
        fewer = _without_oldest(kept)
        if fewer is None:
            break
        stays = {item.id for item in fewer}
        gone = tuple(item for item in kept if item.id not in stays)
        surplus -= sum(map(num_chars, gone))
        if surplus < 0 or media_of(gone):
            break
        kept = fewer
    return kept


def _without_oldest(items: tuple[Item, ...]) -> tuple[Item, ...] | None:
    """Without the oldest message that may go: not a system message, and not the last of all.

    The outputs of tools that it called go with it, since they answer nothing without it. None: none may go.
    """
    first = next((at for at, item in enumerate(items[:-1]) if item.role != "system"), None)
    if first is None:
        return None
    calls = {part.call_id for part in items[first].parts if isinstance(part, ToolCallPart)}
    end = first + 1
    while end < len(items) and items[end].role == "tool":
        end += 1
    kept = (*items[:first], *(item for item in items[end:] if not _answers(item, calls)))
    return kept if kept and kept[-1] == items[-1] else None


def _answers(item: Item, calls: set[str]) -> bool:
    return any(isinstance(part, ToolOutputPart) and part.call_id in calls for part in item.parts)
