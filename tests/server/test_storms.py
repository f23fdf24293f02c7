"""Storms over real sockets. A witness converses meanwhile and notices nothing; nothing is left behind."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from random import Random

import numpy as np
import pytest
import websockets

from antiphon.server.settings import ServerSettings
from server.conftest import Running, eventually, running
from server.storms import frame, memory_stays, raw_socket, rss_bytes, send_raw, witnessed
from voice import pcm16, silence
from wire.harness import pcm

LONGEST_GAP_S = 1.5
"""Between two events of the witness: 20 ms by script, and a machine that may stand still for a second."""
APPEND = json.dumps({"type": "input_audio_buffer.append", "audio": pcm(0.1)}).encode()
ASK = json.dumps({"type": "response.create"}).encode()
MANUAL = json.dumps(
    {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}}
)


@pytest.fixture
async def open_house() -> AsyncIterator[Running]:
    settings = ServerSettings(max_sessions=2000, max_open_responses=2000, min_lead_s=0.0)
    async with running(settings) as server:
        yield server


async def vanish(port: int, random: Random) -> None:
    """Say something, and be gone in the middle of it."""
    async with raw_socket(port) as raw:
        whole = frame(APPEND) * random.randrange(4) + frame(ASK) * random.randrange(2) + frame(APPEND)
        await send_raw(raw, whole[: random.randrange(len(whole) + 1)])
        await asyncio.sleep(random.choice([0, 0, 0.01, 0.1]))


async def vanishing(port: int, count: int, seed: int) -> None:
    random = Random(seed)
    for _ in range(count // 20):
        await asyncio.gather(*(vanish(port, random) for _ in range(20)))


async def test_people_vanish_anywhere(open_house: Running) -> None:
    async with witnessed(open_house, LONGEST_GAP_S):
        await vanishing(open_house.port, 200, seed=1)


async def flood(served: Running, frames: bytes, times: int) -> None:
    """A raw client who never reads, and leaves when all was heard: who leaves at once unsays the rest."""
    async with raw_socket(served.port) as raw:
        for _ in range(times):
            await send_raw(raw, frames)
        await asyncio.sleep(0.3)


GARBAGE = b"".join(
    [frame(b"{}"), frame(b"nonsense"), frame(b"\0\xff", 2), frame(b"", 1, fin=False), frame(b"[]", 0)]
)


async def test_tiny_frames_by_the_thousand(open_house: Running) -> None:
    """Eight bytes each, as many as fit in what is read at once: nobody else waits for them all."""
    async with witnessed(open_house, LONGEST_GAP_S):
        await flood(open_house, frame(b"{}") * 10_000, 2)
        await flood(open_house, GARBAGE * 500, 2)


async def test_a_companded_flood(open_house: Running) -> None:
    """G.711 is a sixth of the bytes: a frame that looks light is half a minute to listen to."""
    told = {"type": "realtime", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}
    update = json.dumps({"type": "session.update", "session": told}).encode()
    sound = base64.b64encode(bytes(range(256)) * 700).decode()
    append = json.dumps({"type": "input_audio_buffer.append", "audio": sound}).encode()
    async with witnessed(open_house, LONGEST_GAP_S):
        await flood(open_house, frame(update) + frame(append) * 2, 1)


async def test_a_full_append(open_house: Running) -> None:
    """Fifteen mebibytes in one event, committed; the sixteenth is refused."""
    async with witnessed(open_house, LONGEST_GAP_S), open_house.socket() as client:
        await client.connection.send(MANUAL)
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(15 << 20)).decode())
        await client.send("input_audio_buffer.commit")
        await client.until("conversation.item.done")
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes((15 << 20) + 3)).decode())
        error = (await client.until("error"))[-1]["error"]
        assert error["param"] == "max_append_bytes"


async def test_pings_are_answered_in_a_flood(open_house: Running) -> None:
    async with witnessed(open_house, LONGEST_GAP_S), open_house.socket() as client:
        for _ in range(20):
            for _ in range(50):
                await client.send("input_audio_buffer.append", audio=pcm(0.01))
            waiting = await client.connection.ping()
            async with asyncio.timeout(5):
                await waiting


async def test_who_pings_and_never_reads_is_dropped(open_house: Running) -> None:
    """Answers to pings bypass the queue of events, and reading does not pause for them."""
    loop = asyncio.get_running_loop()
    async with witnessed(open_house, LONGEST_GAP_S), raw_socket(open_house.port) as raw:
        before = rss_bytes()
        pings = frame(bytes(125), 9) * 2000

        async def ping() -> None:
            while True:
                await loop.sock_sendall(raw, pings)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ping(), 10)
        assert rss_bytes() - before < 16 << 20


async def test_slow_readers(open_house: Running) -> None:
    """They ask and read nothing; one after the other leaves without having read."""
    async with witnessed(open_house, LONGEST_GAP_S):
        readers = [flood(open_house, frame(ASK), 1) for _ in range(20)]
        await asyncio.gather(*readers)


async def test_ten_minutes_of_audio_and_no_more(open_house: Running) -> None:
    """The limit is ten minutes of what is buffered: reached, named, and gone with a clear."""
    async with open_house.socket() as client:
        await client.connection.send(MANUAL)
        minute = base64.b64encode(bytes(60 * 48_000)).decode()
        for _ in range(10):
            await client.send("input_audio_buffer.append", audio=minute)
        await client.send("input_audio_buffer.append", audio=pcm(0.1))
        assert (await client.until("error"))[-1]["error"]["param"] == "max_audio_s"
        await client.send("input_audio_buffer.commit")
        await client.until("conversation.item.done")
        await client.send("input_audio_buffer.append", audio=pcm(0.2))
        await client.send("input_audio_buffer.commit")
        await client.until("conversation.item.done")


def buffered_s(served: Running) -> float:
    return max(connection._session.buffered_audio_s for connection in served.serving.connections)


async def listened(served: Running, samples: np.ndarray, minutes: int) -> float:
    """Seconds of this process's CPU a second of sound takes; what is kept of the sound stays short."""
    data = base64.b64encode(pcm16(samples)).decode()
    async with served.socket() as client:
        await client.until("session.created")
        start_s = time.process_time()
        for _ in range(round(minutes * 60 / (len(samples) / 24_000))):
            await client.send("input_audio_buffer.append", audio=data)
            assert buffered_s(served) < 5.0
        await client.send("conversation.item.retrieve", item_id="nobody")
        assert (await client.read())["type"] == "error", "nobody spoke"
        return (time.process_time() - start_s) / (60 * minutes)


