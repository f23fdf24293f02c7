"""Traces that are JSON: Mooncake (a request a line) and ShareGPT (a list of conversations)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from antiphon.workload.fitted import TOKENS_PER_WORD
from antiphon.workload.trace_rows import Row, TracePosition

BLOCK_TOKENS = 512
"""Tokens behind each of Mooncake's hash_ids."""

MIN_BLOCKS = 2
"""Block 0 is a system prompt that all requests share: one block in common says nothing."""


def mooncake(path: Path) -> Iterator[Row]:
    """Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids.

    The format names no sessions. A request goes on from the latest earlier one whose full blocks (two or
    more) are a prefix of its own, the longest such, if that one's prompt and reply are shorter than its own
    prompt.
    """
    parents = Parents()
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield parents.placed(request_of(TracePosition(path, line), text))


class Request:
    """One line of a Mooncake trace."""

    def __init__(self, time_ms: float, input_tokens: int, output_tokens: int, blocks: list[int]) -> None:
        self.time_ms = time_ms
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.session = 0


def request_of(place: TracePosition, text: str) -> Request:
    expected = '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}'
    try:
        data: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise place.wrong(f"no JSON ({error.msg})", expected) from None
    fields = mapping(data)
    for name in ("timestamp", "input_length", "output_length"):
        if name not in fields:
            raise place.wrong(f"no {name!r} in {text.strip()[:60]!r}", expected)
    blocks: Any = fields.get("hash_ids", [])
    if not isinstance(blocks, list):
        raise place.wrong(f"hash_ids is {blocks!r}", "a list of numbers")
    return Request(
        place.number("timestamp", fields["timestamp"]),
        place.count("input_length", fields["input_length"]),
        place.count("output_length", fields["output_length"]),
        [place.count("hash_ids", block) for block in cast(list[Any], blocks)],
    )


class Parents:
    """Requests seen so far, by their last full block (a block's id stands for its whole prefix)."""

    def __init__(self) -> None:
        self._by_last: dict[int, list[Request]] = {}
        self._num_sessions = 0
        self._first_ms: float | None = None

    def placed(self, request: Request) -> Row:
        """The row of this request, in its parent's session or one of its own."""
        parent = self._parent(request)
        if parent is None:
            request.session, self._num_sessions = self._num_sessions, self._num_sessions + 1
        else:
            request.session = parent.session
        num_full = min(request.input_tokens // BLOCK_TOKENS, len(request.blocks))
        if num_full >= MIN_BLOCKS:
            self._by_last.setdefault(request.blocks[num_full - 1], []).append(request)
        self._first_ms = request.time_ms if self._first_ms is None else self._first_ms
        return Row(
            arrival_s=max(0.0, request.time_ms - self._first_ms) / 1000,
            session=str(request.session),
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
        )

    def _parent(self, request: Request) -> Request | None:
        for block in reversed(request.blocks[MIN_BLOCKS - 1 :]):
            for earlier in reversed(self._by_last.get(block, ())):
                shorter = earlier.input_tokens + earlier.output_tokens < request.input_tokens
                if shorter and earlier.time_ms < request.time_ms:
                    return earlier
        return None


def sharegpt(path: Path) -> Iterator[Row]:
    """ShareGPT's JSON: conversations of messages by human (or user) and gpt. No times; tokens from words."""
    for index, (place, entry) in enumerate(entries(path)):
        fields = mapping(entry)
        messages = fields.get("conversations")
        if not isinstance(messages, list):
            raise place.wrong(f"an entry that is {str(entry)[:60]!r}", '{"conversations": [...]}')
        asked: str | None = None
        for message in cast(list[Any], messages):
            who, text = message_of(place, message)
            if who in ("human", "user"):
                asked = text
            elif asked is not None and who in ("gpt", "chatgpt", "assistant", "bard", "bing"):
                yield turn_of(str(index), asked, text)
                asked = None


def turn_of(session: str, asked: str, answered: str) -> Row:
    return Row(
        session=session,
        input_tokens=max(1, round(len(asked.split()) * TOKENS_PER_WORD)),
        output_tokens=max(1, round(len(answered.split()) * TOKENS_PER_WORD)),
        has_history=False,
        text=" ".join(asked.split()),
    )


def message_of(place: TracePosition, message: Any) -> tuple[str, str]:
    fields = mapping(message)
    who, text = fields.get("from"), fields.get("value")
    if not isinstance(who, str) or not isinstance(text, str):
        raise place.wrong(
            f"a message that is {str(message)[:60]!r}", '{"from": "human" or "gpt", "value": text}'
        )
    return who, text


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object as it is, anything else as one without fields."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def entries(path: Path) -> Iterator[tuple[TracePosition, Any]]:
    """The items of a JSON list, each with the line on which it begins."""
    text = path.read_text(encoding="utf-8-sig")
    decoder, at, line, counted = json.JSONDecoder(), skipped(text, 0), 1, 0
    if text[at : at + 1] != "[":
        raise TracePosition(path, 1).wrong(f"{text[at : at + 20]!r}", "a JSON list of conversations")
    at = skipped(text, at + 1)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            entry, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TracePosition(path, error.lineno).wrong(
                f"no JSON ({error.msg})", "a conversation"
            ) from None
        yield TracePosition(path, line), entry
        at = skipped(text, at)
        if text[at : at + 1] not in (",", "]"):
            at_line = line + text.count("\n", counted, at)
            raise TracePosition(path, at_line).wrong(
                f"{text[at : at + 20]!r}", "`,` or `]` after a conversation"
            )
        at = skipped(text, at + 1) if text[at] == "," else at


def skipped(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
