"""Plain HTTP: models, health, readiness, metrics, the console, errors; and a real process under SIGTERM."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import signal
import sys
import textwrap
from pathlib import Path
from typing import get_args

import httpx
import msgspec
import numpy as np
import pytest
import soundfile

from antiphon.core.facts import PersonFact, ResponseRequested
from antiphon.metrics.names import Metric
from antiphon.server.app import attach_engine, create_app
from antiphon.server.launch import abilities
from antiphon.server.runner import server_for
from antiphon.server.settings import ServerSettings
from antiphon.wire.limits import Limits
from server.conftest import Running, eventually, leaves, running
from server.fake_engine import INFO, CharDetokeniser, FakeEngine, Script

TESTS = Path(__file__).parents[1]


def client_of(app) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def test_loading_then_ready_then_dead() -> None:
    app = create_app()
    async with client_of(app) as client:
        assert (await client.get("/health")).status_code == 200
        loading = await client.get("/ready")
        assert (loading.status_code, loading.headers["Retry-After"]) == (503, "5")
        assert "loading" in loading.json()["error"]["message"]
        assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
        assert (await client.get("/v1/models/x")).status_code == 404
        engine = FakeEngine()
        attach_engine(app, engine, CharDetokeniser)
        assert (await client.get("/ready")).status_code == 200
        model = (await client.get("/v1/models/test-omni")).json()
        assert (model["id"], model["root"]) == ("test-omni", "test-omni")
        engine.die()
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 503


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_comes_to_the_socket_without_an_upgrade_is_told_what_it_is(method: str) -> None:
    async with running() as served, httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.request(method, "/v1/realtime")
    assert (answer.status_code, answer.headers["Upgrade"]) == (426, "websocket")
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("upgrade_required", "invalid_request_error")
    assert "is a WebSocket" in error["message"]


async def test_a_lost_stage_is_not_ready_and_says_why() -> None:
    """And is in the metrics. Who asks all the same is served by what is there."""
    up = {'antiphon_unit_up{unit="talker"}': 0.0, 'antiphon_unit_restarts_total{unit="talker"}': 2.0}
    engine = FakeEngine(lost={"talker": "its process was killed (SIGKILL); it is starting again"}, stats=up)
    async with client_of(create_app(engine, detokenisers=CharDetokeniser)) as client:
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert "talker is lost: its process was killed" in answer.json()["error"]["message"]
        why = "talker is lost: its process was killed (SIGKILL); it is starting again."
        assert (await client.get("/health")).json() == {"status": "alive", "reason": why}
        asked = {"model": "test-omni", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
        text = (await client.get("/metrics")).text
        assert 'antiphon_unit_up{unit="talker"} 0.0' in text
        assert 'antiphon_unit_restarts_total{unit="talker"} 2.0' in text
        engine.lost = {}
        assert (await client.get("/ready")).status_code == 200


async def test_what_a_lost_stage_breaks_off_may_be_asked_again() -> None:
    script = Script(status="failed", reason="stage_lost", message="The talker stage was lost")
    async with client_of(create_app(FakeEngine(script), detokenisers=CharDetokeniser)) as client:
        asked = {"model": "test-omni", "messages": [{"role": "user", "content": "Hi"}]}
        answer = await client.post("/v1/chat/completions", json=asked)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert answer.json()["error"]["code"] == "stage_lost"


async def test_draining_is_not_ready() -> None:
    app = create_app(FakeEngine(), detokenisers=CharDetokeniser)
    await app.state.drain()
    async with client_of(app) as client:
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200


async def test_errors_are_openai_shaped() -> None:
    settings = ServerSettings(api_keys=("k",))
    async with client_of(create_app(FakeEngine(), detokenisers=CharDetokeniser, settings=settings)) as client:
        for path, status, code in (
            ("/v1/nothing", 404, "not_found"),
            ("/v1/models", 401, "invalid_api_key"),
        ):
            answer = await client.get(path)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert answer.json()["error"]["code"] == code
        for method, path, allowed in (
            ("POST", "/health", "GET"),
            ("GET", "/v1/advisories", "POST"),
            ("GET", "/v1/reading", "POST"),
            ("GET", "/v1/chat/completions", "POST"),
            ("POST", "/", "GET, HEAD"),
            ("DELETE", "/main.js", "GET, HEAD"),
        ):
            wrong = await client.request(method, path)
            assert (wrong.status_code, wrong.headers["Allow"]) == (405, allowed)
            assert wrong.json()["error"]["code"] == "method_not_allowed"
            assert f"{method} {path}" in wrong.json()["error"]["message"]
        for method in ("GET", "POST", "PUT", "HEAD"):
            for path in ("/v1/nothing", "/v1/chat/completion", "/no.js", "/" + "x" * 5000):
                missing = await client.request(method, path)
                assert missing.status_code == 404
                if method != "HEAD":
                    error = missing.json()["error"]
                    assert error["code"] == "not_found"
                    assert "/openapi.json lists" in error["message"] or len(path) > 2000
        answer = await client.get("/v1/models", headers={"Authorization": "Bearer k"})
        assert answer.status_code == 200


async def test_a_dead_engine_says_what_to_do() -> None:
    engine = FakeEngine()
    async with client_of(create_app(engine, detokenisers=CharDetokeniser)) as client:
        engine.alive = False
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert "has to be restarted" in answer.json()["error"]["message"]


async def test_a_mistake_is_a_500_without_details() -> None:
    app = create_app(FakeEngine(), detokenisers=CharDetokeniser)
    app.state.serving.metrics = None
    async with client_of(app) as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"


async def test_metrics_after_a_turn(served: Running) -> None:
    async with served.socket() as client:
        await client.send("nonsense")
        await client.send("response.create")
        await client.until("response.done")
    async with httpx.AsyncClient(base_url=served.http) as client:
        text = (await client.get("/metrics")).text
    assert 'antiphon_server_responses_total{status="completed"} 1.0' in text
    assert "antiphon_server_sessions_opened_total 1.0" in text
    assert "antiphon_server_first_audio_seconds_count 1.0" in text
    assert 'antiphon_server_error_events_total{code="invalid_value"} 1.0' in text
    assert "antiphon_sessions 3.0" in text
    assert 'antiphon_steps_total{stage="thinker"} 8.0' in text


async def test_metrics_of_turns_that_are_spoken_interrupted_and_cut() -> None:
    script = Script(audio_s=0.4)
    async with running(engine=FakeEngine(script)) as served:
        async with served.socket() as client:
            await client.by_hand()
            second = base64.b64encode(bytes(48_000)).decode()
            await client.send("input_audio_buffer.append", audio=second)
            await client.send("input_audio_buffer.commit")
            await client.send("response.create")
            done = (await client.until("response.done"))[-1]["response"]
            item = done["output"][0]["id"]
            await client.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=100)
            await client.until("conversation.item.truncated")
            script.gate = asyncio.Event()
            await client.send("response.create")
            await client.until("response.created")
            await client.send("response.cancel")
            await client.until("response.done")
        async with httpx.AsyncClient(base_url=served.http) as client:
            text = (await client.get("/metrics")).text
    assert re.search(r'antiphon_build_info{.*model="test-omni".*version="[\d.]+"} 1.0', text)
    assert "antiphon_server_turn_to_audio_seconds_count 1.0" in text, "typed turns end with nothing spoken"
    assert 'antiphon_server_interrupted_total{reason="client_cancelled"} 1.0' in text
    assert "antiphon_server_truncated_total 1.0" in text
    assert float(re.findall(r"antiphon_server_audio_seconds_total ([0-9.]+)", text)[0]) >= 0.4
    (unheard_s,) = re.findall(r"antiphon_server_unheard_audio_seconds_total ([0-9.]+)", text)
    assert float(unheard_s) == pytest.approx(0.3, abs=0.001)
    assert "antiphon_server_gaps_total 0.0" in text


async def test_a_reply_whose_client_vanishes_counts_once() -> None:
    """As cancelled, with what was sent of it and never heard, be it on a socket or over HTTP."""
    engine = FakeEngine(Script("a b c", audio_s=30.0, chunk_s=10.0, pace_s=0.2))
    async with (
        running(engine=engine) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        async with served.socket() as talker:
            await talker.by_hand()
            await talker.send("response.create")
            await talker.until("response.output_audio.delta")
            talker.connection.transport.abort()
        await eventually(lambda: not served.serving.connections)
        num_cut, unheard_s = unheard(await client.get("/metrics"))
        assert num_cut == 1
        assert 5.0 < unheard_s < 30.0
        hi = {"messages": [{"role": "user", "content": "hi"}]}
        for body in (hi, {**hi, "n": 2}):
            streamed = {**body, "stream": True}
            async with client.stream("POST", "/v1/chat/completions", json=streamed) as answer:
                assert answer.status_code == 200
        num_asked = len(engine.of(ResponseRequested))
        await leaves(
            client.post("/v1/chat/completions", json=hi),
            lambda: len(engine.of(ResponseRequested)) > num_asked,
        )
        await eventually(lambda: not served.serving.connections)
        text = (await client.get("/metrics")).text
    assert 'antiphon_server_responses_total{status="cancelled"} 5.0' in text
    assert 'antiphon_server_interrupted_total{reason="closed"} 5.0' in text
    assert 'status="completed"' not in text


async def test_what_is_never_heard_of_an_interrupted_reply_counts_once() -> None:
    script = Script(audio_s=20.0, chunk_s=10.0, pace_s=0.05)
    async with running(engine=FakeEngine(script)) as served:
        async with served.socket() as client:
            await client.by_hand()
            await client.send("response.create")
            await client.until("response.output_audio.delta")
            await client.send("response.cancel")
            cancelled = await client.until("response.done")
            async with httpx.AsyncClient(base_url=served.http) as metrics:
                before = unheard(await metrics.get("/metrics"))
            item = cancelled[-1]["response"]["output"][0]["id"]
            await client.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=9500)
            await client.until("conversation.item.truncated")
        async with httpx.AsyncClient(base_url=served.http) as metrics:
            assert unheard(await metrics.get("/metrics")) == before
    num_cut, unheard_s = before
    assert num_cut == 1
    assert 5.0 < unheard_s <= 20.0


def unheard(answer: httpx.Response) -> tuple[float, float]:
    """Replies that were cut, and seconds of them that were never heard."""
    names = ("truncated_total", "unheard_audio_seconds_total")
    num_cut, unheard_s = (re.findall(rf"antiphon_server_{name} ([0-9.]+)", answer.text)[0] for name in names)
    return float(num_cut), float(unheard_s)


async def test_log_lines_name_their_session(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "antiphon.server")
    async with running() as served:
        async with served.socket() as client:
            (created,) = await client.until("session.created")
        await eventually(lambda: not served.serving.connections)
    told = [
        record.getMessage() for record in caplog.records if created["session"]["id"] in record.getMessage()
    ]
    assert [line.split(": ")[1].split()[0] for line in told] == ["opened", "closed"]


async def test_metrics_count_what_limits_refuse() -> None:
    limits = Limits(max_items=1, max_audio_s=0.1, max_media_bytes=100)
    script = Script(status="failed", reason="context_length_exceeded", message="9 is over the limit of 8")
    async with running(ServerSettings(limits=limits), FakeEngine(script)) as served:
        async with served.socket() as client:
            await client.by_hand()
            message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
            second = base64.b64encode(bytes(48_000)).decode()
            await client.send("input_audio_buffer.append", audio=second)
            await client.send("response.create")
            await client.until("response.done")
            for _ in range(2):
                await client.send("conversation.item.create", item=message)
            await client.until("error")
            sound = {"type": "input_audio", "audio": base64.b64encode(bytes(4800)).decode()}
            asked = {"type": "message", "role": "user", "content": [sound]}
            await client.send("response.create", response={"input": [asked]})
            await client.until("error")
        async with httpx.AsyncClient(base_url=served.http) as client:
            text = (await client.get("/metrics")).text
    for limit in ("max_items", "max_audio_s", "max_context_tokens", "max_media_bytes"):
        assert f'antiphon_server_refusals_total{{limit="{limit}"}}' in text


async def test_two_apps_share_no_metrics() -> None:
    apps = [create_app(FakeEngine(), detokenisers=CharDetokeniser) for _ in range(2)]
    assert apps[0].state.serving.metrics.registry is not apps[1].state.serving.metrics.registry


async def test_the_console_is_served_and_names_nothing_foreign() -> None:
    async with client_of(create_app(FakeEngine(), detokenisers=CharDetokeniser)) as client:
        page = await client.get("/")
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        for name in ("main.js", "playback.js", "capture.js", "wire.js", "style.css"):
            answer = await client.get(f"/{name}")
            assert answer.status_code == 200
            assert "https://" not in answer.text
        assert (await client.get("/../app.py")).status_code == 404


PROCESS = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from server.fake_engine import CharDetokeniser, FakeEngine
from antiphon.server.app import create_app
from antiphon.server.runner import server_for
app = create_app(FakeEngine(), detokenisers=CharDetokeniser)
asyncio.run(server_for(app, "127.0.0.1", 0).serve())
print("returned", flush=True)
"""


