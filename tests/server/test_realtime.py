"""Sockets: who gets one, what harms nobody, and how each ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import websockets

from antiphon.core.conversation import AudioPart
from antiphon.core.errors import Overloaded, ProtocolError
from antiphon.core.facts import ItemAdded, ResponseCancelled, ResponseRequested, SessionClosed
from antiphon.server.media import BoundedMedia
from antiphon.server.settings import ServerSettings
from antiphon.wire.guides import AskedGuide
from antiphon.wire.limits import Limits
from server.conftest import Running, eventually, running
from server.fake_engine import FakeEngine, Script
from wire.harness import kinds, message, pcm


async def refusal(served: Running, query: str = "", **options: object) -> tuple[int, dict, str | None]:
    """Status, error and Retry-After of a handshake that is refused."""
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with served.socket(query, **options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"], response.headers.get("Retry-After")


async def test_disconnect_in_mid_response_frees_the_engine() -> None:
    async with running(engine=FakeEngine(Script(gate=asyncio.Event()))) as served:
        async with served.socket() as client:
            await client.send("response.create")
            await client.until("response.output_audio_transcript.delta")
        await eventually(lambda: bool(served.engine.of(SessionClosed)))
        assert served.engine.sinks == {}
        await eventually(lambda: not served.serving.connections)


async def test_cancel_over_the_wire() -> None:
    async with running(engine=FakeEngine(Script(gate=asyncio.Event()))) as served, served.socket() as client:
        await client.send("response.create")
        await client.until("response.output_audio_transcript.delta")
        await client.send("response.cancel")
        done = (await client.until("response.done"))[-1]
        assert done["response"]["status"] == "cancelled"


async def test_a_dead_engine_ends_responses_and_health() -> None:
    async with running(engine=FakeEngine(Script(gate=asyncio.Event()))) as served, served.socket() as client:
        await client.send("response.create")
        await client.until("response.output_audio_transcript.delta")
        served.engine.die()
        done = (await client.until("response.done"))[-1]
        assert done["response"]["status_details"]["error"]["code"] == "engine_dead"
        status, error, retry = await refusal(served)
        assert (status, error["code"], retry) == (503, "server_unavailable", "5")


async def test_an_engine_that_is_started_again_forgets_who_talked_with_it() -> None:
    """They are told what was cut, and that they may come again; meanwhile nobody is taken, and after it all
    are."""
    async with running(engine=FakeEngine(Script(gate=asyncio.Event()))) as served:
        async with served.socket() as client:
            await client.send("response.create")
            await client.until("response.output_audio_transcript.delta")
            served.engine.comes_back = True
            served.engine.die()
            served.serving.forsake()
            done = (await client.until("response.done"))[-1]
            assert done["response"]["status"] == "failed"
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await client.until("session.created")
            assert closed.value.rcvd.code == 1012
        status, error, _ = await refusal(served)
        assert (status, error["code"]) == (503, "server_unavailable")
        assert "started again" in error["message"]
        served.engine.comes_back, served.engine.alive = False, True
        async with served.socket() as client:
            await client.until("session.created")


GARBAGE: list[str | bytes] = [
    b"\x00\xff" * 100,
    "not json",
    "[" * 200_000,
    "[]",
    "{}",
    json.dumps({"type": "nonsense"}),
    json.dumps({"type": "session.update", "session": {"type": 7}}),
    json.dumps({"type": "input_audio_buffer.append", "audio": "A" * (21 << 20)}),
]


async def test_garbage_gets_errors_and_disturbs_nobody(served: Running) -> None:
    async with served.socket() as vandal, served.socket() as other:
        await vandal.until("session.created")
        for frame in GARBAGE:
            await vandal.connection.send(frame)
            assert (await vandal.read())["type"] == "error"
        for client in (other, vandal):
            await client.send("response.create", response={"output_modalities": ["text"]})
            assert (await client.until("response.done"))[-1]["response"]["status"] == "completed"


async def test_an_absurd_frame_ends_only_its_own_connection(served: Running) -> None:
    async with served.socket() as other:
        async with served.socket() as vandal:
            await vandal.until("session.created")
            with contextlib.suppress(websockets.ConnectionClosed):
                await vandal.connection.send("x" * (43 << 20))
            await closed_with(vandal.connection, 1009)
        await other.send("response.create")
        await other.until("response.done")


async def test_a_mistake_of_ours_is_an_error_event(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.serving, "detokenisers", lambda: 1 / 0)
    async with served.socket() as client:
        await client.send("response.create")
        assert (await client.until("error"))[-1]["error"]["type"] == "server_error"
        await client.send("input_audio_buffer.clear")
        assert (await client.read())["type"] == "input_audio_buffer.cleared"


async def test_heavy_frames_keep_their_order(served: Running) -> None:
    async with served.socket() as client:
        await client.by_hand()
        await client.send("response.create")
        await client.send("input_audio_buffer.append", audio=pcm(40.0))
        await client.send("input_audio_buffer.commit")
        wanted = {"response.done", "input_audio_buffer.committed"}
        seen: list[str] = []
        while not wanted <= set(seen):
            seen.append((await client.read())["type"])
        assert served.engine.added[0].item.parts[0].num_samples == 640_000


class HeldMedia(BoundedMedia):
    """Decodes only after `release`: a thread that takes long."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.entered, self.release = threading.Event(), threading.Event()

    def audio_part(self, pcm16_24k: bytes) -> AudioPart:
        self.entered.set()
        assert self.release.wait(10)
        return super().audio_part(pcm16_24k)


