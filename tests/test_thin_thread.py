"""The main job, end to end: the real command and engine process, the stock OpenAI client, a WAV file."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile
import soxr
import websockets
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from fakes.serving import greedy, serving

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

TURN_S = 60


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[(), pytest.param(("--stages-apart",), marks=pytest.mark.slow)],
)
async def server(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[str]:
    """With all stages in the engine's process, and each in its own."""
    folder = tmp_path_factory.mktemp("served")
    copy = greedy(tiny_checkpoint, folder / "greedy")
    async with serving(copy, folder / "run.record", *request.param) as url:
        yield url


@pytest.fixture
def spoken_wav(tmp_path: Path) -> Path:
    """Two seconds of syllables at 22.05 kHz, as speech synthesisers write them."""
    t = np.arange(2 * 22_050) / 22_050
    voice = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 12))
    wave = 0.2 * voice * np.clip(np.sin(2 * np.pi * 3 * t), 0, None)
    soundfile.write(tmp_path / "spoken.wav", wave, 22_050, subtype="PCM_16")
    return tmp_path / "spoken.wav"


async def listen(connection: AsyncRealtimeConnection) -> tuple[str, bytes, str]:
    """Transcript, PCM and status of the next response."""
    text, pcm = "", b""
    async with asyncio.timeout(TURN_S):
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.output_audio_transcript.delta":
                text += event.delta
            elif event.type == "response.output_audio.delta":
                pcm += base64.b64decode(event.delta)
            elif event.type == "response.done":
                return text, pcm, str(event.response.status)
    raise AssertionError("the server closed the connection")


async def speak(connection: AsyncRealtimeConnection, wav: Path) -> None:
    """A manual-commit audio turn, appended in pieces of 100 ms."""
    await connection.session.update(
        session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    )
    samples, rate = soundfile.read(wav, dtype="float32")
    pcm = (soxr.resample(samples, rate, 24_000) * 32767).astype("<i2").tobytes()
    for at in range(0, len(pcm), 4800):
        await connection.input_audio_buffer.append(audio=base64.b64encode(pcm[at : at + 4800]).decode())
    await connection.input_audio_buffer.commit()
    await connection.response.create()


async def test_speak_and_type(server: str, spoken_wav: Path) -> None:
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none")
    async with client.realtime.connect(model="tiny") as connection:
        await speak(connection, spoken_wav)
        text, pcm, status = await listen(connection)
        assert status in ("completed", "incomplete")
        assert text
        frames = (len(pcm) // 2 + 555) / 1920
        assert frames == int(frames) > 0
        assert np.abs(np.frombuffer(pcm, "<i2")).max() > 100

        typed = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]}
        await connection.conversation.item.create(item=typed)  # type: ignore[arg-type]
        await connection.response.create()
        text, pcm, _ = await listen(connection)
        assert text
        assert pcm


async def test_garbage_and_vanishing_harm_nobody(server: str, spoken_wav: Path) -> None:
    client = AsyncOpenAI(base_url=f"{server}/v1", api_key="none")
    url = server.replace("http", "ws") + "/v1/realtime?model=tiny"
    async with client.realtime.connect(model="tiny") as witness:
        await speak(witness, spoken_wav)
        for garbage in ("{", b"\x00\xff", '{"type": "no.such.event"}', "[" * 5000, '{"type": 3}'):
            async with websockets.connect(url) as socket:
                await socket.send(garbage)
                await socket.recv()
        vanishing = client.realtime.connect(model="tiny")
        connection = await vanishing.enter()
        await speak(connection, spoken_wav)
        await connection.close()
        text, pcm, _ = await listen(witness)
        assert text
        assert pcm


def contents(path: Path) -> bytes:
    return path.read_bytes()


async def test_plain_http(server: str, spoken_wav: Path) -> None:
    """The stock client's other surfaces: chat whole and streamed, reading aloud, writing down."""
    async with AsyncOpenAI(base_url=f"{server}/v1", api_key="none", timeout=TURN_S) as client:
        await use_plain_http(client, spoken_wav)


async def use_plain_http(client: AsyncOpenAI, spoken_wav: Path) -> None:
    asked: Any = {"model": "tiny", "max_completion_tokens": 8, "modalities": ["text", "audio"]}
    sound = base64.b64encode(contents(spoken_wav)).decode()
    heard = [{"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}]
    messages: Any = [{"role": "user", "content": heard}]
    whole = await client.chat.completions.create(
        **asked, messages=messages, audio={"voice": "x", "format": "flac"}
    )
    first = whole.choices[0].message.audio
    assert first is not None
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(first.data)))
    frames = (len(samples) + 555) / 1920
    assert (rate, frames) == (24_000, whole.usage.completion_tokens_details.audio_tokens)

    stream = await client.chat.completions.create(
        **asked, messages=messages, audio={"voice": "x", "format": "pcm16"}, stream=True
    )
    shown = [chunk.choices[0].delta.model_dump(exclude_unset=True) async for chunk in stream]
    deltas = [delta["audio"] for delta in shown if "audio" in delta]
    pcm = b"".join(base64.b64decode(delta.get("data", "")) for delta in deltas)
    assert "".join(delta.get("transcript", "") for delta in deltas) == first.transcript
    assert np.abs(np.frombuffer(pcm, "<i2") / 32768 - samples).max() < 1e-3, (
        "asked twice, answered twice alike"
    )

    messages += [{"role": "assistant", "audio": {"id": first.id}}, {"role": "user", "content": "And now?"}]
    again = await client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=8)
    assert again.choices[0].message.content
    assert again.usage is not None
    assert again.usage.prompt_tokens > whole.usage.prompt_tokens + 8

    speech = await client.audio.speech.create(
        model="tiny", input="Good morning.", voice="x", response_format="wav"
    )
    samples, rate = soundfile.read(io.BytesIO(speech.content), frames=48_000)
    assert rate == 24_000
    assert np.abs(samples).max() > 0.001

    written = await client.audio.transcriptions.create(model="tiny", file=spoken_wav)
    assert isinstance(written.text, str)
    assert written.usage is not None
