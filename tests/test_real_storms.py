"""Storms against the real engine process: nobody else notices, and the engine is as empty as before."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
import websockets

from fakes.cancelled import afterlife
from fakes.serving import greedy, serving
from server.conftest import Socket
from server.storms import frame, raw_socket, send_raw
from voice import pcm16, silence, voice
from wire.harness import message, pcm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FRAME_BYTES = 960
"""20 ms of PCM16."""
MOST_S = 0.25
"""From the frame that triggers it to the end of the reply, on a machine that does other things too."""


@asynccontextmanager
async def server(checkpoint: Path, tmp_path: Path, *options: str) -> AsyncIterator[str]:
    """A real server; its record is `run.record`."""
    copy = greedy(checkpoint, tmp_path / "greedy")
    async with serving(copy, tmp_path / "run.record", *options) as url:
        yield url


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Socket]:
    address = url.replace("http", "ws") + "/v1/realtime"
    async with websockets.connect(address, max_size=1 << 20) as connection:
        client = Socket(connection)
        await client.until("session.created")
        yield client


async def gauges(url: str) -> dict[str, float]:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^(antiphon_\S+) (\S+)$", text, re.MULTILINE)}


def blocks(found: dict[str, float], what: str) -> dict[str, float]:
    name = f"antiphon_kv_blocks{what}{{"
    return {key.removeprefix(name): value for key, value in found.items() if key.startswith(name)}


async def all_is_free(url: str) -> dict[str, float]:
    """Wait until the engine has no session, no response and no block in use."""
    found: dict[str, float] = {}
    for _ in range(100):
        found = await gauges(url)
        open_ = [found["antiphon_sessions"], found["antiphon_responses_open"]]
        open_ += [value for key, value in found.items() if key.startswith("antiphon_requests_")]
        if not any(open_) and blocks(found, "_free") == blocks(found, ""):
            assert not any(blocks(found, "_idle").values())
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"still in use: {found}")


async def reply(client: Socket, num_tokens: int = 12) -> tuple[str, bytes]:
    """Transcript and sound of one answer."""
    await client.send("response.create", response={"max_output_tokens": num_tokens})
    events = await client.until("response.done")
    said = [e["delta"] for e in events if e["type"] == "response.output_audio_transcript.delta"]
    heard = [e["delta"] for e in events if e["type"] == "response.output_audio.delta"]
    return "".join(said), b"".join(base64.b64decode(delta) for delta in heard)


def assert_alike(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    """The same words and the same sound, but for what rounding in larger batches does to a sample."""
    assert one[0] == other[0]
    assert len(one[1]) == len(other[1])
    ours, theirs = (np.frombuffer(sound, "<i2").astype(int) for sound in (one[1], other[1]))
    assert np.abs(ours - theirs).max() <= 2


async def ask(client: Socket) -> None:
    await client.send("conversation.item.create", item=message("What is new?"))
    await client.until("conversation.item.done")


async def vanish(port: int, random: Random) -> None:
    append = frame(json.dumps({"type": "input_audio_buffer.append", "audio": pcm(0.1)}).encode())
    typed = frame(json.dumps({"type": "conversation.item.create", "item": message()}).encode())
    asked = frame(json.dumps({"type": "response.create"}).encode())
    whole = append * random.randrange(3) + typed + asked + append
    async with raw_socket(port) as raw:
        await send_raw(raw, whole[: random.randrange(len(whole) + 1)])
        await asyncio.sleep(random.choice([0, 0.02, 0.1, 0.5]))


async def storm(port: int, random: Random) -> None:
    garbage = (frame(b"{}") + frame(b"\0\xff", 2) + frame(b"[" * 5000)) * 500
    async with raw_socket(port) as raw:
        await send_raw(raw, garbage)
        await asyncio.gather(*(vanish(port, random) for _ in range(20)))


@pytest.mark.parametrize("places", [(), ("--stages-apart",)])
async def test_a_storm_leaves_the_engine_empty(
    tiny_checkpoint: Path, tmp_path: Path, places: tuple[str, ...]
) -> None:
    options = ("--max-sessions", "200", "--min-lead-s", "0", *places)
    async with server(tiny_checkpoint, tmp_path, *options) as url:
        port = int(url.rsplit(":", 1)[1])
        random = Random(7)
        async with connected(url) as witness:
            await ask(witness)
            alone = await reply(witness)
            assert alone[0]
            assert alone[1]
            tasks = asyncio.create_task(_storms(port, random, 6))
            during = []
            while not tasks.done():
                async with connected(url) as other:
                    await ask(other)
                    during.append(await reply(other))
            await tasks
            assert during
            for one in during:
                assert_alike(one, alone)
        found = await all_is_free(url)
    print(len(during), {key: value for key, value in found.items() if "blocks" in key})  # noqa: T201
    dead = afterlife(tmp_path / "run.record")
    assert len(dead.named) > 20
    assert [named for named in dead.named.values() if named] == []


async def _storms(port: int, random: Random, count: int) -> None:
    for _ in range(count):
        await storm(port, random)


async def test_barge_in_is_one_step(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A voice over a reply: every stage's next decision is without it, and the client knows at once."""
    latencies_s: list[float] = []
    cancelled: list[str] = []
    async with server(tiny_checkpoint, tmp_path) as url, connected(url) as client:
        for _ in range(5):
            await ask(client)
            await client.send("response.create")
            created = (await client.until("response.created"))[-1]["response"]["id"]
            await client.until("response.output_audio.delta")
            latency_s, done = await _spoken_over(client)
            assert done["response"]["id"] == created
            if done["response"]["status"] == "cancelled":
                assert done["response"]["status_details"]["reason"] == "turn_detected"
                latencies_s.append(latency_s)
                cancelled.append(created)
            await _silent(client)
    print([round(1000 * one, 1) for one in latencies_s])  # noqa: T201
    assert len(cancelled) >= 3
    assert statistics.median(latencies_s) < MOST_S
    dead = afterlife(tmp_path / "run.record")
    assert {"thinker", "talker", "code2wav"} <= set.union(*(dead.stages[name] for name in cancelled))
    assert all(dead.named[name] == [] for name in cancelled), dead.named


