"""Tools, calls and their outputs in a prompt: as the reference renders them, and never more than text."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from antiphon.core.conversation import Item, Part, Role, TextPart, TokensPart, ToolCallPart, ToolOutputPart
from antiphon.core.facts import PromptFailed, PromptReady
from antiphon.core.plans import RenderPrompt
from antiphon.models.messages import Guard
from antiphon.models.prompt import Prompter
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.prompt import load_prompter
from antiphon.models.vocabulary import call_ids
from antiphon.wire.template import RESERVED, RESERVED_ENDS

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather at a place, e.g. Paris — "now"\n',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALLS = [("get_weather", {"city": "Zürich", "days": [1, 2]}), ("clock", {})]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def prompter(tiny_checkpoint: Path) -> Prompter:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    assert Qwen3OmniConfig.from_dict(config)
    return load_prompter(tiny_checkpoint, config, 4000)


def item(role: Role, *parts: Part) -> Item:
    return Item(role, role, parts)


def text(role: Role, said: str) -> Item:
    return item(role, TextPart(said))


def call(name: str, arguments: Any) -> ToolCallPart:
    return ToolCallPart("call_1", name, json.dumps(arguments, ensure_ascii=False))


def called(*calls: tuple[str, Any], content: str = "") -> dict[str, Any]:
    asked = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return {"role": "assistant", "content": content, "tool_calls": asked}


def render(
    prompter: Prompter, items: tuple[Item, ...], tools: list[Any], choice: str = "auto"
) -> PromptReady:
    order = RenderPrompt(1, items, True, tuple(json.dumps(tool) for tool in tools), choice)
    fact = prompter.render(order)
    assert isinstance(fact, PromptReady), fact
    return fact


def ids(prompter: Prompter, items: tuple[Item, ...], tools: list[Any]) -> list[int]:
    return render(prompter, items, tools).prompts["thinker"].token_ids.tolist()


def reference(tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any]) -> list[int]:
    rendered = tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    return tokenizer(rendered, add_special_tokens=False).input_ids


SYSTEM, USER = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "How is Paris?"}
ITEMS = (text("system", "Be kind."), text("user", "How is Paris?"))
OUTPUT = '{"temperature": 3}'


@pytest.mark.parametrize("tools", [TOOLS, [CLOCK], []])
@pytest.mark.parametrize(
    ("items", "messages"),
    [
        (ITEMS, [SYSTEM, USER]),
        (ITEMS[1:], [USER]),
        ((*ITEMS, item("assistant", call(*CALLS[0]))), [SYSTEM, USER, called(CALLS[0])]),
        (
            (*ITEMS, text("assistant", "Let me see."), *(item("assistant", call(*c)) for c in CALLS)),
            [SYSTEM, USER, called(*CALLS, content="Let me see.")],
        ),
        (
            (
                *ITEMS,
                item("assistant", call(*CALLS[0]), call(*CALLS[1])),
                item("tool", ToolOutputPart("call_1", OUTPUT)),
                item("tool", ToolOutputPart("call_2", "\nnoon\n")),
                text("user", "And now?"),
            ),
            [
                SYSTEM,
                USER,
                called(*CALLS),
                {"role": "tool", "content": OUTPUT},
                {"role": "tool", "content": "\nnoon\n"},
                {"role": "user", "content": "And now?"},
            ],
        ),
    ],
)
def test_ids_equal_the_reference(
    prompter: Prompter, tokenizer: Any, items: tuple[Item, ...], messages: list[Any], tools: list[Any]
) -> None:
    assert ids(prompter, items, tools) == reference(tokenizer, messages, tools)


def test_a_call_that_the_model_wrote_is_rendered_as_it_wrote_it(prompter: Prompter, tokenizer: Any) -> None:
    wrote = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    own = item("assistant", TokensPart(tuple(tokenizer(wrote).input_ids)))
    answer = item("tool", ToolOutputPart("c", "noon"))
    as_the_client_says_it = item("assistant", call("clock", {}))
    assert ids(prompter, (*ITEMS, own, answer), TOOLS) == ids(
        prompter, (*ITEMS, as_the_client_says_it, answer), TOOLS
    )


def test_arguments_that_are_no_object_are_rendered_as_they_are(prompter: Prompter, tokenizer: Any) -> None:
    broken = item("assistant", ToolCallPart("c", "clock", '{"half'))
    assert ids(prompter, (*ITEMS, broken), []) == reference(
        tokenizer, [SYSTEM, USER, called(("clock", '{"half'))], []
    )


@pytest.mark.parametrize("depth", [400, 20_000])
def test_a_call_or_a_tool_that_is_nested_too_deeply_is_the_client_s(prompter: Prompter, depth: int) -> None:
    """The wire refuses them; what it cannot read as JSON and Python can (a NaN) comes through."""
    deep = f'{{"a": NaN, "b": {"[" * depth}{"]" * depth}}}'
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(min(limit, 600))
    try:
        made = item("assistant", ToolCallPart("c", "clock", deep))
        called = prompter.render(RenderPrompt(1, (*ITEMS, made), True))
        declared = prompter.render(RenderPrompt(1, ITEMS, True, (deep,)))
    finally:
        sys.setrecursionlimit(limit)
    for fact, what in ((called, "a call's arguments are"), (declared, "a tool is")):
        assert isinstance(fact, PromptFailed)
        assert (fact.message, fact.code) == (f"{what} nested too deeply", "invalid_prompt")


NASTY = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(["<|im_end|>", "<tool_call>", "\ue000", "0", "\ue001", "\ue002", "<", "a"])).map(
        "".join
    ),
)


@settings(max_examples=80, deadline=None)
@given(said=NASTY, key=NASTY, value=NASTY, output=NASTY)
def test_what_clients_write_never_becomes_a_special_token(
    prompter: Prompter, tokenizer: Any, said: str, key: str, value: str, output: str
) -> None:
    if any("\ud800" <= c < "\ue000" for c in said + key + value + output):
        return
    tool = {"type": "function", "function": {"name": "f", "description": said, "parameters": {key: value}}}
    plain = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    turns = (item("assistant", call("f", {key: value})), item("tool", ToolOutputPart("c", output)))
    plain_turns = (item("assistant", call("f", {})), item("tool", ToolOutputPart("c", "")))
    special = set(tokenizer.added_tokens_decoder)
    found = [n for n in ids(prompter, (*ITEMS, *turns), [tool]) if n in special]
    assert found == [n for n in ids(prompter, (*ITEMS, *plain_turns), [plain]) if n in special]


@given(NASTY)
def test_guarded_text_is_mended(said: str) -> None:
    guard = Guard(["<|im_end|>", "<tool_call>"])
    broken = guard.broken({said: [said, 1, None]})
    assert "<tool_call>" not in json.dumps(broken)
    ((key, (value, *_)),) = broken.items()
    assert Guard.mended(key) == Guard.mended(value) == said


@pytest.mark.parametrize(
    ("choice", "begins"),
    [
        ("auto", ""),
        ("required", "<tool_call>\n"),
        ("clock", '<tool_call>\n{"name": "clock", "arguments":'),
    ],
)
def test_a_reply_that_must_call_begins_so(
    prompter: Prompter, tokenizer: Any, choice: str, begins: str
) -> None:
    fact = render(prompter, ITEMS, TOOLS, choice)
    assert list(fact.forced) == (tokenizer(begins).input_ids if begins else [])
    free = ids(prompter, ITEMS, TOOLS)
    prompt = fact.prompts["thinker"]
    assert prompt.token_ids.tolist() == [*free, *fact.forced]
    assert prompt.num_stable == len(prompt.token_ids)


def test_the_call_token_is_known(tiny_checkpoint: Path, tokenizer: Any, tmp_path: Path) -> None:
    assert call_ids(tiny_checkpoint) == (tokenizer.convert_tokens_to_ids("<tool_call>"),)
    assert call_ids(tmp_path) == ()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((item("user", call("f", {})),), "a tool call can only be in an assistant item"),
        ((item("user", ToolOutputPart("c", "x")),), "a tool's output can only be in a tool item"),
    ],
)
def test_who_may_say_what(prompter: Prompter, items: tuple[Item, ...], message: str) -> None:
    fact = prompter.render(RenderPrompt(1, items, False))
    assert isinstance(fact, PromptFailed)
    assert message in fact.message


def test_a_template_without_tools_says_so(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for file in tiny_checkpoint.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    config = json.loads((tmp_path / "config.json").read_text())
    fact = load_prompter(tmp_path, config, 4000).render(RenderPrompt(1, ITEMS, False, (json.dumps(CLOCK),)))
    assert isinstance(fact, PromptFailed)
    assert "no place for tools" in fact.message


LLAMA = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if loop.first and tools is not none %}
{{- 'Respond in the format {"name": function name, ' }}
{{- '"parameters": dictionary of argument name and its value}.' }}
{%- for t in tools %}{{- t | tojson(indent=4) + '\n' }}{%- endfor %}
{%- endif %}
{%- if 'tool_calls' in message %}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}' }}
{%- else %}{{- message.content }}{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}
"""
"""As Llama 3.1's asks for calls, and shows them."""


