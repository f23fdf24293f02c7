"""What a text has to match, as clients write it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.sampling import Guide
from antiphon.wire.guides import Guided, guide_of
from antiphon.wire.limits import Limits
from antiphon.wire.parsing import converted

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = tuple(
    json.dumps({"type": "function", "function": one})
    for one in ({"name": "look.up", "parameters": SCHEMA}, {"name": "stop"})
)


def read(fields: dict[str, Any], **more: Any) -> tuple[Guide, str] | None:
    found = guide_of(converted(fields, Guided), Limits(), **more)
    return None if found is None else (found.guide, found.param)


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json", {"type": "object"}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json",
            SCHEMA,
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "grammar", "grammar": 'start: "a"'}},
            "grammar",
            'start: "a"',
            "response_format.grammar",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json", SCHEMA, "structured_outputs.json"),
        (
            {"structured_outputs": {"json_object": True}},
            "json",
            {"type": "object"},
            "structured_outputs.json_object",
        ),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        (
            {"structured_outputs": {"choice": ["a", 'b"\n']}},
            "grammar",
            'start: "a" | "b\\"\\n"',
            "structured_outputs.choice",
        ),
        ({"structured_outputs": {"grammar": "x"}}, "grammar", "x", "structured_outputs.grammar"),
        ({"guided_json": SCHEMA}, "json", SCHEMA, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a"]}, "grammar", 'start: "a"', "guided_choice"),
        ({"guided_grammar": "x"}, "grammar", "x", "guided_grammar"),
    ],
)
def test_every_way_to_write_one(fields: dict[str, Any], kind: str, text: Any, param: str) -> None:
    found = read(fields)
    assert found is not None
    guide, at = found
    assert (guide.kind, at) == (kind, param)
    assert (json.loads(guide.text) if kind == "json" else guide.text) == text


def test_nothing_asked_is_no_guide() -> None:
    plain = ({}, {"response_format": {"type": "text"}}, {"structured_outputs": {"json_object": False}})
    assert [read(fields) for fields in plain] == [None] * 3
    assert [read({}, tools=TOOLS, tool_choice=choice) for choice in ("auto", "none")] == [None] * 2
    assert read({}, tools=(), tool_choice="required") is None


def test_a_text_follows_one() -> None:
    with pytest.raises(ProtocolError, match=r"guided_regex and guided_grammar") as refused:
        read({"guided_regex": "a", "guided_grammar": "b"})
    assert refused.value.param == "guided_grammar"
    with pytest.raises(ProtocolError, match="response_format and tools"):
        read({"response_format": {"type": "json_object"}}, tools=TOOLS, tool_choice="required")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"guided_json": True}, "guided_json"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        read(fields)
    assert (refused.value.param or "").startswith(param)


def test_its_length_is_bounded() -> None:
    asked = msgspec.convert({"guided_regex": "a" * 11}, Guided)
    with pytest.raises(LimitExceeded, match=r"max_guide_chars.*guided_regex"):
        guide_of(asked, Limits(max_guide_chars=10))
    assert guide_of(asked, Limits(max_guide_chars=11)) is not None


def test_a_call_that_is_asked_for_goes_on_from_how_its_prompt_begins_it() -> None:
    found = read({}, tools=TOOLS, tool_choice="required")
    assert found is not None
    (guide, param), lines = found, found[0].text.splitlines()
    assert (guide.kind, param) == ("grammar", "tools")
    heads = [json.dumps(f'{{"name": "{name}", "arguments": ') for name in ("look.up", "stop")]
    assert lines[0] == f'start: ({heads[0]} call0 | {heads[1]} call1) "}}\\n</tool_call>"'
    assert json.loads(lines[1].removeprefix("call0: %json "))["properties"] == SCHEMA["properties"]
    none = json.loads(lines[2].removeprefix("call1: %json "))
    assert (none["type"], none["additionalProperties"]) == ("object", False), "it names no parameters"
    named = read({}, tools=TOOLS, tool_choice="stop")
    assert named is not None
    assert named[0].text.splitlines()[0] == 'start: (" " call1) "}\\n</tool_call>"'


def test_a_bare_call_goes_on_from_how_its_prompt_begins_it() -> None:
    found = read({}, tools=TOOLS, tool_choice="required", json_calls=True)
    assert found is not None
    heads = [json.dumps(f'{name}", "parameters": ') for name in ("look.up", "stop")]
    assert found[0].text.splitlines()[0] == f'start: ({heads[0]} call0 | {heads[1]} call1) "}}"'
    named = read({}, tools=TOOLS, tool_choice="stop", json_calls=True)
    assert named is not None
    assert named[0].text.splitlines()[0] == 'start: (" " call1) "}"'


def test_a_text_that_is_guided_may_be_calls_instead() -> None:
    asked = {"response_format": {"type": "json_object"}}
    free, (guide, param) = read(asked), read(asked, tools=TOOLS)
    assert free is not None
    assert (guide.kind, guide.text, param) == (free[0].kind, free[0].text, "response_format")
    assert '"\\"look.up\\"" | "\\"stop\\""' in guide.calls
    assert read(asked, tools=TOOLS, tool_choice="none") == free
    chosen = {"guided_choice": ["a"]}
    assert read(chosen, tools=TOOLS) == read(chosen), "a grammar is taken as it stands"


@pytest.mark.parametrize("kind", ["string", ["string", "null"], 5])
def test_arguments_are_an_object(kind: Any) -> None:
    tool = json.dumps({"type": "function", "function": {"name": "say", "parameters": {"type": kind}}})
    for choice in ("required", "say"):
        with pytest.raises(ProtocolError, match="'say' are a schema of type 'object'") as error:
            read({}, tools=[tool], tool_choice=choice)
        assert error.value.param == "tools"
    assert read({}, tools=[tool]) is None, "where no call is asked for, they are shown as they stand"
