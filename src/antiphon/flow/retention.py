"""What a conversation that outgrew its model leaves behind: the oldest messages first."""

from __future__ import annotations

from antiphon.core.conversation import Item, ToolCallPart, ToolOutputPart, media_of, num_chars

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