@pytest.mark.parametrize("loudness", [0.0, 0.0005, 0.1])
async def test_a_minute_of_nobody_speaking(open_house: Running, loudness: float) -> None:
    noise = loudness / 0.0005 * silence(2.0)
    assert await listened(open_house, noise, 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("loudness", [0.0, 0.0005, 0.1])
async def test_ten_minutes_of_nobody_speaking(open_house: Running, loudness: float) -> None:
    noise = loudness / 0.0005 * silence(2.0)
    async with witnessed(open_house, LONGEST_GAP_S):
        share = await listened(open_house, noise, 10)
    assert share < 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_storm_after_storm_leaves_no_memory_behind(open_house: Running) -> None:
    """Thousands who vanish, floods and full appends: resident memory grows by less than 16 MB."""
    full = frame(json.dumps({"type": "input_audio_buffer.append", "audio": "A" * (20 << 20)}).encode())

    async def storm() -> None:
        open_house.engine.facts.clear()
        await vanishing(open_house.port, 200, seed=2)
        await flood(open_house, GARBAGE * 200, 2)
        await flood(open_house, full, 2)
        await eventually(lambda: not open_house.serving.connections)

    print(await memory_stays(8, storm, 16 << 20))  # noqa: T201
    assert open_house.engine.sinks == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_sockets_come_and_go(open_house: Running) -> None:
    async with witnessed(open_house, LONGEST_GAP_S):
        for _ in range(50):
            opened = await asyncio.gather(*(websockets.connect(open_house.ws) for _ in range(20)))
            await asyncio.gather(*(connection.close() for connection in opened))