async def test_sigterm_drains_and_serve_returns() -> None:
    code = "import logging; logging.basicConfig(level='INFO')\n" + textwrap.dedent(PROCESS)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code.format(tests=str(TESTS)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    while b"listening on" not in (line := await process.stderr.readline()):
        assert line, "the server did not start"
    assert b"loaded" not in line, "the model is there already"
    process.send_signal(signal.SIGTERM)
    out, _ = await process.communicate()
    assert out == b"returned\n"
    assert process.returncode == 0


async def test_a_server_that_listens_before_its_model_is_loaded_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "antiphon.server")
    server = server_for(create_app(), "127.0.0.1", 0)
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    server.should_exit = True
    await task
    assert "; requests are refused until the model is loaded" in caplog.text


def test_a_start_says_what_the_model_takes_and_gives() -> None:
    text = msgspec.structs.replace(INFO, name="writer", inputs=(), voices=())
    hears = msgspec.structs.replace(INFO, name="listener", inputs=("audio",), voices=())
    talks = msgspec.structs.replace(INFO, name="talk", inputs=("audio",))
    sees = msgspec.structs.replace(INFO, name="omni", inputs=("audio", "image"))
    assert abilities(text) == "writer takes text, and replies in text; it does not hear or speak"
    assert abilities(hears) == "listener takes text and speech, and replies in text; it does not speak"
    assert abilities(talks) == "talk takes text and speech, and replies in text and speech"
    assert abilities(sees) == (
        "omni takes text, speech, pictures and silent video (input_video), and replies in text and speech"
    )


