"""Refusals before stutter: listeners who have too little audio left, open responses, and the engine's own."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import httpx
import pytest

from antiphon.core.facts import ItemCut, PlaybackReported, ResponseRequested
from antiphon.server.settings import ServerSettings
from server.asking import HI, wav
from server.conftest import Running, Socket, eventually, running
from server.fake_engine import FakeEngine, Script
from wire.harness import pcm

CHAT: dict[str, Any] = {"messages": HI}


async def refused(served: Running, words: str) -> None:
    """Both surfaces say so, and when to come back."""
    async with httpx.AsyncClient(base_url=served.http) as client:
        for route, body in (("/v1/chat/completions", CHAT), ("/v1/audio/speech", {"input": "a"})):
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


async def test_short_leads_refuse_new_sessions_until_they_are_over() -> None:
    async with running() as served:
        engine = served.serving.engine
        assert engine is not None
        engine.pressure.least_lead_s = lambda now: 0.25  # type: ignore[method-assign]
        why = "min_lead_s: live listeners are about to run dry: one had 0.25 s of audio left, "
        why += "less than 0.6 s."
        await refused(served, why)
        async with httpx.AsyncClient(base_url=served.http) as client:
            assert (await client.get("/health")).json() == {"status": "strained", "reason": why}
            text = (await client.get("/metrics")).text
            assert "antiphon_server_least_lead_seconds 0.25" in text
            assert 'antiphon_server_sessions_refused_total{code="server_overloaded"} 3.0' in text
            flex = {**CHAT, "service_tier": "flex"}
            assert (await client.post("/v1/chat/completions", json=flex)).status_code == 200, "it may wait"
            engine.pressure.least_lead_s = lambda now: inf  # type: ignore[method-assign]
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            assert "antiphon_server_least_lead_seconds 60.0" in (await client.get("/metrics")).text


async def test_live_speech_is_judged_and_nothing_else() -> None:
    engine = FakeEngine(Script(audio_s=0.2, chunk_s=0.1, gate=asyncio.Event()))
    async with running(ServerSettings(), engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        gate = served.serving.engine
        assert gate is not None
        flex = {**CHAT, "service_tier": "flex", "modalities": ["text", "audio"], "audio": {"format": "wav"}}
        waiting = [
            asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in (CHAT, flex)
        ]
        await eventually(lambda: engine.num_open == 2)
        assert not gate.pressure._replies
        async with served.socket() as talker:
            await talker.send("response.create")
            await eventually(lambda: len(gate.pressure._replies) == 1)
            assert engine.script.gate is not None
            engine.script.gate.set()
            await talker.until("response.done")
            assert not gate.pressure._replies
        assert [(await answer).status_code for answer in waiting] == [200, 200]


SPOKEN: dict[str, Any] = {**CHAT, "modalities": ["text", "audio"]}
LIVE = (
    ("/v1/chat/completions", {**SPOKEN, "stream": True, "audio": {"format": "pcm16"}}),
    ("/v1/audio/speech", {"input": "a", "stream_format": "sse"}),
    ("/v1/audio/speech", {"input": "a", "response_format": "pcm"}),
)
NOT_LIVE = (
    ("/v1/chat/completions", {**SPOKEN, "audio": {"format": "wav"}}),
    ("/v1/audio/speech", {"input": "a"}),
    ("/v1/audio/speech", {"input": "a", "response_format": "wav"}),
    ("/v1/audio/speech", {"input": "a", "response_format": "flac", "stream_format": "sse"}),
)


@pytest.mark.parametrize("is_live", [True, False])
async def test_speech_over_http_has_a_listener_where_it_is_played_as_it_comes(is_live: bool) -> None:
    """A file that is made slowly has no gap that anybody hears, nor has one that is cut into events."""
    engine = FakeEngine(Script("a", audio_s=0.1, chunk_s=0.02, pace_s=0.15))
    async with running(ServerSettings(), engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        for route, body in LIVE if is_live else NOT_LIVE:
            before = served.serving.metrics.gaps._value.get()
            answering = asyncio.create_task(client.post(route, json=body))
            await eventually(lambda: engine.num_open == 1)
            if not is_live:
                await refused_never(served)
            assert (await answering).status_code == 200
            assert (served.serving.metrics.gaps._value.get() > before) == is_live, (route, body)
            assert served.serving.least_lead_s() == inf, "it has gone"


async def refused_never(served: Running) -> None:
    while served.engine.num_open:
        assert served.serving.least_lead_s() == inf
        await asyncio.sleep(0.02)


async def test_who_listened_is_forgotten_once_the_socket_is_closed() -> None:
    engine = FakeEngine(Script(audio_s=0.1, chunk_s=0.02, pace_s=0.15))
    async with running(ServerSettings(), engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        async with served.socket() as talker:
            await talker.send("response.create")
            await talker.until("response.done")
            assert (await client.get("/health")).json()["status"] == "strained", "they will speak again"
        await eventually(lambda: not served.serving.connections)
        assert (await client.get("/health")).json() == {"status": "alive"}
        async with served.socket() as again:
            assert (await again.read())["type"] == "session.created"


async def test_a_client_that_pauses_refuses_nobody() -> None:
    """It reports no more than what was played before the pause; one that truncates plays no more at all."""
    engine = FakeEngine(Script(audio_s=0.3, chunk_s=0.3, gate=asyncio.Event()))
    async with running(ServerSettings(min_lead_s=0.1), engine) as served, served.socket() as talker:
        gate = served.serving.engine
        assert gate is not None
        assert engine.script.gate is not None
        await talker.send("response.create")
        events = await talker.until("response.created")
        await eventually(lambda: any(one.is_writing for one in gate.pressure._replies.values()))
        ((key, reply),) = gate.pressure._replies.items()
        reply.is_writing = False
        reply.playback.add(0.3, 0.0)  # long ago
        assert served.serving.least_lead_s() == 0.0
        reported = PlaybackReported(key.partition("/")[0], events[-1]["response"]["id"], 0.1)
        gate.send(reported)
        assert served.serving.least_lead_s() > 0.1
        assert engine.facts[-1] == reported
        asked = next(fact for fact in engine.facts if isinstance(fact, ResponseRequested))
        gate.send(ItemCut(asked.session, asked.item_id, 1))
        assert not gate.pressure._replies
        engine.script.gate.set()
        await talker.until("response.done")


async def test_the_guard_can_be_off() -> None:
    async with running(ServerSettings(min_lead_s=0.0)) as served:
        assert served.serving.engine is not None
        served.serving.engine.pressure.least_lead_s = lambda now: -0.2  # type: ignore[method-assign]
        async with httpx.AsyncClient(base_url=served.http) as client:
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


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


async def test_a_response_that_the_engine_refuses_says_when_to_come_back() -> None:
    """Over HTTP as a status, since nothing was streamed; in a conversation as the end of the response."""
    said = "No room now: the queue is long. Try again in 7 s."
    refused = Script("", 0.0, status="failed", reason="server_overloaded", message=said, retry_s=6.2)
    async with running(ServerSettings(), FakeEngine(refused)) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            for asked in (CHAT, {**CHAT, "stream": True}):
                answer = await client.post("/v1/chat/completions", json=asked)
                error = answer.json()["error"]
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "7")
                assert (error["code"], error["message"]) == ("server_overloaded", said)
        async with served.socket() as talker:
            await talker.send("response.create")
            done = (await talker.until("response.done"))[-1]["response"]
            assert done["status"] == "failed"
            assert done["status_details"]["error"]["code"] == "server_overloaded"


async def test_best_effort_requests_have_a_limit_of_their_own() -> None:
    """They may wait, so they neither use up the room of live replies nor find it used up by them."""
    flex = {**CHAT, "service_tier": "flex"}
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


async def test_a_file_that_is_written_down_takes_a_live_place_and_no_other() -> None:
    """Its client waits for it."""
    flex = {**CHAT, "service_tier": "flex"}
    engine = FakeEngine(Script(gate=asyncio.Event()))
    settings = ServerSettings(max_sessions=1, max_open_responses=1, max_best_effort_responses=1)
    async with running(settings, engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        assert engine.script.gate is not None
        best_effort = asyncio.create_task(client.post("/v1/chat/completions", json=flex))
        await eventually(lambda: engine.num_open == 1)
        file = {"file": ("a.wav", wav())}
        written = asyncio.create_task(client.post("/v1/audio/transcriptions", files=file))
        await eventually(lambda: engine.num_open == 2)
        refusal = await client.post("/v1/audio/transcriptions", files=file)
        assert refusal.status_code == 503
        assert "max_sessions: all 1 sessions" in refusal.json()["error"]["message"]
        engine.script.gate.set()
        assert [(await answer).status_code for answer in (best_effort, written)] == [200, 200]


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