@pytest.fixture
def llama(tiny_checkpoint: Path, tmp_path: Path) -> Prompter:
    for file in tiny_checkpoint.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(LLAMA)
    return load_prompter(tmp_path, json.loads((tmp_path / "config.json").read_text()), 4000)


def test_a_template_that_asks_for_bare_calls_is_known(
    prompter: Prompter, llama: Prompter, tokenizer: Any
) -> None:
    assert prompter.json_call_ids == ()
    first = llama.json_call_ids
    assert {"".join(tokenizer.decode([token]).split()) for token in first} <= {
        '{"name":"'[:end] for end in range(1, 10)
    }
    assert tokenizer('{"name": "f", "parameters": {}}').input_ids[0] in first
    for text in ("Hello", '{"answer": 1}'[1:], "[1]"):
        assert tokenizer(text).input_ids[0] not in first
    assert prompter.blank_ids == ()
    blank = llama.blank_ids
    for text in (" ", "\n", "\n\n", "  \n", "\t"):
        assert set(tokenizer(text).input_ids) <= set(blank)
    assert all(tokenizer.decode([token]).isspace() for token in blank)


@pytest.mark.parametrize(
    ("choice", "begins"),
    [("auto", ""), ("required", '{"name": "'), ("clock", '{"name": "clock", "parameters":')],
)
def test_a_bare_call_that_must_be_begins_so(
    llama: Prompter, tokenizer: Any, choice: str, begins: str
) -> None:
    fact = render(llama, ITEMS[:2], TOOLS, choice)
    assert list(fact.forced) == (tokenizer(begins).input_ids if begins else [])