async def test_a_free_port_serves_http() -> None:
    async with running() as served, httpx.AsyncClient(base_url=served.http) as client:
        assert (await client.get("/ready")).json() == {"status": "ready"}


async def test_a_server_that_would_refuse_is_not_ready() -> None:
    """A load balancer sends newcomers elsewhere; nobody was refused by the question."""
    async with (
        running(ServerSettings(max_sessions=1)) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        async with served.socket() as talker:
            await talker.read()
            answer = await client.get("/ready")
            assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "5")
            assert answer.json()["error"]["code"] == "server_overloaded"
            assert "max_sessions: all 1 sessions" in answer.json()["error"]["message"]
        await eventually(lambda: not served.serving.connections)
        assert (await client.get("/ready")).status_code == 200
        served.serving.least_lead_s = lambda: 0.1
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert "about to run dry" in answer.json()["error"]["message"]
        assert "sessions_refused_total{" not in (await client.get("/metrics")).text


async def test_a_decision_that_does_not_return_is_no_health() -> None:
    engine = FakeEngine(stuck="Deciding for 7 s: the policy x (pace of talker) does not answer.")
    transport = httpx.ASGITransport(create_app(engine, detokenisers=CharDetokeniser))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/health", "/ready"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "the policy x (pace of talker)" in answer.text
        engine.stuck = ""
        assert (await client.get("/health")).json() == {"status": "alive"}
        assert (await client.get("/ready")).status_code == 200


