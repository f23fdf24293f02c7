"""Text through the stock client and the real server, as load generators and evaluations ask for it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from antiphon.checkpoint.demo import make_demo
from antiphon.runtime.record import replay
from fakes.serving import serving

pytestmark = pytest.mark.usefixtures("forked_processes")

HELLO: Any = [{"role": "user", "content": [{"type": "text", "text": "hello world"}]}]
GOES_ON: Any = {"ignore_eos": True, "repetition_penalty": 1.0, "top_k": -1}


async def test_text_as_its_clients_ask_for_it(tmp_path: Path) -> None:
    checkpoint = make_demo(tmp_path / "tiny", model="qwen3", size="tiny", seed=3)
    async with (
        serving(checkpoint, tmp_path / "record") as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        await a_chat_that_sends_its_history(client)
        await a_load_generator(client)
        await an_evaluation(client)
        await a_stop_string(client)
        await several_replies(client)
        await texts_that_follow_a_guide(client)
        await calls_that_are_asked_for(client)
        await guides_that_cannot_be_followed(client)
    assert replay(tmp_path / "record")[1] == []


async def a_chat_that_sends_its_history(client: AsyncOpenAI) -> None:
    """What was computed for the turns before is found again, by callers of the same salt."""
    told: list[Any] = [{"role": "user", "content": "tell me a long story about the sea " * 4}]

    async def ask(**salt: str) -> tuple[int, int, str]:
        reply = await client.chat.completions.create(
            model="tiny", messages=told, temperature=0, max_tokens=8, extra_body=GOES_ON | salt
        )
        usage = reply.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        return usage.prompt_tokens, cached, reply.choices[0].message.content or ""

    before = 0
    for turn in range(3):
        num_tokens, cached, text = await ask()
        assert before - 16 <= cached < num_tokens, "all but what fills no block"
        assert (cached > 0) == (turn > 0)
        _, found, same = await ask(cache_salt=f"mine {turn}")
        assert (found, same) == (0, text)
        told.extend([{"role": "assistant", "content": text}, {"role": "user", "content": "and then?"}])
        before = num_tokens - 16
    with pytest.raises(BadRequestError, match="cache_salt"):
        await ask(cache_salt="")


async def a_load_generator(client: AsyncOpenAI) -> None:
    """Streams of a fixed length, counted by the server."""

    async def ask(kind: str) -> int:
        create: Any = client.completions.create
        asked: dict[str, Any] = {"prompt": "hello world " * 20, "max_tokens": 24, "logprobs": None}
        if kind == "chat":
            create, asked = client.chat.completions.create, {"messages": HELLO, "max_completion_tokens": 24}
        stream = await create(
            model="tiny",
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=GOES_ON,
            **asked,
        )
        *_, last = [chunk async for chunk in stream]
        return last.usage.completion_tokens

    counts = await asyncio.gather(*[ask(kind) for kind in ("text", "chat", "text", "chat")])
    assert counts == [24] * 4


async def an_evaluation(client: AsyncOpenAI) -> None:
    """lm-evaluation-harness' local-completions: a context and its end as token ids, and one token more."""
    ids = [40, 41, 42, 43, 44]
    answer = await client.completions.create(
        model="tiny", prompt=[ids, ids[:3]], temperature=0, max_tokens=1, logprobs=1, echo=True, seed=1234
    )
    whole, part = (choice.logprobs for choice in answer.choices)
    assert whole is not None
    assert part is not None
    assert whole.token_logprobs is not None
    assert part.token_logprobs is not None
    assert (len(whole.token_logprobs), len(part.token_logprobs)) == (6, 4)
    assert whole.token_logprobs[0] is None
    both = zip(whole.token_logprobs[1:3], part.token_logprobs[1:3], strict=True)
    close = [abs((one or 0.0) - (other or 0.0)) for one, other in both]
    assert max(close) < 1e-4
    assert whole.top_logprobs is not None
    for token, value, top in zip(whole.tokens or (), whole.token_logprobs, whole.top_logprobs, strict=True):
        assert top is None or max(top.values()) >= (value or 0.0) == top[token]
    only = await client.completions.create(model="tiny", prompt=ids, max_tokens=0, logprobs=1, echo=True)
    assert only.choices[0].logprobs is not None
    assert only.choices[0].logprobs.token_logprobs == whole.token_logprobs[:5]


