"""The main job, end to end: the real command and engine process, the stock OpenAI client, a WAV file."""

from __future__ import annotations

import asyncio
import base64
import io
import json
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
from wire.harness import message

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("forked_processes"),
]

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


MALFORMED: list[str | bytes] = [
    "{",
    b"\x00\xff" * 500,
    "[" * 20_000,
    "[]",
    '"text"',
    '{"type": "no.such.event"}',
    '{"type": 3}',
    '{"type": "session.update"}',
    '{"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"format": 7}}}}',
    '{"type": "session.update", "session": {"type": "realtime", "max_output_tokens": -1e400}}',
    '{"type": "input_audio_buffer.append", "audio": "no base64!"}',
    '{"type": "input_audio_buffer.append", "audio": null}',
    '{"type": "input_audio_buffer.commit", "event_id": []}',
    '{"type": "conversation.item.create", "item": {"type": "message", "role": "nobody", "content": []}}',
    '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [{}]}}',
    '{"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": -1}',
    '{"type": "conversation.item.delete", "item_id": "none"}',
    '{"type": "response.create", "response": {"output_modalities": ["smell"]}}',
    '{"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "none"}]}}',
    '{"type": "playback.ack", "response_id": "none", "played_ms": "long"}',
]
"""Events that are wrong in all ways; each is answered with one error."""


class Listener:
    """Hears one reply as it comes."""

    def __init__(self) -> None:
        self.text, self.pcm, self.is_speaking = "", b"", False

    async def hear(self, url: str) -> None:
        async with websockets.connect(url) as socket:
            for kind, fields in (
                ("conversation.item.create", {"item": message("Tell me a story.")}),
                ("response.create", {"response": {"max_output_tokens": 100}}),
            ):
                await socket.send(json.dumps({"type": kind, **fields}))
            async with asyncio.timeout(TURN_S):
                while (event := json.loads(await socket.recv()))["type"] != "response.done":
                    assert event["type"] != "error", event
                    self._take(event)
        self.is_speaking = False

    def _take(self, event: dict[str, Any]) -> None:
        if event["type"] == "response.output_audio_transcript.delta":
            self.text += event["delta"]
        elif event["type"] == "response.output_audio.delta":
            self.pcm += base64.b64decode(event["delta"])
            self.is_speaking = True


async def test_malformed_events_cost_a_session_that_speaks_nothing(server: str) -> None:
    """Its audio has the same bytes as alone; and who sends them is answered, then as well."""
    url = server.replace("http", "ws") + "/v1/realtime?model=tiny"
    alone, beside = Listener(), Listener()
    await alone.hear(url)
    async with websockets.connect(url) as vandal:
        await vandal.recv()
        hearing, refused = asyncio.create_task(beside.hear(url)), 0
        while not hearing.done():
            for event in MALFORMED:
                await vandal.send(event)
                answer = json.loads(await vandal.recv())
                assert answer["type"] == "error", (event, answer)
                refused += beside.is_speaking
        await hearing
        await vandal.send(json.dumps({"type": "input_audio_buffer.clear"}))
        assert json.loads(await vandal.recv())["type"] == "input_audio_buffer.cleared"
    assert refused, "none came while it spoke"
    assert alone.text
    assert (beside.text, beside.pcm) == (alone.text, alone.pcm)
    assert len(alone.pcm) > 2 * 48_000


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
