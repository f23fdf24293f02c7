"""The console's files and its feed, without a browser."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import msgspec
import pytest
import websockets

from antiphon.core.playback import Source
from antiphon.core.snapshot import SessionShown, Snapshot, StageShare, StageShown, StepShown
from antiphon.policy.most_urgent import MostUrgent
from antiphon.policy.next_use import NextUse
from antiphon.policy.token_buffer import TokenBuffer
from antiphon.policy.urgency import Urgency
from antiphon.server.app import CONSOLE, create_app
from antiphon.server.feed import Feed
from antiphon.server.settings import ServerSettings
from antiphon.stage.kv_asks import KvMove
from server.conftest import Running, eventually, running
from server.fake_engine import FakeEngine, Script

FILES = sorted(path for path in CONSOLE.iterdir() if path.is_file())


def snapshot(at: float = 1.0, count: int = 1) -> Snapshot:
    """What an engine with `count` sessions shows."""
    why = "runs dry: at most 1 s ahead"
    shares = (
        StageShare("thinker", 20, None, 120, 8, 2.1, "the step under way on its device", "U0", why),
        StageShare("talker", 40, 3.2, 60, 4, 2.0, "held", "U2", "5.2 s ahead of the listener", at + 0.5),
        StageShare("code2wav", None, 2.4, 0, 0),
    )
    sessions = tuple(
        SessionShown(f"sess_{n:06}", "replying", "estimated", 2.4, 1.2, 0.25, None, True, shares)
        for n in range(count)
    )
    stages = (StageShown("thinker", 1, 0, 100, 80, 12), StageShown("talker", 1, 0, 100, 96, 0))
    step = StepShown(7, at, "thinker", "decode", count, count, "prompts first", ("sess_000000",))
    makers = tuple(share.stage for share in shares)
    return Snapshot(at, sessions, stages, (step,), 1, makers=makers)


def feed_url(server: Running) -> str:
    return f"ws://127.0.0.1:{server.port}/console/feed"


async def test_every_file_is_served_and_nothing_foreign_may_run() -> None:
    transport = httpx.ASGITransport(create_app(FakeEngine(), detokenisers=list))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/", *(f"/{file.name}" for file in FILES)):
            answer = await client.get(path)
            assert answer.status_code == 200
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_name_only_what_is_here(file: Path) -> None:
    text = file.read_text()
    foreign = [url for url in re.findall(r"https?://[^\s'\"<>`]+", text) if "www.w3.org/2000/svg" not in url]
    assert not foreign
    here = {path.name for path in FILES}
    named = re.findall(r'(?:from|src=|href=|addModule\()\s*"(?:\./)?([\w.-]+\.(?:js|css))"', text)
    assert set(named) <= here
    if file.suffix == ".html":
        assert not re.search(r"\sstyle=|\son\w+=|<script>|<style>", text), "the policy would refuse it"


async def test_the_feed_shows_what_the_engine_shows(served: Running) -> None:
    async with websockets.connect(feed_url(served)) as one, websockets.connect(feed_url(served)) as two:
        await eventually(lambda: len(served.app.state.feed._viewers) == 2)
        assert served.engine.viewer is not None
        served.engine.viewer(snapshot())
        for viewer in (one, two):
            shown = json.loads(await viewer.recv())
            talker = shown["sessions"][0]["stages"][1]
            assert (talker["stage"], talker["done"], talker["audio_s"]) == ("talker", 40, 3.2)
            assert (talker["kv_tokens"], talker["kv_blocks"]) == (60, 4)
        await one.send("what is said is not listened to")
        await one.close()
        await eventually(lambda: len(served.app.state.feed._viewers) == 1)
        assert served.engine.viewer is not None
    await eventually(lambda: served.engine.viewer is None)


async def test_nobody_watches_an_engine_that_is_not_looked_at(served: Running) -> None:
    async with served.socket() as socket:
        await socket.read()
        assert served.engine.viewer is None


async def test_a_viewer_takes_no_sessions_place() -> None:
    async with (
        running(ServerSettings(max_sessions=1)) as server,
        websockets.connect(feed_url(server)),
        server.socket() as socket,
    ):
        assert (await socket.read())["type"] == "session.created"


async def test_a_request_over_http_is_of_its_key_while_it_lasts() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(ServerSettings(api_keys=("one", "two")), engine) as server:
        serving = server.serving
        headers = {"Authorization": "Bearer two"}
        asked = {"model": server.engine.info.name, "messages": [{"role": "user", "content": "Hello!"}]}
        async with httpx.AsyncClient(base_url=server.http, headers=headers) as client:
            answer = asyncio.create_task(client.post("/v1/chat/completions", json=asked))
            await eventually(lambda: bool(serving.keys))
            (session,) = serving.keys
            assert serving.key_of(session) == 1
            answer.cancel()
            await eventually(lambda: not serving.keys)
            assert serving.key_of(session) is None


async def test_who_reads_slowly_sees_the_latest() -> None:
    engine = FakeEngine()
    feed = Feed(lambda: engine)
    viewer = feed.join()
    waiting = asyncio.create_task(viewer.get())
    await asyncio.sleep(0)
    assert engine.viewer is not None
    engine.viewer(snapshot(1.0))
    assert json.loads(await waiting)["at"] == 1.0
    for at in (2.0, 3.0):
        engine.viewer(snapshot(at))
    assert json.loads(await viewer.get())["at"] == 3.0
    feed.leave(viewer)
    feed.leave(viewer)
    assert engine.viewer is None


async def test_who_may_not_talk_may_not_watch(caplog: pytest.LogCaptureFixture) -> None:
    async with running(ServerSettings(api_keys=("k",))) as server:
        url = feed_url(server)
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer k", "Origin": "https://evil.example"}, 403),
        ):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(url, additional_headers=headers)
            assert refused.value.response.status_code == status
        offered = ["realtime", "openai-insecure-api-key.k"]
        async with websockets.connect(url, subprotocols=offered) as viewer:
            assert viewer.subprotocol == "realtime"
        server.engine.alive = False
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(url, subprotocols=offered)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"] == "5"
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "a refusal is no error"


async def test_a_viewer_sees_the_sessions_of_its_key_only() -> None:
    async with (
        running(ServerSettings(api_keys=("one", "two"))) as server,
        server.socket(additional_headers={"Authorization": "Bearer one"}) as socket,
    ):
        own = (await socket.read())["session"]["id"]
        shown = snapshot(count=1)
        sessions = tuple(
            msgspec.structs.replace(shown.sessions[0], session=name) for name in (own, "sess_other")
        )
        steps = (msgspec.structs.replace(shown.steps[0], sessions=(own, "sess_other")),)
        for key, names in (("one", [own]), ("two", [])):
            headers = {"Authorization": f"Bearer {key}"}
            async with websockets.connect(feed_url(server), additional_headers=headers) as viewer:
                await eventually(lambda: server.engine.viewer is not None)
                assert server.engine.viewer is not None
                server.engine.viewer(msgspec.structs.replace(shown, sessions=sessions, steps=steps))
                seen = json.loads(await viewer.recv())
                assert [one["session"] for one in seen["sessions"]] == names
                assert [step["sessions"] for step in seen["steps"]] == [names]
            await eventually(lambda: server.engine.viewer is None)


def test_every_move_of_kv_has_words() -> None:
    words = (CONSOLE / "reasons.js").read_text().split("const MOVES = {")[1].split("}")[0]
    named = set(re.findall(r"(\w+): \"", words))
    assert named == {*KvMove, "used", "unused"}


def test_every_event_that_a_policy_counts_has_words() -> None:
    words = (CONSOLE / "words.js").read_text().split("const EVENTS = {")[1].split("}")[0]
    named = set(re.findall(r"(\w+): \"", words))
    policies = [kind() for kind in (Urgency, MostUrgent, NextUse, TokenBuffer)]
    assert {event for policy in policies for event in policy.events} <= named


def test_every_source_has_words() -> None:
    words = (CONSOLE / "words.js").read_text().split("const SOURCES = {")[1].split("}")[0]
    assert set(re.findall(r"(\w+): \"", words)) == {source.name.lower() for source in Source}
