"""Chat completions through the stock client: whole and streamed, text and speech, history."""

from __future__ import annotations

import base64
import io
import time

import numpy as np
import openai
import pytest
import soundfile
from PIL import Image

from antiphon.core.conversation import AudioPart, ImagePart, TextPart, TokensPart, VideoPart
from antiphon.core.facts import SessionClosed
from server.asking import HI, asked, data_url, picture, wav
from server.conftest import Running, eventually


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
    (name,) = {chunk.id for chunk in chunks}
    assert name.startswith("chatcmpl-")


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


def animation(kind: str) -> bytes:
    """Three seconds: two frames of one and a half."""
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:], duration=1500, lossless=True)
    return buffer.getvalue()


async def test_every_kind_of_content(served: Running) -> None:
    sound = base64.b64encode(wav()).decode()
    content = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": data_url(picture())}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": data_url(wav(kind="FLAC"), "audio/flac")}},
        {"type": "video_url", "video_url": {"url": data_url(animation("GIF"), "image/gif")}},
        {"type": "video_url", "video_url": {"url": data_url(animation("WEBP"), "image/webp")}},
        {"type": "video", "video": [data_url(picture(shade=1)), data_url(picture(shade=200))], "fps": 4.0},
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
