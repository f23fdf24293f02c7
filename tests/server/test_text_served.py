"""Text through the stock client and the real server, as load generators and evaluations ask for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from antiphon.checkpoint.demo import make_demo
from fakes.serving import serving

HELLO: Any = [{"role": "user", "content": [{"type": "text", "text": "hello world"}]}]
GOES_ON: Any = {"ignore_eos": True, "repetition_penalty": 1.0, "top_k": -1}


async def test_text_as_its_clients_ask_for_it(tmp_path: Path) -> None:
    checkpoint = make_demo(tmp_path / "tiny", model="qwen3", size="tiny", seed=3)
    async with (
        serving(checkpoint, tmp_path / "record") as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        await a_load_generator(client)
        await an_evaluation(client)
        await a_stop_string(client)
        await several_replies(client)


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
