"""Calls in a reply's text: told apart while it comes, however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon.wire import tool_calls
from antiphon.wire.tool_calls import (
    MAX_HEAD_CHARS,
    Arguments,
    CallBegun,
    CallEnded,
    ParsedPiece,
    Text,
    ToolCallParser,
    call_parser,
    joined,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}<tool_call>\\"{", "b": [{}]}}\n</tool_call>'
BARE = '{"name": "f", "parameters": {"a": "}\\"{", "b": [{}]}}'
ARGUMENTS = '{"a": "}<tool_call>\\"{", "b": [{}]}'
COMPLETE = [CallBegun("f"), Arguments(ARGUMENTS), CallEnded(True)]


def parsed(*chunks: str) -> list[ParsedPiece]:
    parser = ToolCallParser()
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return joined([*pieces, *parser.flush()])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Hello <b> world.\n", [Text("Hello <b> world.\n")]),
        ("a <tool_cal", [Text("a <tool_cal")]),
        (CALL, COMPLETE),
        ("\n\n" + CALL + "\n", COMPLETE),
        ("Let me see.\n" + CALL, [Text("Let me see."), *COMPLETE]),
        (CALL + "\n" + CALL, COMPLETE * 2),
        (CALL + CALL + "\nDone. ", [*COMPLETE, *COMPLETE, Text("Done. ")]),
        (CALL.removesuffix("\n</tool_call>"), COMPLETE),
        (CALL.removesuffix("\n</tool_call>") + "}" + CALL, COMPLETE * 2),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1',
            [CallBegun("f"), Arguments('{"a": 1'), CallEnded(False)],
        ),
        (
            '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
            [CallBegun("f"), Arguments('{"a": 1}'), CallEnded(True)],
        ),
        ('<tool_call>{"name": "f"}', [CallBegun("f"), Arguments("{}"), CallEnded(True)]),
        (
            '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
            [CallBegun("f"), Arguments("{}"), CallEnded(True)],
        ),
        (" " * MAX_HEAD_CHARS + CALL, COMPLETE),
        (" " * (MAX_HEAD_CHARS + 1) + CALL, [Text(" " * MAX_HEAD_CHARS), *COMPLETE]),
        ("\n <to <<tool_call>a</tool_call> ", [Text("\n <to <<tool_call>a</tool_call> ")]),
        ("x\n<tool_call>oh</tool_call> y", [Text("x\n<tool_call>oh</tool_call> y")]),
        ("\n<tool_call>[1]</tool_call>", [Text("\n<tool_call>[1]</tool_call>")]),
        ("<tool_call>\n", [Text("<tool_call>\n")]),
        ("<tool_call>no" + CALL, [Text("<tool_call>no" + CALL)]),
        ('<tool_call>{"name": "\\x", "arguments": {}}</tool_call>', None),
        ("<tool_call>" + "a" * 2 * MAX_HEAD_CHARS, [Text("<tool_call>" + "a" * 2 * MAX_HEAD_CHARS)]),
    ],
)
def test_pieces(text: str, pieces: list[ParsedPiece] | None) -> None:
    assert parsed(text) == ([Text(text)] if pieces is None else pieces)


WORDS = st.sampled_from([*'{}[]"\\\n :,f', '"name"', "hi"]) | st.sampled_from(
    [CALL, "<tool_call>", "</tool_call>", "<tool", "_call>", '{"name": "f", "arguments": ', '{"a": 1}']
)
TEXTS = st.lists(WORDS | st.text(max_size=4), max_size=12).map("".join)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, data=st.data())
@example(text='<tool_call>{"name": "</tool_call>", "arguments": {}}', data=None)
def test_any_cutting_gives_the_same(text: str, data: st.DataObject | None) -> None:
    whole = parsed(text)
    assert parsed(*text) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        ends = [0, *cuts, len(text)]
        assert parsed(*(text[a:b] for a, b in pairwise(ends))) == whole


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_calls_are_whole(text: str) -> None:
    """Every call begins, has its arguments and ends, in order; text without a call is left as it is."""
    pieces = parsed(text)
    if "<tool_call>" not in text:
        assert pieces == ([Text(text)] if text else [])
    inside = False
    for piece in pieces:
        assert inside == isinstance(piece, Arguments | CallEnded)
        if isinstance(piece, CallBegun | CallEnded):
            inside = isinstance(piece, CallBegun)
    assert not inside


@pytest.mark.parametrize(
    ("before", "json_calls"),
    [("", False), (CALL.removesuffix("</tool_call>"), False), ("", True), (BARE, True)],
    ids=["a text", "a call", "a text or JSON", "JSON"],
)
def test_white_space_takes_time_in_proportion(before: str, json_calls: bool) -> None:
    def seconds(num_spaces: int) -> float:
        found = []
        for _ in range(3):
            parser = call_parser(["f"], json_calls=json_calls)
            parser.push(before)
            begun = process_time()
            parser.push(" " * num_spaces)
            found.append(process_time() - begun)
        return min(found)

    assert seconds(64_000) < 24 * seconds(8_000), "8 times as long; the square would be 64"


@pytest.mark.parametrize(
    ("before", "more", "json_calls"),
    [
        ('{"name": "', "{", True),
        ('{"name": "', "}", True),
        ("{", " ", True),
        ('{"', "n", True),
        ('<tool_call>{"name": "', "{", False),
        ('<tool_call>{"name": "f"', "{", False),
        ("<tool_call>{", " ", False),
    ],
)
def test_a_head_takes_time_in_proportion(
    before: str, more: str, json_calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be long as long as its name is."""
    monkeypatch.setattr(tool_calls, "MAX_HEAD_CHARS", 20_000)

    def seconds(num_chars: int) -> float:
        found = []
        for _ in range(3):
            parser = call_parser(["f"], json_calls=json_calls)
            parser.push(before)
            begun = process_time()
            assert parser.push(more * num_chars) == []
            found.append(process_time() - begun)
        return min(found)

    assert seconds(16_000) < 24 * seconds(2_000), "8 times as long; the square would be 64"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    name=st.text(min_size=1, max_size=8),
    arguments=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    ascii_only=st.booleans(),
)
def test_any_call_comes_back(name: str, arguments: dict, ascii_only: bool) -> None:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only)
    begun, given_, ended = parsed(f"<tool_call>\n{body}\n</tool_call>")
    assert begun == CallBegun(name)
    assert isinstance(given_, Arguments)
    assert json.loads(given_.delta) == arguments
    assert ended == CallEnded(True)


