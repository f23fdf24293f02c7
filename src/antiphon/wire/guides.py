"""What a text has to match, as clients write it: `response_format`, `structured_outputs`, `guided_*`, and the
schemas of a tool that has to be called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from antiphon.core.errors import ProtocolError
from antiphon.core.sampling import Guide
from antiphon.wire.client_events import Strict
from antiphon.wire.errors import shown
from antiphon.wire.limits import Limits, check
from antiphon.wire.tools import names_in

MAX_CHOICES = 1024
AnySchema = dict[str, Any]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)]
ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS = ANY_OBJECT | {"additionalProperties": False}
"""Of a function that names no parameters: it has none."""


class PlainFormat(Strict, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class ObjectFormat(Strict, frozen=True, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(Strict, frozen=True, kw_only=True):
    """`name`, `description` and `strict` are without effect: every schema is followed strictly."""

    schema: AnySchema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Strict, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON of this schema."""

    json_schema: NamedSchema


class GrammarFormat(Strict, frozen=True, kw_only=True, tag_field="type", tag="grammar"):
    """A text of this grammar, in Lark's notation or in GBNF."""

    grammar: str


ResponseFormat = PlainFormat | ObjectFormat | SchemaFormat | GrammarFormat


class StructuredOutputs(Strict, frozen=True, kw_only=True):
    """One of them, as vLLM's clients write it."""

    json: AnySchema | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class Guided(Strict, frozen=True, kw_only=True):
    """Fields that say what a text has to match; one of them at most. `guided_*` are older names for what
    `structured_outputs` has."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: AnySchema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


class Function(msgspec.Struct, frozen=True):
    """A tool as the chat template takes it."""

    name: str
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool as the chat template takes it."""

    function: Function


@dataclass(frozen=True, slots=True)
class AskedGuide:
    """A guide, and the field that asks for it."""

    guide: Guide
    param: str


def guide_of(
    asked: Guided,
    limits: Limits,
    tools: Sequence[str] = (),
    tool_choice: str = "auto",
    *,
    json_calls: bool = False,
) -> AskedGuide | None:
    """What the text is guided by. tools: as JSON. json_calls: as `ModelInfo` has it.

    Raises ProtocolError where there are several, and LimitExceeded where it is too long."""
    found = [*_guides(asked), *_of_calls(tools, tool_choice, json_calls)]
    if len(found) > 1:
        names = " and ".join(one.param for one in found)
        raise ProtocolError(f"A text follows one guide: send one of {names}.", param=found[1].param)
    if found and tools and tool_choice == "auto" and found[0].guide.kind != "grammar":
        guide = msgspec.structs.replace(found[0].guide, calls=_free_calls(tools, json_calls))
        found = [AskedGuide(guide, found[0].param)]
    for one in found:
        check("max_guide_chars", limits.max_guide_chars, len(one.guide.text), f"{one.param} is too long")
    return found[0] if found else None


def _guides(asked: Guided) -> Iterator[AskedGuide]:
    match asked.response_format:
        case ObjectFormat():
            yield _json(ANY_OBJECT, "response_format")
        case SchemaFormat(json_schema=named):
            yield _json(named.schema, "response_format.json_schema.schema")
        case GrammarFormat(grammar=grammar):
            yield AskedGuide(Guide("grammar", grammar), "response_format.grammar")
        case _:
            pass
    older = StructuredOutputs(
        json=asked.guided_json,
        regex=asked.guided_regex,
        choice=asked.guided_choice,
        grammar=asked.guided_grammar,
    )
    if asked.structured_outputs is not None:
        yield from _structured(asked.structured_outputs, "structured_outputs.")
    yield from _structured(older, "guided_")


def _structured(asked: StructuredOutputs, at: str) -> Iterator[AskedGuide]:
    if asked.json is not None:
        yield _json(asked.json, f"{at}json")
    if asked.json_object:
        yield _json(ANY_OBJECT, f"{at}json_object")
    if asked.regex is not None:
        yield AskedGuide(Guide("regex", asked.regex), f"{at}regex")
    if asked.choice is not None:
        choices = " | ".join(_quoted(one) for one in asked.choice)
        yield AskedGuide(Guide("grammar", f"start: {choices}"), f"{at}choice")
    if asked.grammar is not None:
        yield AskedGuide(Guide("grammar", asked.grammar), f"{at}grammar")


def _json(schema: AnySchema | str, at: str) -> AskedGuide:
    return AskedGuide(Guide("json", schema if isinstance(schema, str) else _written(schema)), at)


def _of_calls(tools: Sequence[str], choice: str, json_calls: bool) -> Iterator[AskedGuide]:
    """Of a reply that has to call a tool. It begins behind what the prompt already says of the call: the
    marker, or where there is none up to the name's quotation mark, and the tool's name if there is no choice
    (see `models.prompt`)."""
    if not tools or choice in ("auto", "none"):
        return
    known = [msgspec.json.decode(tool, type=Tool).function for tool in tools]
    rules = [_rule(index, one) for index, one in enumerate(known)]
    if choice == "required":
        before, member = ("", "parameters") if json_calls else ('{"name": "', "arguments")
        heads = [f'{before}{json.dumps(one.name)[1:]}, "{member}": ' for one in known]
        starts = [f"{_quoted(head)} call{index}" for index, head in enumerate(heads)]
    else:
        starts = [f'" " call{index}' for index, one in enumerate(known) if one.name == choice]
    end = _quoted("}" if json_calls else "}\n</tool_call>")
    text = f"start: ({' | '.join(starts)}) {end}\n" + "".join(rules)
    yield AskedGuide(Guide("grammar", text), "tools")


def _free_calls(tools: Sequence[str], json_calls: bool) -> str:
    """Of a reply that may call tools: their names are followed, and not their schemas."""
    names = " | ".join(_quoted(json.dumps(name)) for name in names_in(tools))
    if json_calls:
        parts = _quoted('{"name": '), _quoted(', "parameters": '), _quoted("}")
        call = "{} name {} arguments {}".format(*parts)
    else:
        parts = _quoted('\n{"name": '), _quoted(', "arguments": '), _quoted("}\n")
        call = "<tool_call> {} name {} arguments {} </tool_call>".format(*parts)
    rules = 'calls: call ("\\n" call)*', f"call: {call}", f"name: {names}"
    return "\n".join((*rules, f"arguments: %json {_written(ANY_OBJECT)}"))


def _rule(index: int, function: Function) -> str:
    """The arguments of one function. Lark's notation embeds a schema so. Raises ProtocolError for parameters
    that are no object's."""
    parameters = NO_ARGUMENTS if function.parameters is None else function.parameters
    kind = parameters.get("type", "object")
    if "object" not in (cast("list[Any]", kind) if isinstance(kind, list) else (kind,)):
        raise ProtocolError(
            f"The parameters of {shown(function.name)} are a schema of type 'object';"
            f" got {shown(parameters['type'])}.",
            param="tools",
        )
    spaced = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
    return f"call{index}: %json {_written(ANY_OBJECT | spaced | parameters)}\n"


def _quoted(text: str) -> str:
    """As a literal of Lark's notation."""
    return json.dumps(text, ensure_ascii=False)


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()
