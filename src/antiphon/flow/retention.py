"""What a conversation that outgrew its model leaves behind: the oldest messages first."""

from __future__ import annotations

from antiphon.core.conversation import Item, ToolCallPart, ToolOutputPart


def shortened(items: tuple[Item, ...]) -> tuple[Item, ...] | None:
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
