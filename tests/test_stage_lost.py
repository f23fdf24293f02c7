"""A stage's process is killed beneath a real server: what its clients are told, and that they go on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

import forked
from fakes.serving import greedy, serving

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("forked_processes")]

TALKER = 2
"""Among an engine's processes, which are started in the order of the pipeline."""
BACK_S = 60
SOON_S = 3.0
"""A tenth of that where nobody else uses the machine. A limit of silence is a minute."""


def stage_pids() -> list[int]:
    """Of the one server that this process has started."""
    (server,) = forked.children(os.getpid())
    (engine,) = forked.children(server)
    return forked.children(engine)


async def type_in(connection: AsyncRealtimeConnection, text: str) -> None:
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await connection.conversation.item.create(item=item)


async def ended(connection: AsyncRealtimeConnection) -> Any:
    """The next response, at its end."""
    async with asyncio.timeout(BACK_S):
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.done":
                return event.response
    raise AssertionError("the server closed the connection")


async def ready(http: httpx.AsyncClient) -> None:
    for _ in range(10 * BACK_S):
        if (await http.get("/ready")).status_code == 200:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the stage has not come back")


async def test_who_speaks_is_told_and_the_conversation_goes_on(tiny_checkpoint: Path, tmp_path: Path) -> None:
    copy = greedy(tiny_checkpoint, tmp_path / "greedy")
    async with (
        serving(copy, tmp_path / "run.record", "--stages-apart") as url,
        httpx.AsyncClient(base_url=url) as http,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model="tiny") as speaker,
        client.realtime.connect(model="tiny") as reader,
    ):
        await type_in(speaker, "Tell me a story.")
        await type_in(reader, "Write me a letter.")
        talker = stage_pids()[TALKER]
        os.kill(talker, signal.SIGSTOP)
        await speaker.response.create()
        await reader.response.create(response={"output_modalities": ["text"]})
        await asyncio.sleep(0.5)
        os.kill(talker, signal.SIGKILL)
        killed = time.monotonic()
        lost = await ended(speaker)
        assert time.monotonic() - killed < SOON_S
        assert lost.status == "failed"
        assert lost.status_details.error.code == "stage_lost"
        assert (await ended(reader)).status in ("completed", "incomplete"), "who reads needs no voice"
        assert (await http.get("/ready")).status_code == 503
        await ready(http)
        await speaker.response.create()
        again = await ended(speaker)
        assert again.status in ("completed", "incomplete")
        assert again.usage.output_token_details.audio_tokens > 0
        assert 'antiphon_unit_restarts_total{unit="talker"} 1.0' in (await http.get("/metrics")).text