WHOLE = [CallBegun("f"), Arguments('{"a": "}\\"{", "b": [{}]}'), CallEnded(True)]
NONE = [CallBegun("f"), Arguments("{}"), CallEnded(True)]
OTHER = '{"name": "Ann Lee", "arguments": {"for": "a {"}, "verdict": "no"}'
"""An answer, since it names no tool."""


def bare(*chunks: str) -> list[ParsedPiece]:
    parser = call_parser(["f"], json_calls=True)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return joined([*pieces, *parser.flush()])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("Hello {you}.", [Text("Hello {you}.")]),
        (BARE, WHOLE),
        ("\n" + BARE + "\n", WHOLE),
        ("<|python_tag|>" + BARE, WHOLE),
        ("<|python", [Text("<|python")]),
        (BARE + "; " + BARE + ", " + BARE, WHOLE * 3),
        (BARE + " So.", [*WHOLE, Text("So.")]),
        ("So. " + BARE, [Text("So. " + BARE)]),
        ('{"type": "function", "name": "f", "parameters": {}}', NONE),
        ('{"name": "f", "arguments": {}}', NONE),
        ('{"parameters": {}, "name": "f"}', NONE),
        ('{"name": "f", "parameters": {}, "id": "}"}' + BARE, NONE + WHOLE),
        ('{"name": "f", "parameters": {"a"', [CallBegun("f"), Arguments('{"a"'), CallEnded(False)]),
        ('{"name": "Bob"}', [Text('{"name": "Bob"}')]),
        (OTHER, [Text(OTHER)]),
        ('{"arguments": {}, "name": "g"} ' + BARE, [Text('{"arguments": {}, "name": "g"} ' + BARE)]),
        (BARE + OTHER, [*WHOLE, Text(OTHER)]),
        ('{"type" : ]} ' + BARE, [Text('{"type" : ]} ' + BARE)]),
        ('{"name": 1, "parameters": {}}', [Text('{"name": 1, "parameters": {}}')]),
        ('{"name": "f", "parameters": [1]}', [Text('{"name": "f", "parameters": [1]}')]),
        (' {"answer": 1} ', [Text(' {"answer": 1} ')]),
        ("{} " + BARE, [Text("{} " + BARE)]),
        ('{"name": "f', [Text('{"name": "f')]),
        (BARE + " {x", [*WHOLE, Text("{x")]),
        ('{"name": "' + "a" * 2 * MAX_HEAD_CHARS, [Text('{"name": "' + "a" * 2 * MAX_HEAD_CHARS)]),
    ],
)
def test_pieces_of_bare_calls(text: str, pieces: list[ParsedPiece]) -> None:
    assert bare(text) == pieces


def test_a_text_that_is_no_call_is_not_held_back() -> None:
    """JSON that answers a question is streamed."""
    parser = call_parser(["f"], json_calls=True)
    assert parser.push('{"answer"') == [Text('{"answer"')]
    assert parser.push(": 1") == [Text(": 1")]


BARE_WORDS = st.lists(
    st.sampled_from(
        [BARE, '{"name": "f", ', '"parameters": {', "}", "{", '"', "\\", ";", " ", "a", "<|python_tag|>"]
    )
)


@given(BARE_WORDS.map("".join), st.data())
def test_any_cutting_of_bare_calls_gives_the_same(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    assert bare(text[:at], text[at:]) == bare(*text) == bare(text)
