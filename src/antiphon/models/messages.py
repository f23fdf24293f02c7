"""From items of the record to the messages and tools that a chat template takes.

What a person typed never meets the template: a slot stands for it. Tools, and the arguments of calls, do,
because templates look inside; their text is guarded so that it cannot become a special token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Item,
    Media,
    Part,
    TextPart,
    TokensPart,
    ToolCallPart,
    ToolOutputPart,
)
from antiphon.core.errors import ProtocolError

Message = dict[str, Any]
Slotted = TextPart | TokensPart

# Stands for the n-th text or reply while the template runs, so the template never sees what a person typed.
# Private-use characters: a template has no reason to hold them.
SLOT = "\ue000{}\ue001"
SLOT_PATTERN = "\ue000([0-9]+)\ue001"
_MARK = "\ue002"
_GUARDED = re.compile(f"(.){_MARK}", re.DOTALL)


def kind_of(part: Media) -> str:
    """audio | image | video"""
    if isinstance(part, AudioPart):
        return "audio"
    return "image" if isinstance(part, ImagePart) else "video"


class Guard:
    """Breaks names of special tokens in text, by a mark after their first character, and mends them."""

    def __init__(self, names: Iterable[str]) -> None:
        risky = [_MARK, SLOT[0], *sorted(names, key=len, reverse=True)]
        self._risky = re.compile("|".join(map(re.escape, risky)))

    def broken(self, value: Any) -> Any:
        """A JSON value with every text in it broken."""
        if isinstance(value, str):
            return self._risky.sub(lambda found: found[0][0] + _MARK + found[0][1:], value)
        if isinstance(value, dict):
            return {self.broken(key): self.broken(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.broken(inner) for inner in value]
        return value

    @staticmethod
    def mended(text: str) -> str:
        """The text as it was before it was broken."""
        return _GUARDED.sub(r"\1", text)


def to_tools(tools: tuple[str, ...], guard: Guard) -> list[dict[str, Any]] | None:
    """The template's `tools`; None where there are none. Raises ProtocolError."""
    try:
        parsed = [json.loads(tool) for tool in tools]
        return guard.broken(parsed) or None
    except ValueError as error:
        raise ProtocolError(f"a tool is not valid JSON: {error}") from None
    except RecursionError:
        raise _too_deep("a tool is") from None


def tool_name(tool: dict[str, Any]) -> str:
    """The name in a tool's schema, "" where it has none."""
    return str(tool.get("function", tool).get("name", ""))


def to_messages(items: tuple[Item, ...], guard: Guard) -> tuple[list[Message], list[Slotted]]:
    """Messages with slots for all text, and what belongs in the slots, in order.

    A call that a client wrote joins the assistant's message before it: one turn of the assistant is one
    message, as the model has learned it.
    """
    slots: list[Slotted] = []
    messages: list[Message] = []
    for item in items:
        calls = [part for part in item.parts if isinstance(part, ToolCallPart)]
        others = tuple(part for part in item.parts if not isinstance(part, ToolCallPart))
        follows = messages and messages[-1]["role"] == "assistant"
        if not (calls and follows and not others):
            messages.append({"role": item.role, "content": _content(others, slots, brief=bool(calls))})
        if calls:
            messages[-1].setdefault("tool_calls", []).extend(_call(call, slots, guard) for call in calls)
    return messages, slots


def _content(parts: tuple[Part, ...], slots: list[Slotted], *, brief: bool) -> str | list[dict[str, str]]:
    """`brief`: empty text is left out, since before a call a template asks whether there is any."""
    entries: list[dict[str, str]] = []
    for part in parts:
        if isinstance(part, Media):
            kind = kind_of(part)
            entries.append({"type": kind, kind: ""})
        elif isinstance(part, ToolOutputPart):
            entries.append({"type": "text", "text": _slot(TextPart(part.output), slots)})
        elif isinstance(part, TextPart | TokensPart) and (num_units(part) or not brief):
            entries.append({"type": "text", "text": _slot(part, slots)})
    if all(entry["type"] == "text" for entry in entries):
        return "".join(entry["text"] for entry in entries)
    return entries


def _slot(part: Slotted, slots: list[Slotted]) -> str:
    slots.append(part)
    return SLOT.format(len(slots) - 1)


def _call(call: ToolCallPart, slots: list[Slotted], guard: Guard) -> dict[str, Any]:
    """As templates take calls: arguments parsed, or as text where they are no JSON object."""
    name = _slot(TextPart(call.name), slots)
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    except RecursionError:
        raise _too_deep("a call's arguments are") from None
    known = arguments if isinstance(arguments, dict) else call.arguments
    try:
        broken = guard.broken(known)
    except RecursionError:
        raise _too_deep("a call's arguments are") from None
    return {"type": "function", "function": {"name": name, "arguments": broken}}


def _too_deep(what: str) -> ProtocolError:
    return ProtocolError(f"{what} nested too deeply")


def check_items(items: tuple[Item, ...]) -> None:
    """Who may say what; raises ProtocolError."""
    if not any(map(_says_something, items)):
        raise ProtocolError("there is nothing to answer: the conversation has no content")
    for item in items:
        for part in item.parts:
            if isinstance(part, Media) and item.role != "user":
                kind = {"audio": "audio", "image": "an image", "video": "a video"}[kind_of(part)]
                raise ProtocolError(f"item {item.id}: {kind} can only be in a user item, not in {item.role}")
            _check(part, TokensPart, "token ids", item, "assistant")
            _check(part, ToolCallPart, "a tool call", item, "assistant")
            _check(part, ToolOutputPart, "a tool's output", item, "tool")


def _check(part: Part, kind: type[Part], what: str, item: Item, role: str) -> None:
    if isinstance(part, kind) and item.role != role:
        article = "an" if role == "assistant" else "a"
        raise ProtocolError(f"item {item.id}: {what} can only be in {article} {role} item")


def _says_something(item: Item) -> bool:
    return any(not isinstance(part, TextPart | TokensPart) or num_units(part) for part in item.parts)


def num_units(part: Slotted) -> int:
    """Characters of a text, tokens of a reply."""
    return len(part.text if isinstance(part, TextPart) else part.token_ids)


Template = Callable[[list[Message], list[dict[str, Any]] | None, dict[str, Any]], str]
"""From messages, tools and further variables to the prompt's text."""
