"""Refusals before stutter: open responses, and listeners who have too little audio left."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, APIStatusError

from antiphon.core.facts import SessionClosed
from antiphon.core.playback import Playback
from antiphon.server.pressure import BUCKET_S, HOLD_S, Pressure, _Leads
from antiphon.server.serving import PACED_PER_SESSION
from antiphon.server.settings import ServerSettings
from server.conftest import Running, Socket, eventually, running
from server.fake_engine import FakeEngine, Script
from wire.harness import pcm

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


BOUND_S = ServerSettings().min_lead_s


@asynccontextmanager
async def slow_reader(server: Running, key: str = "x", deliver: str = "paced") -> AsyncIterator[None]:
    """Of a text that takes ten seconds to read and that the engine writes at once; its stream has begun."""
    said: Any = {"antiphon": {"rate": 1, "deliver": deliver}}
    async with (
        server.client().with_options(api_key=key, max_retries=0) as openai,
        await openai.chat.completions.create(model="test-omni", **HI, stream=True, extra_body=said) as stream,
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
        await openai.chat.completions.create(model="test-omni", **HI)
    assert not server.serving.connections


async def test_a_paced_text_that_is_written_keeps_its_reader() -> None:
    """Until all of it is sent its client may say how far it is; there is nothing to tell the engine."""
    said: Any = {"antiphon": {"rate": 20, "deliver": "paced"}}
    async with running() as server, server.client() as openai:
        stream = await openai.chat.completions.create(model="test-omni", **HI, stream=True, extra_body=said)
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
    asked: Any = {"model": "test-omni", "stream": True, "logprobs": True, **HI}
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


def test_audio_that_ran_out_is_a_gap_when_more_comes() -> None:
    pressure, gaps = Pressure(), list[str]()
    pressure.on_gap = lambda: gaps.append("gap")
    pressure.asked("r", 0.0)
    for now in (1.0, 1.2, 1.45):  # 0.2 s each: 0.05 s late is not heard
        pressure.heard("r", 0.2, now)
    assert not gaps
    pressure.heard("r", 0.2, 1.9)
    assert len(gaps) == 1


def fed(pressure: Pressure, rate: float, until_s: float, chunk_s: float = 0.32, name: str = "r") -> None:
    """A reply whose audio is made at `rate` seconds of audio a second, after a first chunk of 0.14 s."""
    pressure.asked(name, 0.0)
    pressure.heard(name, 0.14, 0.0)
    now = chunk_s / rate
    while now <= until_s:
        pressure.heard(name, chunk_s, now)
        now += chunk_s / rate


def test_who_is_idle_takes_everybody() -> None:
    assert Pressure().least_lead_s(0.0) == inf


@given(low_s=st.floats(0.7, 2.0), chunk_s=st.floats(0.08, 0.4))
def test_speech_that_is_paced_is_not_slow(low_s: float, chunk_s: float) -> None:
    """Made fast up to a lead, and from there on as it is heard: at a rate of 1, for as long as it lasts."""
    pressure, playback, now = Pressure(), Playback(), 0.0
    pressure.asked("r", now)
    while now < 60.0:
        if playback.lead_s(now) < low_s + chunk_s:
            pressure.heard("r", chunk_s, now)
            playback.add(chunk_s, now)
        now += 0.02
        assert pressure.least_lead_s(now) >= BOUND_S


def test_speech_that_is_made_as_fast_as_possible_is_told_by_its_first_second() -> None:
    for rate, is_slow in ((10.0, False), (3.0, False), (1.5, True), (1.0, True), (0.8, True)):
        pressure = Pressure()
        fed(pressure, rate, 3.0)
        assert (pressure.least_lead_s(3.0) < BOUND_S) == is_slow, rate


def test_an_engine_that_slows_down_is_told_before_the_gap() -> None:
    pressure = Pressure()
    fed(pressure, 3.0, 4.0)
    assert pressure.least_lead_s(4.0) >= BOUND_S
    playback = pressure._replies["r"].playback
    while pressure.least_lead_s(now := playback.dry_at - BOUND_S) >= BOUND_S:
        pressure.heard("r", 0.1, now)
    assert playback.lead_s(now) > 0.5, "nothing was silent yet"


def test_a_beginning_tells_nothing_and_silence_tells_all() -> None:
    pressure = Pressure()
    pressure.asked("r", 0.0)
    pressure.heard("r", 0.14, 1.0)
    assert pressure.least_lead_s(1.2) == pytest.approx(4.0), "of 5 s in which something has to come"
    assert pressure.least_lead_s(1.3) == 0.0, "a gap, however new the reply is"
    pressure.heard("r", 0.9, 1.3)
    pressure.heard("r", 0.9, 1.4)
    assert pressure.least_lead_s(20.0) == 0.0


def test_who_waits_for_a_first_sign_hears_silence_too() -> None:
    pressure = Pressure()
    pressure.asked("r", 0.0)
    pressure.asked("other", 0.0)
    assert pressure.least_lead_s(4.0) == pytest.approx(1.0)
    pressure.wrote("r", 4.5)
    pressure.ended("other", 6.0)
    assert pressure.least_lead_s(7.0) == pytest.approx(-1.0)
    pressure.wrote("r", 7.0)
    assert pressure.least_lead_s(22.0) == inf, "the text is coming"


def test_text_after_the_audio_is_not_spoken() -> None:
    """Words, and then a tool call that takes its time."""
    pressure = Pressure()
    fed(pressure, 10.0, 1.0)
    pressure.wrote("r", 1.0)
    assert pressure.least_lead_s(60.0) == inf
    pressure.ended("r", 61.0)
    assert pressure.least_lead_s(61.0) == inf


def test_what_nobody_waits_for_is_passed_over() -> None:
    pressure = Pressure()
    pressure.wrote("flex", 1.0)
    pressure.heard("flex", 0.1, 2.0)
    pressure.ended("flex", 3.0)
    assert pressure.least_lead_s(9.0) == inf


def test_the_worst_is_remembered_for_a_while() -> None:
    pressure = Pressure()
    fed(pressure, 1.0, 10)
    pressure.ended("r", 10.0)
    assert pressure.least_lead_s(24.0) < BOUND_S, "who listens now will speak again"
    assert pressure.least_lead_s(26.0) == inf


def test_who_has_gone_is_forgotten() -> None:
    pressure = Pressure()
    for session, lead_s in (("gone", 0.1), ("there", 0.4)):
        pressure.asked(session, 0.0, session)
        pressure.heard(session, 0.5, 0.0)
        pressure.heard(session, 1.0, 0.5 + 0.5 - lead_s)
        pressure.ended(session, 1.0)
    pressure.asked("late", 1.0, "gone")
    assert pressure.least_lead_s(5.0) < BOUND_S
    pressure.left("gone")
    assert not pressure._replies
    left_s = pressure.least_lead_s(7.0)
    pressure.left("there")
    assert left_s < BOUND_S, "of who is still there"
    assert pressure.least_lead_s(7.0) == inf


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(-3.0, 3.0)), min_size=1, max_size=60))
def test_the_least_lead_is_kept(told: list[tuple[float, float]]) -> None:
    """To a quarter of a second, as if all of them were kept."""
    leads, all_told, now = _Leads(), list[tuple[float, float]](), 0.0
    for after_s, lead_s in told:
        now += after_s
        leads.note(lead_s, now)
        all_told.append((now, lead_s))
        kept = [[one for at, one in all_told if at > now - hold_s] for hold_s in (HOLD_S - BUCKET_S, HOLD_S)]
        assert min(kept[0]) >= leads.least_s(now) >= min(kept[1])


def test_what_nobody_asks_for_is_forgotten_all_the_same() -> None:
    pressure = Pressure()
    fed(pressure, 1.0, 600)
    leads = _Leads()
    for step in range(10_000):
        leads.note(step / 1e4, step / 100)
    assert len(leads._rising) <= HOLD_S / BUCKET_S + 1
    assert pressure.least_lead_s(600) < BOUND_S


class Engine:
    """Makes audio of all open replies a frame at a time: the more there are, the longer a step takes. People
    come, speak for 3 s, listen to 5 s, and again; each is let in or not as `welcome` says."""

    def __init__(self, welcome: Callable[[Pressure, float], bool]) -> None:
        self.welcome, self.pressure, self.now = welcome, Pressure(), 0.0
        self.asks: list[tuple[float, int]] = []
        self.frames: dict[str, int] = {}
        self.playbacks: dict[str, Playback] = {}
        self.gaps_at: list[float] = []
        self.refused_at: list[float] = []
        self.num_replies = 0

    def run(self, until_s: float, arrivals_per_s: float) -> None:
        arrivals = deque(np.arange(0.0, until_s, 1 / arrivals_per_s).tolist())
        while self.now < until_s:
            while arrivals and arrivals[0] <= self.now:
                self._arrives(arrivals.popleft())
            for due in [ask for ask in self.asks if ask[0] <= self.now]:
                self.asks.remove(due)
                self._begins(f"{due[1]}-{self.num_replies}")
            self.now += 0.01 + 0.004 * len(self.frames)
            for name in list(self.frames):
                self._makes(name)

    def _arrives(self, at: float) -> None:
        if self.welcome(self.pressure, self.now):
            self.asks.append((at + 3.0, len(self.refused_at)))
        else:
            self.refused_at.append(at)

    def _begins(self, name: str) -> None:
        self.num_replies += 1
        self.now += 0.05
        self.frames[name], self.playbacks[name] = 0, Playback()
        self.pressure.asked(name, self.now)

    def _makes(self, name: str) -> None:
        self.frames[name] += 1
        if self.frames[name] % 4 == 2:
            length_s = 0.16 if self.frames[name] == 2 else 0.32
            self.pressure.heard(name, length_s, self.now)
            if self.playbacks[name].add(length_s, self.now) >= 0.1:
                self.gaps_at.append(self.now)
        if self.frames[name] == 62:
            del self.frames[name]
            self.pressure.ended(name, self.now)
            self.asks.append((self.playbacks[name].dry_at + 3.0, self.num_replies))


def guarded(pressure: Pressure, now: float) -> bool:
    return pressure.least_lead_s(now) >= BOUND_S


@pytest.mark.parametrize("arrivals_per_s", [1.0, 2.0])
def test_an_engine_too_slow_for_its_load_refuses_before_anybody_hears_a_gap(arrivals_per_s: float) -> None:
    """More and more people come, and stay. Of those let in who had not spoken yet some are too many."""
    open_door, engine = Engine(lambda pressure, now: True), Engine(guarded)
    for one in (open_door, engine):
        one.run(60.0, arrivals_per_s)
    assert engine.refused_at[0] < open_door.gaps_at[0]
    assert len(engine.gaps_at) < 0.03 * len(open_door.gaps_at)
    assert engine.num_replies > 0.7 * open_door.num_replies, "it serves whom it can"


def test_an_engine_that_keeps_up_refuses_nobody() -> None:
    engine = Engine(guarded)
    engine.run(60.0, 0.1)
    assert engine.refused_at == engine.gaps_at == []


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
            flex = {**HI, "service_tier": "flex"}
            assert (await client.post("/v1/chat/completions", json=flex)).status_code == 200, "it may wait"
            engine.pressure.least_lead_s = lambda now: inf  # type: ignore[method-assign]
            assert (await client.post("/v1/chat/completions", json=HI)).status_code == 200
            assert "antiphon_server_least_lead_seconds 60.0" in (await client.get("/metrics")).text


async def test_live_speech_is_judged_and_nothing_else() -> None:
    engine = FakeEngine(Script(audio_s=0.2, chunk_s=0.1, gate=asyncio.Event()))
    async with running(ServerSettings(), engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        gate = served.serving.engine
        assert gate is not None
        flex = {**HI, "service_tier": "flex", "modalities": ["text", "audio"], "audio": {"format": "wav"}}
        waiting = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in (HI, flex)]
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


SPOKEN: dict[str, Any] = {**HI, "modalities": ["text", "audio"]}
LIVE = (
    ("/v1/chat/completions", {**SPOKEN, "stream": True, "audio": {"format": "pcm16"}}),
    ("/v1/audio/speech", {"input": "a", "stream_format": "sse"}),
    ("/v1/audio/speech", {"input": "a", "response_format": "pcm"}),
)
NOT_LIVE = (
    ("/v1/chat/completions", {**SPOKEN, "audio": {"format": "wav"}}),
    ("/v1/audio/speech", {"input": "a"}),
    ("/v1/audio/speech", {"input": "a", "response_format": "wav"}),
)


@pytest.mark.parametrize("is_live", [True, False])
async def test_speech_over_http_has_a_listener_where_it_is_played_as_it_comes(is_live: bool) -> None:
    """A file that is made slowly has no gap that anybody hears."""
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


async def test_the_guard_can_be_off() -> None:
    async with running(ServerSettings(min_lead_s=0.0)) as served:
        assert served.serving.engine is not None
        served.serving.engine.pressure.least_lead_s = lambda now: -0.2  # type: ignore[method-assign]
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


async def test_a_response_that_the_engine_refuses_says_when_to_come_back() -> None:
    """Over HTTP as a status, since nothing was streamed; in a conversation as the end of the response."""
    said = "No room now: the queue is long. Try again in 7 s."
    refused = Script("", 0.0, status="failed", reason="server_overloaded", message=said, retry_s=6.2)
    async with running(ServerSettings(), FakeEngine(refused)) as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            for asked in (HI, {**HI, "stream": True}):
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