async def a_stop_string(client: AsyncOpenAI) -> None:
    asked: Any = {
        "model": "tiny",
        "prompt": "hello",
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": GOES_ON,
    }
    text = (await client.completions.create(**asked)).choices[0].text
    stop = text[len(text) // 2 :][:3]
    answer = await client.completions.create(**asked, stop=[stop])
    assert answer.choices[0].text == text[: text.find(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens < 24
    stream = await client.completions.create(**asked, stop=[stop], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def several_replies(client: AsyncOpenAI) -> None:
    """One seed, the same replies; they differ from each other. A bias makes one token all of a reply."""
    asked: Any = {"model": "tiny", "messages": HELLO, "n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 12}
    once, again = [await client.chat.completions.create(**asked) for _ in range(2)]
    texts = [choice.message.content for choice in once.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3
    biased = await client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, max_tokens=3, logit_bias={"70": 100}, logprobs=True
    )
    assert biased.choices[0].logprobs is not None
    told = biased.choices[0].logprobs.content or []
    assert len({one.token for one in told}) == 1
    assert all(one.logprob < -1 for one in told), "what is told is the model's own"


SHAPE: Any = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["kind", "ages"],
    "additionalProperties": False,
}
OF_SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "pet", "strict": True, "schema": SHAPE}}


def check_shape(text: str | None) -> None:
    told = json.loads(text or "")
    assert set(told) == {"kind", "ages"}
    assert told["kind"] in ("cat", "dog")
    assert len(told["ages"]) <= 3
    assert all(0 <= age <= 99 for age in told["ages"])


async def texts_that_follow_a_guide(client: AsyncOpenAI) -> None:
    """Several at once, sampled and greedy, whole and streamed, beside one that follows none."""
    ask: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 300, "response_format": OF_SHAPE}
    free: Any = {
        "model": "tiny",
        "prompt": "hello",
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": GOES_ON,
    }
    alone = await client.completions.create(**free)
    whole, several, beside = await asyncio.gather(
        client.chat.completions.create(**ask, temperature=0, logprobs=True, top_logprobs=2),
        client.chat.completions.create(**ask, temperature=1, n=3, seed=4),
        client.completions.create(**free),
    )
    assert beside.choices[0].text == alone.choices[0].text
    for choice in (*whole.choices, *several.choices):
        check_shape(choice.message.content)
        assert choice.finish_reason == "stop"
    assert len({choice.message.content for choice in several.choices}) > 1
    assert whole.choices[0].logprobs is not None
    told = "".join(one.token for one in whole.choices[0].logprobs.content or ())
    assert told.startswith(whole.choices[0].message.content or "?")
    stream = await client.chat.completions.create(**ask, temperature=0, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content
    stopped = await client.chat.completions.create(**ask, temperature=0, stop='"kind"')
    assert stopped.choices[0].message.content == text[: text.index('"kind"')]
    for body, pattern in (
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_regex": "[0-9]{3}-[a-f]{1,4}"}, "[0-9]{3}-[a-f]{1,4}"),
        ({"response_format": {"type": "grammar", "grammar": 'root ::= "x"{2,5} "!"'}}, "x{2,5}!"),
    ):
        answer = await client.completions.create(model="tiny", prompt="a", max_tokens=99, extra_body=body)
        assert re.fullmatch(pattern, answer.choices[0].text), body


async def calls_that_are_asked_for(client: AsyncOpenAI) -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "pet", "parameters": SHAPE}},
        {"type": "function", "function": {"name": "plant", "parameters": SHAPE}},
    ]
    named: Any = {"type": "function", "function": {"name": "plant"}}
    for choice, names in (("required", {"pet", "plant"}), (named, {"plant"})):
        for temperature in (0, 1):
            answer = await client.chat.completions.create(
                model="tiny",
                messages=HELLO,
                tools=tools,
                tool_choice=choice,
                max_tokens=300,
                temperature=temperature,
            )
            (call,) = answer.choices[0].message.tool_calls or ()
            assert call.type == "function"
            assert call.function.name in names
            check_shape(call.function.arguments)
            assert answer.choices[0].finish_reason == "tool_calls"
            assert not answer.choices[0].message.content


async def guides_that_cannot_be_followed(client: AsyncOpenAI) -> None:
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objec"}}}
    with pytest.raises(BadRequestError, match="Invalid type: objec") as refused:
        await client.chat.completions.create(model="tiny", messages=HELLO, response_format=wrong)
    assert (refused.value.code, refused.value.param) == (
        "invalid_guide",
        "response_format.json_schema.schema",
    )
    long: Any = {"guided_regex": "a" * 100_001}
    with pytest.raises(BadRequestError, match="max_guide_chars"):
        await client.completions.create(model="tiny", prompt="a", extra_body=long)
