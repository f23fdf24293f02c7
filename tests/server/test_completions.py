"""Completions through the stock client: whole and streamed, several prompts, echo, counts, refusals."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from antiphon.core.facts import ResponseCancelled, ResponseRequested, SessionClosed
from antiphon.core.logprobs import PAIR
from antiphon.server.completions import _Answer, _Choice
from antiphon.server.settings import ServerSettings
from antiphon.wire.completions import Completion
from antiphon.wire.text_params import TextReading
from server.conftest import Running, eventually, running
from server.fake_engine import FakeEngine, Script


async def test_a_text(served: Running) -> None:
    async with served.client() as client:
        answer = await client.completions.create(model="test-omni", prompt="Say", max_tokens=9)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.index) == ("Hello there.", "stop", 0)
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (20, 31)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    (asked,) = served.engine.of(ResponseRequested)
    assert (asked.raw, asked.items, asked.max_tokens) == ("Say", (), 9)
    await eventually(lambda: not served.serving.connections)
    assert [closed.keeps_kv for closed in served.engine.of(SessionClosed)] == [True]


async def test_where_nothing_is_kept_and_how_callers_are_kept_apart() -> None:
    async with running(ServerSettings(prefix_cache=False)) as served, served.client() as client:
        for salt in ({}, {"cache_salt": "mine"}):
            await client.completions.create(model="test-omni", prompt="Say", extra_body=salt)
        await eventually(lambda: not served.serving.connections)
    assert [closed.keeps_kv for closed in served.engine.of(SessionClosed)] == [False, False]
    assert [asked.cache_salt for asked in served.engine.of(ResponseRequested)] == ["", "mine"]


@pytest.mark.parametrize("keys", [(), ("one",), ("one", "two")])
async def test_kv_is_shared_within_an_api_key(keys: tuple[str, ...]) -> None:
    """On every surface: what of a prompt was cached says nothing of other callers."""
    settings, text = ServerSettings(api_keys=keys), {"type": "input_text", "text": "hi"}
    async with running(settings) as served:
        for key in keys or ("any",):
            async with served.client() as client:
                mine = client.with_options(api_key=key)
                await mine.completions.create(model="test-omni", prompt="Say")
                await mine.completions.create(
                    model="test-omni", prompt="Say", extra_body={"cache_salt": "mine"}
                )
                async with mine.realtime.connect(model="test-omni") as talk:
                    item: Any = {"type": "message", "role": "user", "content": [text]}
                    await talk.conversation.item.create(item=item)
                    await talk.response.create(response={"output_modalities": ["text"]})
                    async for event in talk:
                        if event.type == "response.done":
                            break
        salts = [asked.cache_salt for asked in served.engine.of(ResponseRequested)]
    if len(keys) < 2:
        assert salts == ["", "mine", ""]
    else:
        assert salts[0] == salts[2] != salts[3] == salts[5], "each key by itself, however it asks"
        assert len(set(salts)) == 4


async def test_a_stream(served: Running) -> None:
    async with served.client() as client:
        stream = await client.completions.create(
            model="test-omni", prompt="Say", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello there."
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 11
    assert all(chunk.usage is None for chunk in chunks[:-1])
    (name,) = {chunk.id for chunk in chunks}
    assert name.startswith("cmpl-")


async def test_counts_all_along(served: Running) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    async with served.client() as client:
        stream = await client.completions.create(
            model="test-omni", prompt="Say", stream=True, stream_options=options
        )
        counts = [
            (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            async for chunk in stream
            if chunk.usage
        ]
        chat = await client.chat.completions.create(
            model="test-omni",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options=options,
        )
        talked = [
            (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) async for chunk in chat if chunk.usage
        ]
    assert counts == [(9, 5), (9, 12), (20, 11), (20, 11)], "the fake's end has counts of its own"
    assert talked == [(9, 5), (9, 12), (20, 11)]


async def test_several_prompts_are_choices(served: Running) -> None:
    async with served.client() as client:
        whole = await client.completions.create(model="test-omni", prompt=["a", "b"], echo=True)
        stream = await client.completions.create(
            model="test-omni", prompt=[[97], [98, 99]], echo=True, stream=True
        )
        chunks = [chunk.choices[0] async for chunk in stream]
    assert [choice.text for choice in whole.choices] == ["aHello there.", "bHello there."]
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 22
    texts = {index: "".join(c.text for c in chunks if c.index == index) for index in (0, 1)}
    assert texts == {0: "aHello there.", 1: "bcHello there."}
    assert sum(chunk.finish_reason == "stop" for chunk in chunks) == 2
    await eventually(lambda: not served.serving.connections)


async def test_all_prompts_of_a_request_have_room_or_none() -> None:
    settings = ServerSettings(max_open_responses=2)
    async with running(settings) as served, served.client() as client:
        one_try = client.with_options(max_retries=0)
        with pytest.raises(openai.InternalServerError) as refused:
            await one_try.completions.create(model="test-omni", prompt=["a", "b", "c"])
        assert refused.value.status_code == 503
        assert not served.engine.of(ResponseRequested), "nothing is begun that cannot be ended"
        answer = await one_try.completions.create(model="test-omni", prompt=["a", "b"])
        assert len(answer.choices) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_the_engine_refuses_names_its_field(stream: bool) -> None:
    script = Script(text="", status="failed", reason="invalid_prompt", message="the prompt is empty")
    async with running(engine=FakeEngine(script)) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            answer = await client.post("/v1/completions", json={"prompt": "", "stream": stream})
        await eventually(lambda: not served.serving.connections)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "invalid_prompt")


async def test_a_stream_that_breaks_ends_with_an_error() -> None:
    script = Script(status="failed", reason="stage_failed", message="The thinker stage failed")
    async with running(engine=FakeEngine(script)) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            answer = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
            whole = await client.post("/v1/completions", json={"prompt": "x"})
        await eventually(lambda: not served.serving.connections)
    assert '"code":"stage_failed"' in answer.text.strip().splitlines()[-1]
    assert "[DONE]" not in answer.text
    assert whole.status_code == 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_text_and_the_engines_work(stream: bool) -> None:
    """The engine would write on for ever: its answer is held behind the piece that the string ends in."""
    script = Script(text="One two three four", pace_s=0.01)
    async with running(engine=FakeEngine(script)) as served, served.client() as client:
        said = {"model": "test-omni", "stop": ["o th", "w"], "stream": stream}
        whole = await client.completions.create(prompt="x", **said)  # type: ignore[call-overload]
        chat = await client.chat.completions.create(messages=[{"role": "user", "content": "x"}], **said)  # type: ignore[call-overload]
        if stream:
            chunks = [chunk async for chunk in whole]
            text, finish = (
                "".join(chunk.choices[0].text for chunk in chunks),
                chunks[-1].choices[0].finish_reason,
            )
            deltas = [chunk.choices[0] async for chunk in chat]
            talked = "".join(each.delta.content or "" for each in deltas), deltas[-1].finish_reason
        else:
            text, finish = whole.choices[0].text, whole.choices[0].finish_reason
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (9, 6)
            talked = chat.choices[0].message.content, chat.choices[0].finish_reason
        cancelled = served.engine.of(ResponseCancelled)
        assert not served.engine.num_open
    assert (text, finish) == ("One t", "stop") == talked
    assert [fact.reason for fact in cancelled] == ["stop", "stop"]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_the_prompt_and_the_text(served: Running, stream: bool) -> None:
    async with served.client() as client:
        said = {"model": "test-omni", "logprobs": 2, "echo": True, "stream": stream}
        answer = await client.completions.create(prompt="ppppppppp", **said)  # type: ignore[call-overload]
        parts = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
        only = await client.completions.create(
            model="test-omni", prompt="ppppppppp", logprobs=2, echo=True, max_tokens=0
        )
    text = "".join(part.text for part in parts)
    assert text == "pppppppppHello there."
    told = [part.logprobs for part in parts if part.logprobs]
    assert [token for one in told for token in one.tokens] == list(text)
    assert [offset for one in told for offset in one.text_offset] == list(range(len(text)))
    values = [value for one in told for value in one.token_logprobs]
    assert values == [None] + [-0.5] * (len(text) - 1)
    tops = [top for one in told for top in one.top_logprobs]
    assert tops[:2] == [None, {"a": -1.0, "b": -2.0, "p": -0.5}]
    (choice,) = only.choices
    assert (choice.text, choice.finish_reason) == ("ppppppppp", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list("ppppppppp")
    assert only.usage is not None
    assert only.usage.completion_tokens == 6, "the fake's frames, and no token of text"


def test_what_is_told_of_long_prompts_is_put_together_one_choice_at_a_time() -> None:
    num, length, num_top = 16, 1000, 5
    pairs = np.zeros((length, 1 + num_top), PAIR)
    pairs["token"], pairs["logprob"] = 97 + np.arange(1 + num_top), -0.5

    def peak(num: int) -> int:
        """Bytes beside the answer's own."""
        stream = SimpleNamespace(spelled=lambda token: bytes([token]))
        replies: Any = SimpleNamespace(each=[SimpleNamespace(stream=stream)] * num)
        wanted: Any = SimpleNamespace(reading=TextReading(num_top=num_top, tells_prompt=True), num_each=1)
        heading = Completion(id="c", created=0, model="m", choices=[])
        answer = _Answer(replies, wanted, [_Choice(at, "") for at in range(num)], heading, None)
        told = [pairs.tobytes() for _ in range(num)]
        tracemalloc.start()
        written = answer._put_together([""] * num, told, [[]] * num, dict.fromkeys(range(num), "length"))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(json.loads(written.body)["choices"][-1]["logprobs"]["top_logprobs"]) == length
        return most - 2 * len(written.body)  # each choice by itself, and the whole

    assert peak(num) < 3 * peak(1)


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_message(served: Running, stream: bool) -> None:
    async with served.client() as client:
        answer: Any = await client.chat.completions.create(
            model="test-omni",
            messages=[{"role": "user", "content": "hi"}],
            logprobs=True,
            top_logprobs=1,
            stream=stream,
        )
        choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    told = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
    assert "".join(one.token for one in told) == "Hello there."
    assert {one.logprob for one in told} == {-0.5}
    assert told[0].bytes == [72]
    assert [(top.token, top.logprob) for top in told[0].top_logprobs] == [("a", -1.0)]
