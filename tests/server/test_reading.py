"""POST /v1/reading: whose text, how far, and what a report changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from antiphon.core.facts import PlaybackReported, ResponseRequested
from antiphon.server.settings import ServerSettings
from antiphon.wire.readers import ReaderRates
from server.asking import HI
from server.conftest import Running, running
from server.fake_engine import FakeEngine, Script

URL = "/v1/reading"
KEYS = ServerSettings(api_keys=("one", "two"))


def client(server: Running, key: str = "one") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.http, headers={"Authorization": f"Bearer {key}"})


@asynccontextmanager
async def continuing(server: Running, rate: Any, deliver: str) -> AsyncIterator[tuple[Any, str]]:
    """The same as `reading`, of a prompt that is continued."""
    said: Any = {"antiphon": {"rate": rate, "deliver": deliver}}
    async with (
        server.client() as openai,
        await openai.completions.create(
            model="test-omni", prompt="hi", stream=True, extra_body=said
        ) as stream,
    ):
        chunks = (one async for one in stream if one.choices and one.choices[0].text)
        first = await anext(chunks)
        yield (one.choices[0].text async for one in chunks), first.id


@asynccontextmanager
async def reading(
    server: Running, rate: Any = 20, deliver: str = "asap", key: str = "one"
) -> AsyncIterator[tuple[Any, str]]:
    """A stream of "Hello there." that has begun: its further texts, and its id."""
    said: Any = {"antiphon": {"rate": rate, "deliver": deliver}}
    async with (
        server.client().with_options(api_key=key) as openai,
        await openai.chat.completions.create(
            model="test-omni", messages=HI, stream=True, extra_body=said
        ) as stream,
    ):
        chunks = (one async for one in stream if one.choices and one.choices[0].delta.content)
        first = await anext(chunks)
        yield (one.choices[0].delta.content async for one in chunks), first.id


def held() -> FakeEngine:
    """An engine that writes "Hello", and the rest once its gate is set."""
    return FakeEngine(Script(gate=asyncio.Event()))


async def report(http: httpx.AsyncClient, completion: str, chars: int) -> httpx.Response:
    return await http.post(URL, json={"completion_id": completion, "read_chars": chars})


async def test_a_report_reaches_the_engine_in_seconds_of_reading() -> None:
    engine = held()
    async with running(engine=engine) as server, client(server) as http, reading(server) as (texts, name):
        await asyncio.sleep(0.3)  # there was time to read five tokens at 20 a second
        answer = await report(http, name, 4)
        assert answer.status_code == 200
        assert answer.json() == {"completion_id": name, "read_chars": 4, "sent_chars": 5}
        (fact,), (asked,) = engine.of(PlaybackReported), engine.of(ResponseRequested)
        assert (fact.session, fact.response) == (asked.session, asked.response)
        assert fact.played_s == pytest.approx(4 / 20)
        assert engine.script.gate is not None
        engine.script.gate.set()
        assert [text async for text in texts] == [" there."]
        over = await report(http, name, 5)
        assert (over.status_code, over.json()["error"]["code"]) == (404, "completion_not_found")


async def test_what_nobody_can_have_read_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what was sent counts as that, and as what there was time for; backwards changes nothing."""
    monkeypatch.setattr("antiphon.wire.reading.MIN_GAP_S", 0.0)
    engine = held()
    async with running(engine=engine) as server, client(server) as http, reading(server, 2) as (_, name):
        shown = [(await report(http, name, chars)).json()["read_chars"] for chars in (1 << 31, 2, 5)]
        assert shown == [5, 5, 5]
        told = [fact.played_s for fact in engine.of(PlaybackReported)]
        assert len(told) == 2, "the one that goes back tells nothing"
        assert max(told) < 2.5, "five tokens take 2.5 s to read"


async def test_a_paced_stream_waits_for_whoever_reads_more_slowly() -> None:
    async with running() as server, client(server) as http, reading(server, 20, "paced") as (texts, name):
        await asyncio.sleep(0.1)
        told_at = time.monotonic()
        await report(http, name, 0)
        await anext(texts)
        assert time.monotonic() - told_at >= 0.24, "all five tokens were still to be read"


async def test_a_report_of_having_caught_up_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.wire.reading.MIN_GAP_S", 0.0)
    async with running() as server, client(server) as http, reading(server, 2, "paced") as (texts, name):
        await asyncio.sleep(1.0)
        for chars in (0, 5):
            await report(http, name, chars)
        told_at = time.monotonic()
        await anext(texts)
        assert time.monotonic() - told_at < 2.0, "nobody waits for the 2.5 s that were left by the first"


async def test_a_paced_text_behind_a_call_does_not_wait_for_the_call_to_be_read() -> None:
    """Its 240 tokens would take 10 s."""
    call = json.dumps({"name": "note", "arguments": {"it": "x" * 200}}).replace(" ", "")
    script = Script(f"On it. <tool_call>{call}</tool_call> Done now.")
    said: Any = {"antiphon": {"rate": 24, "deliver": "paced"}}
    tools: Any = [{"type": "function", "function": {"name": "note"}}]
    async with running(engine=FakeEngine(script)) as server, server.client() as openai:
        stream = await openai.chat.completions.create(
            model="test-omni", messages=HI, tools=tools, stream=True, extra_body=said
        )
        async with asyncio.timeout(5):
            deltas = [one.choices[0].delta async for one in stream]
    assert "".join(delta.content or "" for delta in deltas) == "On it.Done now."
    assert any(delta.tool_calls for delta in deltas)


