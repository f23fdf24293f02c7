"""Clients of chat completions who leave, wait, read nothing or come too late: what each of them holds."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from antiphon.core.facts import ResponseRequested, SessionClosed, SessionOpened
from antiphon.server.settings import ServerSettings
from server.asking import HI, Guides
from server.conftest import Running, eventually, leaves, running
from server.fake_engine import FakeEngine, Script


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels(stream: bool) -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(engine=engine) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            asking = client.post("/v1/chat/completions", json={"messages": HI, "stream": stream})
            await leaves(asking, lambda: bool(engine.of(ResponseRequested)))
        await eventually(lambda: bool(engine.of(SessionClosed)))
        assert engine.num_open == 0
        assert not engine.sinks
        assert not served.serving.connections


async def test_a_client_that_leaves_in_mid_body_is_no_mistake_of_ours(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = served.http.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n"
    errors = served.serving.metrics.errors.labels("client_gone")._value
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b'{"messages": ')
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await eventually(lambda: errors.get() > 0)
    assert "mistake" not in caplog.text


async def test_room_is_what_there_is_once_a_guide_is_known() -> None:
    """Whoever waits for a guide takes no room before, nor more than there is after, and may leave."""
    guides, engine, held = Guides(), FakeEngine(Script(gate=asyncio.Event())), ServerSettings(max_sessions=2)
    guides.gate.clear()
    guided: Any = {"messages": HI, "response_format": {"type": "json_object"}}
    async with running(held, engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        served.app.state.serving.guides = guides
        await leaves(client.post("/v1/chat/completions", json=guided), lambda: len(guides.asked) == 1)
        asked = [asyncio.create_task(client.post("/v1/chat/completions", json=guided)) for _ in range(3)]
        await eventually(lambda: len(guides.asked) == 4)
        assert not engine.of(SessionOpened)
        guides.gate.set()
        await eventually(lambda: any(one.done() for one in asked))
        assert engine.script.gate is not None
        engine.script.gate.set()
        assert sorted([(await one).status_code for one in asked]) == [200, 200, 503]
        assert len(engine.of(SessionOpened)) == 2


async def test_who_reads_nothing_is_bounded() -> None:
    engine = FakeEngine(Script(audio_s=40.0, chunk_s=2.0))
    async with running(ServerSettings(max_queued_bytes=100_000), engine) as served, served.client() as client:
        with pytest.raises(openai.InternalServerError) as broken:
            await client.with_options(max_retries=0).chat.completions.create(
                model="test-omni",
                messages=HI,
                modalities=["text", "audio"],
                audio={"voice": "chelsie", "format": "wav"},
            )
    assert broken.value.code == "slow_reader"


async def test_draining_lets_a_reply_finish_and_refuses_the_next() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(engine=engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        running_one = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": HI}))
        await eventually(lambda: engine.num_open == 1)
        drained = asyncio.create_task(served.serving.drain())
        await eventually(lambda: served.serving.is_draining)
        late = await client.post("/v1/chat/completions", json={"messages": HI})
        assert (late.status_code, late.headers["Retry-After"]) == (503, "5")
        assert engine.script.gate is not None
        engine.script.gate.set()
        assert (await running_one).json()["choices"][0]["message"]["content"] == "Hello there."
        await drained


async def test_a_reply_that_a_drain_cuts_off_says_so() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with (
        running(ServerSettings(drain_s=0.05), engine) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        bodies = ({"messages": HI}, {"messages": HI, "stream": True})
        cut = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
        await eventually(lambda: engine.num_open == 2)
        await served.serving.drain()
        whole, streamed = [await each for each in cut]
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "server_shutting_down")
    assert '"code":"server_shutting_down"' in streamed.text.rstrip().splitlines()[-1]
