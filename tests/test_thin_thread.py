"""The main job, end to end: the real command and engine process, the stock OpenAI client, a WAV file."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import websockets
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

TURN_S = 60


@pytest.fixture
def greedy_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint without chance: a sampled reply may be empty, and then it is not spoken."""
    copy = tmp_path / "greedy"
    shutil.copytree(tiny_checkpoint, copy)
    generation = json.loads((copy / "generation_config.json").read_text())
    generation |= {"do_sample": False, "talker_do_sample": False}
    (copy / "generation_config.json").write_text(json.dumps(generation))
    return copy


@pytest.fixture
async def server(greedy_checkpoint: Path, tmp_path: Path) -> AsyncIterator[str]:
    """`antiphon serve` on a free port; yields its http URL. It has to leave by SIGTERM with status 0."""
    command = ["serve", str(greedy_checkpoint), "--name", "tiny", "--port", "0", "--threads", "1"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antiphon.cli", *command, "--record", str(tmp_path / "run.record")),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert process.stderr is not None
    found = None
    async with asyncio.timeout(TURN_S):
        while not found:
            line = await process.stderr.readline()
            assert line, "the server left before it was ready"
            found = re.search(rb"ready: open (http://[^/\s]+)", line)
    drained = asyncio.create_task(process.stderr.read())
    yield found.group(1).decode()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert b"Traceback" not in await drained


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