async def test_another_keys_text_is_as_unknown_as_none() -> None:
    async with (
        running(KEYS, held()) as server,
        client(server, "two") as http,
        client(server) as own,
        reading(server) as (_, name),
    ):
        foreign, unknown = await report(http, name, 1), await report(http, "chatcmpl-none", 1)
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.text.replace(name, "chatcmpl-none") == unknown.text
        async with client(server, "none") as wrong:
            assert (await report(wrong, name, 1)).status_code == 401
        assert not server.engine.of(PlaybackReported)
        assert (await report(own, name, 1)).status_code == 200


async def test_an_agent_has_no_reader() -> None:
    async with running(engine=held()) as server, client(server) as http, reading(server, "auto") as (_, name):
        answer = await report(http, name, 1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "completion_id")


async def test_a_flood_of_reports_is_refused_and_tells_the_engine_nothing() -> None:
    engine = held()
    async with running(engine=engine) as server, client(server) as http, reading(server) as (_, name):
        answers = [await report(http, name, 1) for _ in range(3)]
        assert answers[0].status_code == 200
        refused = [one for one in answers if one.status_code == 429]
        assert refused, "they came at once"
        assert refused[0].headers["Retry-After"] == "1"
        assert len(engine.of(PlaybackReported)) == len(answers) - len(refused)


@pytest.mark.parametrize("chars", ["-1", "1.5", "true", '"4"', "NaN", "1e9999", "null", "4294967296"])
async def test_what_is_no_number_of_characters_is_a_typed_error(served: Running, chars: str) -> None:
    async with client(served) as http:
        answer = await http.post(URL, content=f'{{"completion_id": "chatcmpl-x", "read_chars": {chars}}}')
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_who_reads_is_the_operators_to_say_on_every_surface() -> None:
    settings = ServerSettings(readers=ReaderRates(reading=8.0, streamed="reading", whole="auto"))
    async with running(settings) as server, server.client() as openai, server.socket() as socket:
        for stream in (False, True):
            chat = await openai.chat.completions.create(model="test-omni", messages=HI, stream=stream)
            text = await openai.completions.create(model="test-omni", prompt="hi", stream=stream)
            for answer in (chat, text) if stream else ():
                async for _ in answer:
                    pass
        for modality in ("text", "audio"):
            await socket.send("response.create", response={"output_modalities": [modality]})
            await socket.until("response.done")
        rates = [asked.rate for asked in server.engine.of(ResponseRequested)]
        assert rates == ["auto", "auto", 8.0, 8.0, 8.0, None]


BODIES = {
    "chat/completions": '"messages": [{"role": "user", "content": "hi"}]',
    "completions": '"prompt": "hi"',
    "audio/speech": '"input": "hi", "voice": "chelsie", "model": "test-omni"',
}


@pytest.mark.parametrize("rate", ["0", "-3", "NaN", "1e9", "1e999", '"fast"', "true", "null"])
@pytest.mark.parametrize("path", BODIES)
async def test_no_surface_takes_a_rate_that_is_none(served: Running, path: str, rate: str) -> None:
    """Where a text is read at a rate, it has to be one; elsewhere there is no such field."""
    body = f'{{{BODIES[path]}, "stream": true, "antiphon": {{"rate": {rate}}}}}'
    if path == "audio/speech":
        body = body.replace('"stream": true, ', "")
    async with client(served) as http:
        answer = await http.post(f"/v1/{path}", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_json" or error["param"].startswith("antiphon"), "for no other reason"
    assert not served.engine.of(ResponseRequested), "the engine is not asked"


async def test_a_realtime_session_has_no_rate(served: Running) -> None:
    async with served.socket() as socket:
        await socket.send("response.create", response={"antiphon": {"rate": 12}})
        error = (await socket.until("error"))[-1]["error"]
    assert error["type"] == "invalid_request_error"
    assert not served.engine.of(ResponseRequested)


async def test_a_prompt_that_is_continued_has_a_reader_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.wire.reading.MIN_GAP_S", 0.0)
    async with running() as server, client(server) as http, continuing(server, 20, "paced") as (texts, name):
        began_at = time.monotonic()
        await asyncio.sleep(0.1)
        answer = await report(http, name, 1)
        assert answer.json() == {"completion_id": name, "read_chars": 1, "sent_chars": 5}
        assert server.engine.of(ResponseRequested)[0].rate == 20
        assert server.engine.of(PlaybackReported)[0].played_s == pytest.approx(1 / 20)
        await anext(texts)
        assert time.monotonic() - began_at >= 0.24, "four of five tokens were still to be read"


async def test_a_drain_waits_for_no_reader() -> None:
    slowly = ServerSettings(readers=ReaderRates(reading=0.1))
    async with running(slowly) as server, reading(server, "reading", "paced") as (texts, _):
        drained = asyncio.create_task(server.serving.drain())
        async with asyncio.timeout(10):
            assert [text async for text in texts] == [" there."], "it is sent as it is written"
            await drained
