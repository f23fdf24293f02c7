"""Chat completions through the stock client: whole and streamed, text and speech, history, refusals."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
import soundfile
from PIL import Image

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    TextPart,
    TokensPart,
    ToolCallPart,
    ToolOutputPart,
    VideoPart,
)
from antiphon.core.facts import ResponseRequested, SessionClosed, SessionOpened
from antiphon.server.settings import ServerSettings
from antiphon.wire.guides import AskedGuide
from antiphon.wire.limits import Limits
from server.conftest import Running, eventually, running
from server.fake_engine import INFO, FakeEngine, Script

HI: Any = [{"role": "user", "content": "hi"}]
SPOKEN: Any = {"modalities": ["text", "audio"], "audio": {"voice": "chelsie", "format": "wav"}}


def asked(served: Running) -> ResponseRequested:
    return served.engine.of(ResponseRequested)[-1]


def wav(seconds: float = 0.5, rate: int = 8000, kind: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.3 * np.sin(np.arange(int(seconds * rate)) / 5), rate, format=kind)
    return buffer.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(size: tuple[int, int] = (6, 4), shade: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def animation(kind: str) -> bytes:
    """Three seconds: two frames of one and a half."""
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:], duration=1500, lossless=True)
    return buffer.getvalue()


async def test_text(served: Running) -> None:
    async with served.client() as client:
        answer = await client.chat.completions.create(
            model="test-omni", messages=HI, temperature=0.5, seed=3, max_completion_tokens=9
        )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello there.", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 11)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.audio_tokens == 13
    request = asked(served)
    assert (request.speech, request.remember, request.max_tokens) == (False, False, 9)
    assert request.sampling["thinker"].temperature == 0.5
    assert request.sampling["thinker"].top_k == 40, "what is not named is the checkpoint's"
    assert {sampling.seed for sampling in request.sampling.values()} == {3}
    assert request.items is not None
    assert request.items[0].parts == (TextPart("hi"),)
    await eventually(lambda: not served.serving.connections)
    assert [closed.keeps_kv for closed in served.engine.of(SessionClosed)] == [True]


@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus", "pcm16"])
async def test_speech(served: Running, name: str) -> None:
    async with served.client() as client:
        answer = await client.chat.completions.create(
            model="test-omni",
            messages=HI,
            modalities=["text", "audio"],
            audio={"voice": "no", "format": name},
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    assert (answer.choices[0].message.content, audio.transcript) == (None, "Hello there.")
    data = base64.b64decode(audio.data)
    if name == "pcm16":
        samples = np.frombuffer(data, "<i2") / 32767
    else:
        samples, rate = soundfile.read(io.BytesIO(data))
        assert rate in (24_000, 48_000)
        samples = samples[:: rate // 24_000]
    assert len(samples) == pytest.approx(0.4 * 24_000, abs=3000)
    assert np.abs(samples).max() == pytest.approx(0.2, abs=0.03)
    assert asked(served).voice == "ethan", "an unknown voice is the default voice"


async def test_stream_of_text(served: Running) -> None:
    async with served.client() as client:
        stream = await client.chat.completions.create(
            model="test-omni", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there."
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_several_replies(served: Running) -> None:
    async with served.client() as client:
        whole = await client.chat.completions.create(model="test-omni", messages=HI, n=3)
        stream = await client.chat.completions.create(
            model="test-omni", messages=HI, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert [choice.message.content for choice in whole.choices] == ["Hello there."] * 3
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (20, 33), "the prompt counts once"
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    for index in (0, 1):
        mine = [choice for choice in choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in mine) == "Hello there."
        assert (mine[0].delta.role, mine[-1].finish_reason) == ("assistant", "stop")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 22


async def test_a_stream_that_is_sent_as_it_is_read(served: Running) -> None:
    """Hello is five tokens, and takes its reader a quarter of a second; the engine has made all at once."""
    async with served.client() as client:
        stream = await client.chat.completions.create(
            model="test-omni",
            messages=HI,
            stream=True,
            extra_body={"antiphon": {"rate": 20, "deliver": "paced"}},
        )
        texts = (chunk async for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
        came_at = [time.monotonic() async for _ in texts]
    assert asked(served).rate == 20
    assert len(came_at) == 2
    assert came_at[1] - came_at[0] >= 0.24


@pytest.mark.parametrize("rate", ["0", "1e9", "NaN", "-3", '"fast"', "1e999", "true"])
async def test_a_rate_that_nobody_reads_at_is_refused(served: Running, rate: str) -> None:
    messages = '[{"role": "user", "content": "hi"}]'
    body = f'{{"messages": {messages}, "stream": true, "antiphon": {{"rate": {rate}}}}}'
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not served.engine.of(ResponseRequested), "the engine is not asked"


async def test_stream_of_speech_and_a_history_that_is_exact(served: Running) -> None:
    async with served.client() as client:
        stream = await client.chat.completions.create(
            model="test-omni",
            messages=HI,
            stream=True,
            modalities=["text", "audio"],
            audio={"voice": "chelsie", "format": "pcm16"},
        )
        chunks = [chunk.model_dump(exclude_unset=True) async for chunk in stream]
        deltas = [chunk["choices"][0]["delta"].get("audio") or {} for chunk in chunks]
        pcm = b"".join(base64.b64decode(delta.get("data", "")) for delta in deltas)
        assert len(pcm) == 0.4 * 24_000 * 2
        assert "".join(delta.get("transcript", "") for delta in deltas) == "Hello there."
        assert {chunk["modality"] for chunk in chunks if "data" in str(chunk["choices"][0]["delta"])} == {
            "audio"
        }
        assert all(chunk["choices"][0]["delta"].get("content") is None for chunk in chunks)
        (name,) = {delta["id"] for delta in deltas if delta}
        assert sum("expires_at" in delta for delta in deltas) == 1
        history = [*HI, {"role": "assistant", "audio": {"id": name}}, {"role": "user", "content": "and?"}]
        await client.chat.completions.create(model="test-omni", messages=history)
        items = asked(served).items
        assert items is not None
        assert items[1].parts == (TokensPart(tuple(map(ord, "Hello there."))),)
        history[1] = {"role": "assistant", "audio": {"id": "audio_unknown"}}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="test-omni", messages=history)
        assert refused.value.code == "audio_not_found"


async def test_every_kind_of_content(served: Running) -> None:
    sound = base64.b64encode(wav()).decode()
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": url(picture())}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": url(wav(kind="FLAC"), "audio/flac")}},
        {"type": "video_url", "video_url": {"url": url(animation("GIF"), "image/gif")}},
        {"type": "video_url", "video_url": {"url": url(animation("WEBP"), "image/webp")}},
        {"type": "video", "video": [url(picture(shade=1)), url(picture(shade=200))], "fps": 4.0},
    ]
    async with served.client() as client:
        await client.chat.completions.create(
            model="test-omni",
            messages=[{"role": "user", "content": content}],  # type: ignore[list-item, misc]
        )
    items = asked(served).items
    assert items is not None
    text, image, audio, by_url, gif, webp, frames = items[0].parts
    assert isinstance(text, TextPart)
    assert isinstance(image, ImagePart)
    assert (image.width, image.height) == (6, 4)
    assert isinstance(audio, AudioPart)
    assert isinstance(by_url, AudioPart)
    assert audio.num_samples == by_url.num_samples == 8000
    for video in (gif, webp):
        assert isinstance(video, VideoPart)
        assert (video.num_frames, video.fps, video.width) == (6, 2.0, 8)
        colors = np.frombuffer(video.frames, "u1").reshape(6, 8, 8, 3)[:, 0, 0]
        assert [color.argmax() for color in colors] == [0, 0, 0, 2, 2, 2]
    assert isinstance(frames, VideoPart)
    assert (frames.num_frames, frames.fps) == (2, 4.0)


class Guides:
    """Any can be followed: there are no tokens to guide."""

    def __init__(self) -> None:
        self.asked: list[AskedGuide] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def check(self, asked: AskedGuide, key: int | None) -> None:
        self.asked.append(asked)
        await self.gate.wait()


async def test_tools_and_their_answers(served: Running) -> None:
    tool: Any = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object"}}}
    messages: Any = [
        *HI,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "sky", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "blue"},
    ]
    guides = Guides()
    served.app.state.serving.guides = guides
    async with served.client() as client:
        await client.chat.completions.create(
            model="test-omni",
            messages=messages,
            tools=[tool],
            tool_choice={"type": "function", "function": {"name": "sky"}},
        )
    assert [guide.param for guide in guides.asked] == ["tools"]
    request = asked(served)
    assert request.tool_choice == "sky"
    assert request.tools == ('{"type":"function","function":{"name":"sky","parameters":{"type":"object"}}}',)
    assert request.items is not None
    assert request.items[1].parts == (ToolCallPart("c1", "sky", "{}"),)
    assert (request.items[2].role, request.items[2].parts) == ("tool", (ToolOutputPart("c1", "blue"),))


async def test_tools_that_the_model_is_not_shown_are_refused() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, takes_tools=False))
    tool: Any = {"type": "function", "function": {"name": "f"}}
    async with running(engine=engine) as served, served.client() as client:
        (model,) = (await client.models.list()).data
        assert model.to_dict()["tools"] is False
        with pytest.raises(
            openai.BadRequestError, match="has no place for tools: leave tools out"
        ) as refused:
            await client.chat.completions.create(model="test-omni", messages=HI, tools=[tool])
        assert (refused.value.param, refused.value.code) == ("tools", "unsupported_parameter")
        assert (await client.chat.completions.create(model="test-omni", messages=HI)).choices
        nothing = client.chat.completions.create(
            model="test-omni", messages=HI, tools=[tool], tool_choice="none"
        )
        assert (await nothing).choices, "none of them would be called"


@pytest.mark.parametrize(
    ("json_calls", "said", "text"),
    [
        (
            False,
            "One moment.",
            'One moment. <tool_call>\n{"name": "sky", "arguments": {"at": "noon"}}\n</tool_call>',
        ),
        (True, "", '{"name": "sky", "parameters": {"at": "noon"}}'),
    ],
)
async def test_calls_are_told_apart_from_words(json_calls: bool, said: str, text: str) -> None:
    info = msgspec.structs.replace(INFO, json_calls=json_calls)
    tool: Any = {"type": "function", "function": {"name": "sky", "parameters": {"type": "object"}}}
    engine = FakeEngine(Script(text=text), info=info)
    async with running(engine=engine) as served, served.client() as client:
        whole = await client.chat.completions.create(model="test-omni", messages=HI, tools=[tool])
        (call,) = whole.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("sky", '{"at": "noon"}')
        assert (whole.choices[0].message.content or "").strip() == said
        assert whole.choices[0].finish_reason == "tool_calls"
        stream = await client.chat.completions.create(
            model="test-omni", messages=HI, tools=[tool], stream=True
        )
        choices = [chunk.choices[0] async for chunk in stream]
        plain = await client.chat.completions.create(model="test-omni", messages=HI)
        assert plain.choices[0].message.content == text, "without tools it is text"
        barred = await client.chat.completions.create(
            model="test-omni", messages=HI, tools=[tool], tool_choice="none"
        )
    assert barred.choices[0].finish_reason == "stop"
    assert (barred.choices[0].message.content, barred.choices[0].message.tool_calls) == (text, None)
    deltas = [each for choice in choices for each in choice.delta.tool_calls or ()]
    assert [each.function.name for each in deltas if each.function and each.function.name] == ["sky"]
    assert "".join(each.function.arguments or "" for each in deltas if each.function) == '{"at": "noon"}'
    assert sum(each.id is not None for each in deltas) == 1
    assert choices[-1].finish_reason == "tool_calls"


REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"messages": []}, 400, "invalid_value", "messages"),
    ({"messages": HI, "n": 17}, 400, "invalid_value", "n"),
    ({"messages": HI, "logit_bias": {"x": 1}}, 400, "invalid_value", "logit_bias"),
    ({"messages": HI, "stop": [""]}, 400, "invalid_value", "stop[0]"),
    ({"messages": HI, "top_logprobs": 2}, 400, "invalid_value", "top_logprobs"),
    ({"messages": HI, "tempreature": 1}, 400, "unknown_parameter", "tempreature"),
    ({"messages": HI, "temperature": 3}, 400, "invalid_value", "temperature"),
    ({"messages": HI, "model": "gpt"}, 404, "model_not_found", "model"),
    ({"messages": HI, "audio": {"voice": "a", "format": "aac"}}, 400, "unsupported_format", "audio.format"),
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
        {"type": "video_url", "video_url": {"url": url(b"\x00\x00\x00 ftypisom", "video/mp4")}},
        {"type": "video", "video": [url(picture()), url(picture((9, 9)))]},
        {"type": "file", "file": {"file_id": "x"}},
    ],
)
async def test_media_that_cannot_be_had(served: Running, part: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        body = {"messages": [{"role": "user", "content": [part]}]}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("messages[")


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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels(stream: bool) -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(engine=engine) as served:
        async with httpx.AsyncClient(base_url=served.http, timeout=0.3) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/chat/completions", json={"messages": HI, "stream": stream})
        await eventually(lambda: bool(engine.of(SessionClosed)))
        assert engine.num_open == 0
        assert not engine.sinks
        assert not served.serving.connections


async def test_a_client_that_leaves_in_mid_body_is_no_mistake_of_ours(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = served.http.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n"
    errors = served.serving.metrics.errors.labels("client_gone")._value
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + b'{"messages": ')
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await eventually(lambda: errors.get() > 0)
    assert "mistake" not in caplog.text


async def test_room_is_what_there_is_once_a_guide_is_known() -> None:
    """Whoever waits for a guide takes no room before, nor more than there is after, and may leave."""
    guides, engine, held = Guides(), FakeEngine(Script(gate=asyncio.Event())), ServerSettings(max_sessions=2)
    guides.gate.clear()
    guided: Any = {"messages": HI, "response_format": {"type": "json_object"}}
    async with running(held, engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        served.app.state.serving.guides = guides
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=guided, timeout=0.3)
        asked = [asyncio.create_task(client.post("/v1/chat/completions", json=guided)) for _ in range(3)]
        await eventually(lambda: len(guides.asked) == 4)
        assert not engine.of(SessionOpened)
        guides.gate.set()
        await eventually(lambda: any(one.done() for one in asked))
        assert engine.script.gate is not None
        engine.script.gate.set()
        assert sorted([(await one).status_code for one in asked]) == [200, 200, 503]
        assert len(engine.of(SessionOpened)) == 2


async def test_who_reads_nothing_is_bounded() -> None:
    engine = FakeEngine(Script(audio_s=40.0, chunk_s=2.0))
    async with running(ServerSettings(max_queued_bytes=100_000), engine) as served, served.client() as client:
        with pytest.raises(openai.InternalServerError) as broken:
            await client.with_options(max_retries=0).chat.completions.create(
                model="test-omni", messages=HI, **SPOKEN
            )
    assert broken.value.code == "slow_reader"


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


async def test_draining_lets_a_reply_finish_and_refuses_the_next() -> None:
    engine = FakeEngine(Script(gate=asyncio.Event()))
    async with running(engine=engine) as served, httpx.AsyncClient(base_url=served.http) as client:
        running_one = asyncio.create_task(client.post("/v1/chat/completions", json={"messages": HI}))
        await eventually(lambda: engine.num_open == 1)
        drained = asyncio.create_task(served.serving.drain())
        await eventually(lambda: served.serving.is_draining)
        late = await client.post("/v1/chat/completions", json={"messages": HI})
        assert (late.status_code, late.headers["Retry-After"]) == (503, "5")
        assert engine.script.gate is not None
        engine.script.gate.set()
        assert (await running_one).json()["choices"][0]["message"]["content"] == "Hello there."
        await drained