VARIED = (
    "{% if mood is defined %}<|im_start|>{{ mood }}<|im_end|>{% endif %}{{ messages[0].content }}{{ 9 // n }}"
)


@pytest.fixture
def varied(tiny_checkpoint: Path, tmp_path: Path) -> Prompter:
    for file in tiny_checkpoint.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% set n = n or 9 %}" + VARIED)
    return load_prompter(tmp_path, json.loads((tmp_path / "config.json").read_text()), 4000)


@pytest.mark.parametrize("mood", ["calm", "<|im_end|>", "\ue0000\ue001"])
def test_variables_of_the_template_are_ordinary_text(varied: Prompter, tokenizer: Any, mood: str) -> None:
    hello = (text("user", "hello"),)
    plain = varied.render(RenderPrompt(1, hello, False))
    told = varied.render(RenderPrompt(1, hello, False, template=json.dumps({"mood": mood})))
    assert isinstance(plain, PromptReady)
    assert isinstance(told, PromptReady)
    prompts = [fact.prompts["thinker"].token_ids.tolist() for fact in (plain, told)]
    assert prompts[0] == tokenizer("hello1").input_ids
    special = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [token for token in prompts[1] if token in special] == special
    assert tokenizer.decode(prompts[1]) == f"<|im_start|>{mood}<|im_end|>hello1"


def test_variables_that_a_template_cannot_use_are_the_clients_error(varied: Prompter) -> None:
    for broken in ('{"n": [1]}', '{"n": "x"}'):
        fact = varied.render(RenderPrompt(1, (text("user", "hello"),), False, template=broken))
        assert isinstance(fact, PromptFailed)
        assert "cannot use its variables" in fact.message


def test_all_that_a_template_is_given_is_reserved() -> None:
    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    assert taken.keys() <= RESERVED
    ends = (name for name in PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES if name not in RESERVED)
    assert all(name.endswith(RESERVED_ENDS) for name in ends)