async def test_a_recording_that_is_too_long_is_the_clients_error() -> None:
    engine = FakeEngine()
    settings = ServerSettings(limits=Limits(max_audio_s=2.0))
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000 * 3, np.float32), 16_000, format="WAV")
    app = create_app(engine, settings=settings, detokenisers=CharDetokeniser)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(
            "/v1/audio/transcriptions",
            files={"file": ("a.wav", file.getvalue())},
            data={"model": "test-omni"},
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "max_audio_s")
    assert error["message"] == "max_audio_s: the recording is longer than 2 s"
    assert not engine.facts


async def test_health_tells_loading_from_full_from_dead() -> None:
    engine = FakeEngine()
    app = create_app(settings=ServerSettings(max_sessions=0))
    transport = httpx.ASGITransport(app)

    async def told() -> tuple[int, dict[str, str]]:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.get("/health")
            return answer.status_code, answer.json()

    assert await told() == (200, {"status": "loading"})
    app.state.serving.loading = "loading thinker, 40 %"
    assert await told() == (200, {"status": "loading", "reason": "loading thinker, 40 %"})
    attach_engine(app, engine, CharDetokeniser)
    full = {"status": "full", "reason": "max_sessions: all 0 sessions are in use."}
    assert await told() == (200, full)
    app.state.serving.is_draining = True
    assert await told() == (200, {"status": "draining"})
    engine.alive, engine.comes_back = False, True
    assert await told() == (200, {"status": "restarting"})
    engine.comes_back = False
    status, said = await told()
    assert (status, said["status"]) == (503, "dead")
    assert "has to be restarted" in said["reason"]