async def test_outputs_wait_while_a_thread_holds_the_session() -> None:
    gate = asyncio.Event()
    async with running(engine=FakeEngine(Script(gate=gate))) as served:
        media = served.serving.media = HeldMedia()
        async with served.socket() as client:
            await client.by_hand()
            await client.send("response.create")
            await client.until("response.output_audio_transcript.delta")
            await client.send("input_audio_buffer.append", audio=pcm(31.0))
            await client.send("input_audio_buffer.commit")
            await eventually(media.entered.is_set)
            gate.set()
            await eventually(lambda: not served.engine.num_open)
            media.release.set()
            assert kinds(await client.until("response.done"))[0] == "input_audio_buffer.committed"


async def test_leaving_while_a_thread_holds_the_session(served: Running) -> None:
    media = served.serving.media = HeldMedia()
    async with served.socket() as client:
        await client.by_hand()
        await client.send("input_audio_buffer.append", audio=pcm(31.0))
        await client.send("input_audio_buffer.commit")
        await eventually(media.entered.is_set)
    assert not served.engine.of(SessionClosed)
    media.release.set()
    await eventually(lambda: isinstance(served.engine.facts[-1], SessionClosed))


async def test_an_output_that_meets_a_mistake_is_an_error_event(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.wire.outputs.framed", lambda *_: 1 / 0)
    async with served.socket() as client:
        await client.send("response.create")
        events = await client.until("response.done")
        assert "server_error" in [event["error"]["type"] for event in events if event["type"] == "error"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?model=gpt-realtime", 404, "model_not_found"),
        ("?model=org%2Fmy+model", 404, "model_not_found"),
        ("?model=test-omni&intent=transcription", 400, "invalid_value"),
        ("?call_id=rtc_1", 400, "invalid_value"),
    ],
)
async def test_refused_queries(served: Running, query: str, status: int, code: str) -> None:
    got, error, _ = await refusal(served, query)
    assert (got, error["code"]) == (status, code)
    if "+" in query:
        assert "org/my model" in error["message"]


