"""A spoken turn that a tool has to answer: the real server, the tiny cascade, the stock client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile
from openai import AsyncOpenAI

from antiphon import Omni
from fakes.serving import serving

pytestmark = pytest.mark.usefixtures("forked_processes")

SHARED_LOOP = pytest.mark.asyncio(loop_scope="module")
TURN_S = 60
TOOL: Any = {
    "type": "function",
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}
TONE = base64.b64encode((9000 * np.sin(np.arange(24000) / 20)).astype("<i2").tobytes()).decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(cascade_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Of one server for all."""
    async with serving(cascade_checkpoint, tmp_path_factory.mktemp("served") / "record") as url:
        yield url


def wav(seconds: float) -> bytes:
    """A tone that changes, as a sound file."""
    at = np.arange(int(16000 * seconds))
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(at * (0.05 + at * 1e-6)), 16000, format="WAV")
    return file.getvalue()


async def answered(connection: Any) -> list[Any]:
    """All events up to the end of a response."""
    events: list[Any] = []
    async with asyncio.timeout(TURN_S):
        async for event in connection:
            assert event.type != "error", event
            events.append(event)
            if event.type == "response.done":
                return events
    raise AssertionError("the server hung up")


def deltas(events: list[Any], kind: str) -> list[str]:
    return [event.delta for event in events if event.type == f"response.{kind}.delta"]


@SHARED_LOOP
async def test_a_spoken_turn_is_answered_with_a_call_that_is_not_spoken(url: str) -> None:
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model="tiny") as connection,
    ):
        audio = {"input": {"turn_detection": None}}
        session = {"type": "realtime", "audio": audio, "tools": [TOOL], "tool_choice": "required"}
        await connection.session.update(session=session)
        await connection.input_audio_buffer.append(audio=TONE)
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        events = await answered(connection)
        (call,) = events[-1].response.output
        assert (call.type, call.name) == ("function_call", "paint")
        assert json.loads(call.arguments)["colour"] in ("red", "green")
        assert not deltas(events, "output_audio")
        assert not deltas(events, "output_audio_transcript")
        told = {"type": "function_call_output", "call_id": call.call_id, "output": "It is dry."}
        await connection.conversation.item.create(item=told)
        await connection.response.create(response={"tool_choice": "none"})
        events = await answered(connection)
        assert deltas(events, "output_audio"), "what it says of the answer is spoken"


@SHARED_LOOP
async def test_a_transcription_is_streamed_as_it_is_written(url: str) -> None:
    sound = ("a.wav", wav(3.0))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = await client.audio.transcriptions.create(model="tiny", file=sound, stream=True)
        *deltas, done = [event async for event in stream]
        whole = await client.audio.transcriptions.create(model="tiny", file=sound)
    assert len(deltas) > 3
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert (done.type, done.text) == ("transcript.text.done", "".join(event.delta for event in deltas))
    assert done.text.strip() == whole.text


@SHARED_LOOP
async def test_a_recording_that_is_longer_than_the_transcriber_hears(url: str) -> None:
    """It hears 4 s at a time: over HTTP, as a turn, and in a chat."""
    tone = base64.b64encode(
        (9000 * np.sin(np.arange(24_000 * 9) ** 1.1 / 20)).astype("<i2").tobytes()
    ).decode()
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model="tiny") as connection,
    ):
        written = await client.audio.transcriptions.create(
            model="tiny", file=("a.wav", wav(10.0)), response_format="verbose_json"
        )
        assert written.text
        assert written.duration == pytest.approx(10.0)
        sound = {"data": base64.b64encode(wav(10.0)).decode(), "format": "wav"}
        message: Any = {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}
        chat = await client.chat.completions.create(model="tiny", messages=[message], max_tokens=4)
        assert chat.usage.completion_tokens
        audio = {"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}}
        await connection.session.update(session={"type": "realtime", "audio": audio})
        await connection.input_audio_buffer.append(audio=tone)
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        events = await answered(connection)
        kinds = [event.type for event in events]
        assert kinds.count("conversation.item.added") == 2, "the turn is one item"
        assert events[-1].response.status in ("completed", "incomplete")
        if "conversation.item.input_audio_transcription.completed" not in kinds:
            async with asyncio.timeout(TURN_S):
                async for event in connection:
                    if event.type == "conversation.item.input_audio_transcription.completed":
                        events.append(event)
                        break
        (completed,) = [event for event in events if event.type.endswith("transcription.completed")]
        told = [event.delta for event in events if event.type.endswith("input_audio_transcription.delta")]
        assert "".join(told).strip() == completed.transcript != ""
        assert completed.usage.seconds == pytest.approx(9.0)


@pytest.mark.parametrize("trips", ["", "{% if tools %}{{ 'Tools: ' + tools }}{% endif %}"])
def test_a_model_whose_template_shows_no_tools_says_so(
    cascade_checkpoint: Path, tmp_path: Path, trips: str
) -> None:
    checkpoint = shutil.copytree(cascade_checkpoint, tmp_path / "copy")
    template = trips + "{% for message in messages %}{{ message.content }}{% endfor %}"
    (checkpoint / "thinker" / "chat_template.jinja").write_text(template)
    omni = Omni(checkpoint, device="cpu")
    try:
        assert not omni.engine.info.takes_tools
    finally:
        omni.close()
