"""Refusals before stutter: open responses, and audio that is made too slowly."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.server.pressure import Pressure
from antiphon.server.settings import ServerSettings
from server.conftest import Running, Socket, eventually, running
from server.fake_engine import FakeEngine, Script
from wire.harness import pcm

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def fed(pressure: Pressure, rate: float, until_s: float, chunk_s: float = 0.5, name: str = "r") -> None:
    """Audio at `rate` seconds of audio a second."""
    now = 0.0
    while now <= until_s:
        pressure.heard(name, chunk_s, now)
        now += chunk_s / rate


@given(rate=st.floats(0.3, 1.05), chunk_s=st.floats(0.1, 0.5))
def test_slow_audio_is_told_by_its_rate(rate: float, chunk_s: float) -> None:
    pressure = Pressure()
    fed(pressure, rate, 10, chunk_s)
    found = pressure.audio_rtf(10)
    assert found == pytest.approx(1 / rate, rel=0.5)


def test_plenty_is_no_pressure_however_slow_it_is_now() -> None:
    pressure = Pressure()
    for second in range(3):
        pressure.heard("r", 10.0, second)
    pressure.heard("r", 0.1, 9.0)
    assert pressure.audio_rtf(10) is None, "twenty seconds lie ahead of the listener: who paces may wait"
    assert pressure.audio_rtf(29.5) == float("inf"), "and then nothing came"


def test_a_beginning_tells_nothing_and_an_end_is_forgotten() -> None:
    pressure = Pressure()
    assert pressure.audio_rtf(0) is None
    pressure.heard("r", 0.1, 0.0)
    assert pressure.audio_rtf(0.5) is None
    assert pressure.audio_rtf(5.0) == float("inf"), "silence after the first piece is the worst of all"
    pressure.ended("r")
    assert pressure.audio_rtf(6.0) is None


def test_it_falls_again() -> None:
    pressure = Pressure()
    fed(pressure, 0.5, 4)
    slow = pressure.audio_rtf(4)
    for step in range(9):
        pressure.heard("r", 0.6, 4.2 + step * 0.5)
    fast = pressure.audio_rtf(8.3)
    assert slow is not None
    assert slow > 1.5
    assert fast is None or fast < 0.95


async def refused(served: Running, words: str) -> None:
    """Both surfaces say so, and when to come back."""
    async with httpx.AsyncClient(base_url=served.http) as client:
        for route, body in (("/v1/chat/completions", HI), ("/v1/audio/speech", {"input": "a"})):
            answer = await client.post(route, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert (error["type"], error["code"]) == ("server_error", "server_overloaded")
            assert words in error["message"]
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        answer = await client.get(
            "/v1/realtime", headers={**upgrade, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        )
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


async def test_slow_audio_refuses_new_sessions_until_it_is_over() -> None:
    async with running() as served:
        engine = served.serving.engine
        assert engine is not None
        engine.pressure.audio_rtf = lambda now: 1.25  # type: ignore[method-assign]
        await refused(served, "max_audio_rtf: a second of audio takes 1.2 s")
        async with httpx.AsyncClient(base_url=served.http) as client:
            text = (await client.get("/metrics")).text
            assert "antiphon_server_audio_rtf 1.25" in text
            assert 'antiphon_server_sessions_refused_total{code="server_overloaded"} 3.0' in text
            engine.pressure.audio_rtf = lambda now: 0.5  # type: ignore[method-assign]
            assert (await client.post("/v1/chat/completions", json=HI)).status_code == 200


async def test_the_guard_can_be_off() -> None:
    async with running(ServerSettings(max_audio_rtf=None)) as served:
        assert served.serving.engine is not None
        served.serving.engine.pressure.audio_rtf = lambda now: 9.0  # type: ignore[method-assign]
        async with httpx.AsyncClient(base_url=served.http) as client:
            assert (await client.post("/v1/chat/completions", json=HI)).status_code == 200


async def test_open_responses_are_counted_over_all_surfaces() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(ServerSettings(max_open_responses=1), engine) as served:
        async with served.socket() as talker, served.socket() as witness:
            await talker.send("response.create")
            await eventually(lambda: engine.num_open == 1)
            await refused(served, "max_open_responses: all 1 responses")
            await witness.send("response.create")
            done = (await witness.until("response.done"))[-1]["response"]
            assert done["status"] == "failed"
            assert done["status_details"]["error"]["code"] == "server_overloaded"
            assert engine.script.gate is not None
            engine.script.gate.set()
            await talker.until("response.done")
            await witness.send("response.create")
            done = (await witness.until("response.done"))[-1]["response"]
            assert done["status"] == "completed"
        assert served.serving.engine is not None
        assert served.serving.engine.num_open("latency") == 0


async def test_best_effort_requests_have_a_limit_of_their_own() -> None:
    """They may wait, so they neither use up the room of live replies nor find it used up by them."""
    flex = {**HI, "service_tier": "flex"}
    engine = FakeEngine(Script(gate=asyncio.Event()))
    settings = ServerSettings(max_sessions=1, max_open_responses=1, max_best_effort_responses=2)
    async with running(settings, engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        assert engine.script.gate is not None
        waiting = [asyncio.create_task(client.post("/v1/chat/completions", json=flex)) for _ in range(2)]
        await eventually(lambda: engine.num_open == 2)
        refusal = await client.post("/v1/chat/completions", json=flex)
        assert refusal.status_code == 503
        assert "max_best_effort_responses: all 2 responses" in refusal.json()["error"]["message"]
        async with served.socket() as talker:
            await talker.send("response.create")
            await eventually(lambda: engine.num_open == 3)
            await refused(served, "max_sessions: all 1 sessions")
            engine.script.gate.set()
            done = (await talker.until("response.done"))[-1]["response"]
            assert done["status"] == "completed"
            assert [(await answer).status_code for answer in waiting] == [200, 200]
            assert (await client.post("/v1/chat/completions", json=flex)).status_code == 200


async def test_a_transcription_beyond_the_limit_fails_and_its_turn_is_answered() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    settings = ServerSettings(max_open_responses=1, max_best_effort_responses=1)
    async with running(settings, engine) as served, served.socket() as first, served.socket() as second:
        for talker in (first, second):
            await talker.by_hand()
            await transcribed(talker)
        await first.until("input_audio_buffer.committed")
        await eventually(lambda: engine.num_open == 1)
        events = await second.until("conversation.item.input_audio_transcription.failed")
        assert events[-1]["error"]["code"] == "server_overloaded"
        assert "max_best_effort_responses" in events[-1]["error"]["message"]
        assert engine.script.gate is not None
        engine.script.gate.set()
        await second.send("response.create")
        done = (await second.until("response.done"))[-1]["response"]
        assert done["status"] == "completed"


async def transcribed(talker: Socket) -> None:
    """A turn by hand that is to be written down."""
    heard = {"turn_detection": None, "transcription": {"model": "test-omni"}}
    await talker.send("session.update", session={"type": "realtime", "audio": {"input": heard}})
    await talker.until("session.updated")
    await talker.send("input_audio_buffer.append", audio=pcm(0.2))
    await talker.send("input_audio_buffer.commit")


def test_the_worst_is_remembered_for_a_while() -> None:
    pressure = Pressure(hold_s=5.0)
    fed(pressure, 0.8, 10)
    assert pressure.worst_rtf(10) == pytest.approx(1.25, rel=0.2)
    pressure.ended("r")
    assert pressure.worst_rtf(14) == pytest.approx(1.25, rel=0.2), "who listens now will speak again"
    assert pressure.worst_rtf(16) == 0.0


def test_what_nobody_asks_for_is_forgotten_all_the_same() -> None:
    pressure = Pressure(hold_s=5.0)
    fed(pressure, 0.8, 600)
    assert len(pressure._sampled) <= 21
    assert pressure.worst_rtf(600) == pytest.approx(1.25, rel=0.2)