async def _spoken_over(client: Socket) -> tuple[float, dict[str, Any]]:
    """Speak in real time until the reply is over: seconds from the frame that began the turn to its end."""
    sent_s: list[float] = []
    data = pcm16(np.concatenate([voice(3.0)]))

    async def speak() -> None:
        for start in range(0, len(data), FRAME_BYTES):
            sent_s.append(time.monotonic())
            audio = base64.b64encode(data[start : start + FRAME_BYTES]).decode()
            await client.send("input_audio_buffer.append", audio=audio)
            await asyncio.sleep(0.02)

    speaking = asyncio.create_task(speak())
    triggered_s = 0.0
    try:
        while True:
            event = await client.read()
            if event["type"] == "input_audio_buffer.speech_started":
                triggered_s = sent_s[-1]
            elif event["type"] == "response.done":
                return time.monotonic() - triggered_s, event
    finally:
        speaking.cancel()


async def _silent(client: Socket) -> None:
    """End the turn without an answer."""
    await client.send("input_audio_buffer.clear")
    await client.until("input_audio_buffer.cleared")


async def test_cancels_name_nothing_afterwards(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Many replies, each cancelled at another moment of its way through the stages."""
    random = Random(3)

    async def talk(url: str) -> None:
        async with connected(url) as client:
            for _ in range(8):
                await ask(client)
                await client.send("response.create")
                await asyncio.sleep(random.random() * 0.4)
                await client.send("response.cancel")
                await client.until("response.done")

    async with server(tiny_checkpoint, tmp_path) as url:
        await asyncio.gather(*(talk(url) for _ in range(8)))
        await all_is_free(url)
    dead = afterlife(tmp_path / "run.record")
    assert len(dead.named) > 30
    assert [named for named in dead.named.values() if named] == []


async def test_silence_costs_the_engine_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Ten minutes of a quiet room: the engine hears of nothing."""
    quiet = base64.b64encode(pcm16(silence(0.5))).decode()
    async with server(tiny_checkpoint, tmp_path) as url:
        async with connected(url) as client:
            before = await gauges(url)
            for _ in range(1200):
                await client.send("input_audio_buffer.append", audio=quiet)
            await client.send("input_audio_buffer.clear")
            events = await client.until("input_audio_buffer.cleared")
            assert len(events) == 1
            after = await gauges(url)
            steps = [key for key in after if key.startswith("antiphon_steps_total")]
            assert [after[key] for key in steps] == [before.get(key, 0.0) for key in steps]
        await all_is_free(url)