async def test_origins() -> None:
    async with running(ServerSettings(origins=("https://app.example.org",))) as served:
        for origin in (None, f"http://127.0.0.1:{served.port}", "https://app.example.org"):
            async with served.socket(origin=origin) as client:
                await client.until("session.created")
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[", "http://[x]"):
            status, error, _ = await refusal(served, origin=origin)
            assert (status, error["code"]) == (403, "forbidden_origin")


async def test_a_rebound_name_is_not_the_same_origin(served: Running) -> None:
    host = f"evil.example:{served.port}"
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(UPGRADE.format(host=host, more=f"Origin: http://{host}\r\n").encode())
    assert b" 403 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_keys_as_bearer_or_subprotocol() -> None:
    async with running(ServerSettings(api_keys=("k1", "k2"))) as served:
        status, error, _ = await refusal(served)
        assert (status, error["code"]) == (401, "invalid_api_key")
        async with served.socket(additional_headers={"Authorization": "Bearer k2"}) as client:
            await client.until("session.created")
        offered = ["realtime", "openai-insecure-api-key.k1"]
        async with served.socket(subprotocols=offered) as client:
            assert client.connection.subprotocol == "realtime"


async def test_the_last_place() -> None:
    async with running(ServerSettings(max_sessions=1, retry_after_s=2.5)) as served:
        async with served.socket() as client:
            await client.until("session.created")
            status, error, retry = await refusal(served)
            assert (status, error["code"], retry) == (503, "server_overloaded", "3")
            assert "max_sessions" in error["message"]
        await eventually(lambda: not served.serving.connections)
        async with served.socket() as client:
            await client.until("session.created")


async def test_one_api_key_leaves_places_for_others() -> None:
    def bearer(key: str) -> dict[str, Any]:
        return {"additional_headers": {"Authorization": f"Bearer {key}"}}

    async with (
        running(ServerSettings(max_sessions=4, api_keys=("k1", "k2"))) as served,
        AsyncExitStack() as open_sockets,
    ):
        for _ in range(3):
            client = await open_sockets.enter_async_context(served.socket(**bearer("k1")))
            await client.until("session.created")
        status, error, _ = await refusal(served, **bearer("k1"))
        assert (status, error["code"]) == (503, "server_overloaded")
        assert error["message"] == "max_sessions: the sessions that are left are kept for other API keys."
        client = await open_sockets.enter_async_context(served.socket(**bearer("k2")))
        await client.until("session.created")
        for key in ("k1", "k2"):
            _, error, _ = await refusal(served, **bearer(key))
            assert error["message"] == "max_sessions: all 4 sessions are in use."


UPGRADE = (
    "GET /v1/realtime HTTP/1.1\r\nHost: {host}\r\n{more}Upgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def masked_text(text: str) -> bytes:
    """A client's text frame with a zero mask."""
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text.encode()


@asynccontextmanager
async def deaf_client(port: int) -> AsyncIterator[socket.socket]:
    """Asks for a response and reads nothing of it."""
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.setblocking(False)
        await loop.sock_sendall(raw, UPGRADE.format(host="localhost", more="").encode())
        assert b" 101 " in await loop.sock_recv(raw, 64)
        await loop.sock_sendall(raw, masked_text('{"type":"response.create"}'))
        yield raw


async def test_a_slow_reader_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerSettings(max_queued_bytes=4 << 20)
    async with running(settings, FakeEngine(Script(audio_s=400.0, chunk_s=4.0))) as served:
        async with deaf_client(served.port):
            await eventually(lambda: bool(served.engine.of(SessionClosed)))
            await eventually(lambda: not served.server.server_state.connections)
        assert "max_queued_bytes" in caplog.text
        async with served.socket() as other:
            await other.until("session.created")


async def test_a_stalled_reader_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerSettings(stall_s=0.05)
    async with running(settings, FakeEngine(Script(audio_s=300.0, chunk_s=4.0))) as served:
        async with deaf_client(served.port):
            await eventually(lambda: bool(served.engine.of(SessionClosed)))
            await eventually(lambda: not served.server.server_state.connections)
        assert "stall_s" in caplog.text


async def test_drain_lets_the_running_response_finish() -> None:
    gate = asyncio.Event()
    async with running(engine=FakeEngine(Script(gate=gate))) as served:
        async with served.socket() as busy, served.socket() as idle:
            await busy.send("response.create")
            await busy.until("response.output_audio_transcript.delta")
            await idle.until("session.created")
            served.server.should_exit = True
            await closed_with(idle.connection, 1001)
            status, _, retry = await refusal(served)
            assert (status, retry) == (503, "5")
            gate.set()
            assert (await busy.until("response.done"))[-1]["response"]["status"] == "completed"
            await closed_with(busy.connection, 1001)
        assert len(served.engine.of(SessionClosed)) == 2


async def test_a_drain_says_what_is_open_and_how_long_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "antiphon.server")
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(ServerSettings(drain_s=30.0), engine) as served, served.client() as openai:
        hi = [{"role": "user", "content": "hi"}]
        asked = asyncio.create_task(openai.chat.completions.create(model="test-omni", messages=hi))
        async with served.socket(), served.socket() as talker:
            await talker.send("response.create")
            await eventually(lambda: engine.num_open == 2)
            served.server.should_exit = True
            said = "draining: 2 sessions and 1 HTTP reply open; running replies have 30 s to end, a second"
            await eventually(lambda: said in caplog.text)
            served.server.force_exit = True
            with pytest.raises(websockets.ConnectionClosed):
                await talker.until("response.done")
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


def test_who_is_cut_off_by_a_second_signal_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def cut_off() -> None:
        engine = FakeEngine(Script(gate=asyncio.Event()))
        async with running(engine=engine) as served, served.socket() as client:
            await client.send("response.create")
            await client.until("response.output_audio_transcript.delta")
            served.server.handle_exit(signal.SIGINT, None)
            await eventually(lambda: served.serving.is_draining)
            served.server.handle_exit(signal.SIGINT, None)
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await client.until("response.done")
            assert closed.value.rcvd.code == 1012

    asyncio.run(cut_off())  # its end cancels what the server left
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_drain_is_bounded_and_still_ends_responses() -> None:
    settings = ServerSettings(drain_s=0.05)
    async with running(settings, FakeEngine(Script(gate=asyncio.Event()))) as served:
        async with served.socket() as client:
            await client.send("response.create")
            await client.until("response.output_audio_transcript.delta")
            await served.app.state.drain()
            done = (await client.until("response.done"))[-1]["response"]
            assert done["status_details"]["error"]["code"] == "server_shutting_down"
            await closed_with(client.connection, 1001)
        assert served.engine.of(ResponseCancelled)


async def closed_with(connection: websockets.ClientConnection, code: int) -> None:
    with pytest.raises(websockets.ConnectionClosed):
        async with asyncio.timeout(5):
            await connection.recv()
    assert connection.close_code == code


class Guides:
    """Says of guides what it is told to, once its gate is set."""

    def __init__(self, wrong: Exception | None = None) -> None:
        self.gate, self.asked, self._wrong = asyncio.Event(), [], wrong

    async def check(self, asked: AskedGuide, key: int | None) -> None:
        self.asked.append((asked.param, key))
        await self.gate.wait()
        if self._wrong is not None:
            raise self._wrong


FORCED: Any = {"tools": [{"type": "function", "name": "sky"}], "tool_choice": "required"}


@pytest.mark.parametrize("wrong", [None, ProtocolError("No."), Overloaded("Later.", 1.0), OSError("memory")])
async def test_a_call_waits_for_its_guide_and_what_follows_for_the_call(wrong: Exception | None) -> None:
    async with running(engine=FakeEngine(Script(gate=asyncio.Event()))) as served, served.socket() as client:
        guides = served.serving.guides = Guides(wrong)
        await client.send("response.create", response=FORCED)
        await client.until("response.created")
        await eventually(lambda: bool(guides.asked))
        await client.send("conversation.item.create", item=message())
        await client.until("conversation.item.added")
        await client.send("response.cancel")
        assert guides.asked == [("tools", None)]
        assert not served.engine.of((ResponseRequested, ItemAdded, ResponseCancelled))
        guides.gate.set()
        assert (await client.until("response.done"))[-1]["response"]["status"] == "cancelled"
        told = served.engine.of((ResponseRequested, ItemAdded, ResponseCancelled))
        assert [type(fact) for fact in told] == [ResponseRequested, ItemAdded, ResponseCancelled]
        assert [one.guide is not None for one in told[0].sampling.values()] == (
            [True] if wrong is None else []
        )


async def test_who_leaves_before_a_guide_is_known_asks_for_nothing() -> None:
    async with running() as served:
        guides = served.serving.guides = Guides()
        async with served.socket() as client:
            await client.send("response.create", response=FORCED)
            await eventually(lambda: bool(guides.asked))
        await eventually(lambda: bool(served.engine.of(SessionClosed)))
        await eventually(lambda: not served.serving.connections)
        guides.gate.set()
        await asyncio.sleep(0.05)
        assert not served.engine.of(ResponseRequested)