async def test_policies_are_counted_with_their_names_escaped() -> None:
    engine = FakeEngine()
    engine.stats[Metric.POLICY.of_policy("thinker", 'a "b"\\\n', "raised")] = 3
    transport = httpx.ASGITransport(create_app(engine, detokenisers=CharDetokeniser))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        text = (await client.get("/metrics")).text
    assert 'antiphon_policy_total{event="raised",policy="a \\"b\\"\\\\\\n",unit="thinker"} 3.0' in text or (
        'antiphon_policy_total{unit="thinker",policy="a \\"b\\"\\\\\\n",event="raised"} 3.0' in text
    )


@pytest.mark.parametrize("field", ["preset", "policy", "policies"])
async def test_no_request_names_code(field: str, tmp_path: Path) -> None:
    """Policies are the operator's: what a client says of them loads nothing, and reaches no engine."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    engine = FakeEngine()
    transport = httpx.ASGITransport(create_app(engine, detokenisers=CharDetokeniser))
    body = {
        "model": "test-omni",
        "messages": [{"role": "user", "content": "hi"}],
        field: f"{tmp_path}/evil.py:Evil",
    }
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post("/v1/chat/completions", json=body)
    assert not any("evil" in str(fact) for fact in engine.facts)
    assert not (tmp_path / "ran").exists()
    names = {name for kind in get_args(PersonFact) for name in kind.__struct_fields__}
    assert not names & {"preset", "policy", "policies"}, "no fact of a person could say it"
