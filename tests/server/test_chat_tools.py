"""Tools in chat completions: what the engine is told of them, and calls told apart from words."""

from __future__ import annotations

from typing import Any

import msgspec
import openai
import pytest

from antiphon.core.conversation import ToolCallPart, ToolOutputPart
from server.asking import HI, Guides, asked
from server.conftest import Running, running
from server.fake_engine import INFO, FakeEngine, Script


async def test_tools_and_their_answers(served: Running) -> None:
    tool: Any = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object"}}}
    messages: Any = [
        *HI,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "sky", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "blue"},
    ]
    guides = Guides()
    served.app.state.serving.guides = guides
    async with served.client() as client:
        await client.chat.completions.create(
            model="test-omni",
            messages=messages,
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "sky"}},
        )
    assert [guide.param for guide in guides.asked] == ["tools"]
    request = asked(served)
    assert request.tool_choice == "sky"
    assert request.tools == ('{"type":"function","function":{"name":"sky","parameters":{"type":"object"}}}',)
    assert request.items is not None
    assert request.items[1].parts == (ToolCallPart("c1", "sky", "{}"),)
    assert (request.items[2].role, request.items[2].parts) == ("tool", (ToolOutputPart("c1", "blue"),))


async def test_tools_that_the_model_is_not_shown_are_refused() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, takes_tools=False))
    tool: Any = {"type": "function", "function": {"name": "f"}}
    async with running(engine=engine) as served, served.client() as client:
        (model,) = (await client.models.list()).data
        assert model.to_dict()["tools"] is False
        with pytest.raises(
            openai.BadRequestError, match="has no place for tools: leave tools out"
        ) as refused:
            await client.chat.completions.create(model="test-omni", messages=HI, tools=[tool])
        assert (refused.value.param, refused.value.code) == ("tools", "unsupported_parameter")
        assert (await client.chat.completions.create(model="test-omni", messages=HI)).choices
        nothing = client.chat.completions.create(
            model="test-omni", messages=HI, tools=[tool], tool_choice="none"
        )
        assert (await nothing).choices, "none of them would be called"
        call: Any = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        called: Any = [*HI, {"role": "assistant", "tool_calls": [call]}]
        with pytest.raises(openai.BadRequestError, match="no place for tools") as refused:
            await client.chat.completions.create(model="test-omni", messages=called)
        assert refused.value.param == "messages[1].tool_calls"


@pytest.mark.parametrize(
    ("json_calls", "said", "text"),
    [
        (
            False,
            "One moment.",
            'One moment. <tool_call>\n{"name": "sky", "arguments": {"at": "noon"}}\n</tool_call>',
        ),
        (True, "", '{"name": "sky", "parameters": {"at": "noon"}}'),
    ],
)
async def test_calls_are_told_apart_from_words(json_calls: bool, said: str, text: str) -> None:
    info = msgspec.structs.replace(INFO, json_calls=json_calls)
    tool: Any = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object"}}}
    engine = FakeEngine(Script(text=text), info=info)
    async with running(engine=engine) as served, served.client() as client:
        whole = await client.chat.completions.create(model="test-omni", messages=HI, tools=[tool])
        (call,) = whole.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("sky", '{"at": "noon"}')
        assert (whole.choices[0].message.content or "").strip() == said
        assert whole.choices[0].finish_reason == "tool_calls"
        stream = await client.chat.completions.create(
            model="test-omni", messages=HI, tools=[tool], stream=True
        )
        choices = [chunk.choices[0] async for chunk in stream]
        plain = await client.chat.completions.create(model="test-omni", messages=HI)
        assert plain.choices[0].message.content == text, "without tools it is text"
        barred = await client.chat.completions.create(
            model="test-omni", messages=HI, tools=[tool], tool_choice="none"
        )
    assert barred.choices[0].finish_reason == "stop"
    assert (barred.choices[0].message.content, barred.choices[0].message.tool_calls) == (text, None)
    deltas = [each for choice in choices for each in choice.delta.tool_calls or ()]
    assert [each.function.name for each in deltas if each.function and each.function.name] == ["sky"]
    assert "".join(each.function.arguments or "" for each in deltas if each.function) == '{"at": "noon"}'
    assert sum(each.id is not None for each in deltas) == 1
    assert choices[-1].finish_reason == "tool_calls"
