"""Chat completions that are refused or break: each error says what is wrong, and whose it is."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from antiphon.core.facts import ResponseRequested
from antiphon.server.settings import ServerSettings
from antiphon.wire.limits import Limits
from server.asking import HI, data_url, picture
from server.conftest import Running, running
from server.fake_engine import FakeEngine, Script

REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"messages": []}, 400, "invalid_value", "messages"),
    ({"messages": HI, "n": 17}, 400, "invalid_value", "n"),
    ({"messages": HI, "logit_bias": {"x": 1}}, 400, "invalid_value", "logit_bias"),
    ({"messages": HI, "stop": [""]}, 400, "invalid_value", "stop[0]"),
    ({"messages": HI, "top_logprobs": 2}, 400, "invalid_value", "top_logprobs"),
    ({"messages": HI, "tempreature": 1}, 400, "unknown_parameter", "tempreature"),
    ({"messages": HI, "temperature": 3}, 400, "invalid_value", "temperature"),
    ({"messages": HI, "model": "gpt"}, 404, "model_not_found", "model"),
    ({"messages": HI, "audio": {"voice": "a", "format": "aac"}}, 400, "invalid_value", "audio.format"),
    (
        {"messages": HI, "stream": True, "audio": {"voice": "a", "format": "wav"}},
        400,
        "invalid_value",
        "audio.format",
    ),
    ({"messages": HI, "tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    ({"messages": [{"role": "user"}]}, 400, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "assistant"}]}, 400, "missing_required_parameter", "messages[0].content"),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), REFUSED)
async def test_refusals_name_what_is_wrong(
    served: Running, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert set(error) == {"message", "type", "param", "code"}
    assert not served.engine.of(ResponseRequested)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,####"}},
        {"type": "image_url", "image_url": {"url": "data:nothing"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": data_url(b"\x00\x00\x00 ftypisom", "video/mp4")}},
        {"type": "video", "video": [data_url(picture()), data_url(picture((9, 9)))]},
        {"type": "file", "file": {"file_id": "x"}},
    ],
)
async def test_media_that_cannot_be_had(served: Running, part: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        body = {"messages": [{"role": "user", "content": [part]}]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("messages[")


@pytest.mark.parametrize("rate", ["0", "1e9", "NaN", "-3", '"fast"', "1e999", "true"])
async def test_a_rate_that_nobody_reads_at_is_refused(served: Running, rate: str) -> None:
    messages = '[{"role": "user", "content": "hi"}]'
    body = f'{{"messages": {messages}, "stream": true, "antiphon": {{"rate": {rate}}}}}'
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not served.engine.of(ResponseRequested), "the engine is not asked"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_the_clients_error(stream: bool) -> None:
    script = Script(text="", status="failed", reason="context_length_exceeded", message="9 over 8")
    async with running(engine=FakeEngine(script)) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="test-omni", messages=HI, stream=stream)  # type: ignore[call-overload]
    assert refused.value.code == "context_length_exceeded"


async def test_a_stream_that_breaks_ends_with_an_error() -> None:
    script = Script(status="failed", reason="stage_failed", message="The talker stage failed")
    async with running(engine=FakeEngine(script)) as served:
        async with served.client() as client:
            stream = await client.chat.completions.create(model="test-omni", messages=HI, stream=True)
            with pytest.raises(openai.APIError, match="talker stage failed"):
                [chunk async for chunk in stream]
        async with httpx.AsyncClient(base_url=served.http) as client:
            whole = await client.post("/v1/chat/completions", json={"messages": HI})
            assert (whole.status_code, whole.json()["error"]["code"]) == (500, "stage_failed")


async def test_a_body_that_carries_no_media_is_small(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("completions", "speech"):
        monkeypatch.setattr(f"antiphon.server.{room}.MAX_TEXT_BODY_BYTES", 1000)
    async with httpx.AsyncClient(base_url=served.http) as client:
        for route, status in (("completions", 413), ("audio/speech", 413), ("chat/completions", 400)):
            answer = await client.post(f"/v1/{route}", content=b" " * 1001)
            assert answer.status_code == status


async def test_too_large_a_body_is_413() -> None:
    settings = ServerSettings(limits=Limits(max_body_bytes=1000))
    async with running(settings) as served, httpx.AsyncClient(base_url=served.http) as client:

        async def pieces() -> Any:
            for _ in range(3):
                yield b" " * 500

        for content in (b" " * 1500, pieces()):
            answer = await client.post("/v1/chat/completions", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["param"] == "max_body_bytes"


async def test_keys_and_origins() -> None:
    settings = ServerSettings(api_keys=("right",), origins=("https://app.example",))
    async with running(settings) as served, httpx.AsyncClient(base_url=served.http) as client:
        for route in ("/v1/chat/completions", "/v1/audio/speech", "/v1/audio/transcriptions"):
            assert (await client.post(route, json={})).status_code == 401
            key = {"Authorization": "Bearer right"}
            for origin in ("https://evil.example", "http://["):
                foreign = await client.post(route, json={}, headers={**key, "Origin": origin})
                assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "forbidden_origin")
        answer = await client.post(
            "/v1/chat/completions", json={"messages": HI}, headers={**key, "Origin": "https://app.example"}
        )
        assert answer.status_code == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
