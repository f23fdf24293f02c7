"""A paced text that is written leaves its place to others while it waits for its reader, and is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import APIError, APIStatusError

from antiphon.core.facts import SessionClosed
from antiphon.server.serving import PACED_PER_SESSION
from antiphon.server.settings import ServerSettings
from server.asking import HI
from server.conftest import Running, eventually, running
from server.fake_engine import FakeEngine, Script


@asynccontextmanager
async def slow_reader(server: Running, key: str = "x", deliver: str = "paced") -> AsyncIterator[None]:
    """Of a text that takes ten seconds to read and that the engine writes at once; its stream has begun."""
    said: Any = {"antiphon": {"rate": 1, "deliver": deliver}}
    async with (
        server.client().with_options(api_key=key, max_retries=0) as openai,
        await openai.chat.completions.create(
            model="test-omni", messages=HI, stream=True, extra_body=said
        ) as stream,
    ):
        await anext(one async for one in stream if one.choices and one.choices[0].delta.content)
        yield


async def test_a_paced_text_that_is_written_leaves_its_place_to_others() -> None:
    async with (
        running(ServerSettings(max_sessions=1)) as server,
        server.client() as openai,
        AsyncExitStack() as readers,
    ):
        for num_written in range(1, PACED_PER_SESSION + 1):
            await readers.enter_async_context(slow_reader(server))
            await eventually(lambda num=num_written: len(server.engine.of(SessionClosed)) == num)
        with pytest.raises(APIStatusError, match="all 4 places for paced texts") as refused:
            await readers.enter_async_context(slow_reader(server))
        assert refused.value.status_code == 503
        assert not server.engine.sinks, "nothing of them is left in the engine"
        await openai.chat.completions.create(model="test-omni", messages=HI)
    assert not server.serving.connections


async def test_a_paced_text_that_is_written_keeps_its_reader() -> None:
    """Until all of it is sent its client may say how far it is; there is nothing to tell the engine."""
    said: Any = {"antiphon": {"rate": 20, "deliver": "paced"}}
    async with running() as server, server.client() as openai:
        stream = await openai.chat.completions.create(
            model="test-omni", messages=HI, stream=True, extra_body=said
        )
        first = await anext(one async for one in stream if one.choices and one.choices[0].delta.content)
        await eventually(lambda: bool(server.engine.of(SessionClosed)))
        async with httpx.AsyncClient(base_url=server.http) as http:
            told = {"completion_id": first.id, "read_chars": 0}
            assert (await http.post("/v1/reading", json=told)).status_code == 200
        assert "".join([one.choices[0].delta.content or "" async for one in stream]) == " there."


async def test_a_text_that_is_being_written_has_its_place_paced_or_not() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(ServerSettings(max_sessions=1), engine) as server, slow_reader(server):
        with pytest.raises(APIStatusError, match="max_sessions: all 1 sessions"):
            async with slow_reader(server, deliver="asap"):
                pass


async def test_a_paced_text_that_waits_for_its_reader_is_bounded() -> None:
    """Its bytes with what is told of its tokens; the same text is whole where it is sent as it comes."""
    text, limits = "hello " * 200, ServerSettings(max_queued_bytes=PACED_PER_SESSION * 100 * 1024)
    asked: Any = {"model": "test-omni", "stream": True, "logprobs": True, "messages": HI}
    async with running(limits, FakeEngine(Script(text))) as server, server.client() as openai:

        async def said(deliver: str, num_top: int) -> str:
            told = {"antiphon": {"rate": 1, "deliver": deliver}}
            stream = await openai.chat.completions.create(**asked, top_logprobs=num_top, extra_body=told)
            reader, *_ = server.serving.readers.values()
            await eventually(lambda: not server.engine.sinks)
            reader.hurry()
            return "".join([one.choices[0].delta.content or "" async for one in stream])

        assert await said("asap", 20) == text
        assert await said("paced", 0) == text
        with pytest.raises(APIError, match="too far ahead of its reader") as broken:
            await said("paced", 20)
        assert broken.value.code == "slow_reader"


async def test_one_key_does_not_take_the_places_of_all_paced_texts() -> None:
    keys = ServerSettings(max_sessions=1, api_keys=("k1", "k2"))
    async with running(keys) as server, AsyncExitStack() as readers:
        for num_written in range(1, PACED_PER_SESSION):
            await readers.enter_async_context(slow_reader(server, "k1"))
            await eventually(lambda num=num_written: len(server.engine.of(SessionClosed)) == num)
        with pytest.raises(APIStatusError, match="kept for other API keys"):
            await readers.enter_async_context(slow_reader(server, "k1"))
        await readers.enter_async_context(slow_reader(server, "k2"))
