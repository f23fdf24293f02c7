"""Reading aloud and writing down, through the stock client."""

from __future__ import annotations

import base64
import io
import json

import httpx
import msgspec
import numpy as np
import openai
import pytest
import soundfile

from antiphon.core.conversation import AudioPart, TextPart
from antiphon.core.facts import ResponseRequested, SessionClosed
from antiphon.core.plans import AudioOut
from antiphon.server.settings import ServerSettings
from antiphon.server.speech import EVENT_BYTES
from server.asking import asked, wav
from server.conftest import Running, eventually, running
from server.fake_engine import INFO, FakeEngine, Script


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
        ("pcm", "audio/pcm"),
    ],
)
async def test_a_text_is_read_aloud(served: Running, name: str, media_type: str) -> None:
    async with served.client() as client:
        answer = await client.audio.speech.create(
            model="test-omni",
            input="Read me.",
            voice="chelsie",
            response_format=name,
            instructions="Slowly.",  # type: ignore[arg-type]
        )
    assert answer.response.headers["Content-Type"] == media_type
    if name == "pcm":
        samples = np.frombuffer(answer.content, "<i2") / 32767
    elif name == "flac":
        assert answer.response.headers["Content-Length"] == str(len(answer.content))
        samples, rate = soundfile.read(io.BytesIO(answer.content))
        assert (rate, len(samples)) == (24_000, round(24_000 * Script().audio_s))
    else:
        samples, rate = soundfile.read(io.BytesIO(answer.content), frames=7_000)
        samples = samples[:: rate // 24_000]
    assert np.abs(samples).max() == pytest.approx(0.2, abs=0.03)
    request = asked(served)
    assert (request.say, request.voice, request.instructions) == ("Read me.", "chelsie", "Slowly.")
    await eventually(lambda: bool(served.engine.of(SessionClosed)))


@pytest.mark.parametrize(
    ("known", "asked", "told"),
    [
        (("en",), None, "en"),
        (("en", "de"), None, "en"),
        (("en", "de"), "de-AT", "de"),
        ((), "de-AT", "de-AT"),
    ],
)
async def test_a_transcript_names_the_language_in_which_it_was_heard(
    known: tuple[str, ...], asked: str | None, told: str
) -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, languages=known))
    async with running(engine=engine) as served, served.client() as client:
        verbose = await client.audio.transcriptions.create(
            model="test-omni",
            file=("a.wav", wav()),
            response_format="verbose_json",
            language=asked or openai.omit,
        )
    assert verbose.language == told


async def test_a_transcribers_usage_is_how_long_it_heard() -> None:
    """The recording is in no prompt that has tokens. A stream's last event could only tell tokens."""
    engine = FakeEngine(info=msgspec.structs.replace(INFO, languages=("en",)))
    async with running(engine=engine) as served, served.client() as client:
        for form in ("json", "verbose_json"):
            answer = await client.audio.transcriptions.create(
                model="test-omni", file=("a.wav", wav()), response_format=form
            )
            assert answer.usage.to_dict() == {"type": "duration", "seconds": pytest.approx(0.5)}
        stream = await client.audio.transcriptions.create(
            model="test-omni", file=("a.wav", wav()), stream=True
        )
        *_, last = [event async for event in stream]
        assert last.to_dict() == {"type": "transcript.text.done", "text": "Hello there."}


async def test_speech_as_events(served: Running) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        body = {"input": "Read me.", "response_format": "pcm", "stream_format": "sse"}
        answer = await client.post("/v1/audio/speech", json=body)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["total_tokens"] == 31
    assert "input_token_details" not in events[-1]["usage"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": ""}, "invalid_value", "input"),
        ({"input": " \n"}, "invalid_value", "input"),
        ({"input": "a" * 4097}, "limit_exceeded", "max_spoken_chars"),
        ({"input": "a", "speed": 2}, "unsupported_parameter", "speed"),
        ({"input": "a", "response_format": "aac"}, "invalid_value", "response_format"),
        ({}, "missing_required_parameter", "input"),
    ],
)
async def test_what_is_not_read_aloud(served: Running, body: dict, code: str, param: str) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.post("/v1/audio/speech", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)


async def test_speech_that_fails_before_it_begins_is_an_error_and_later_breaks_off() -> None:
    failed = Script(text="a", audio_s=0, status="failed", reason="invalid_prompt", message="no voice")
    async with (
        running(engine=FakeEngine(failed)) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        answer = await client.post("/v1/audio/speech", json={"input": "a"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "no voice")
        failed.audio_s = 0.4
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/audio/speech", json={"input": "a", "response_format": "wav"})


class Noisy(FakeEngine):
    """Its sound hardly becomes less when it is encoded."""

    def _tone(self, asked: ResponseRequested, at_s: float, length_s: float) -> AudioOut:
        noise = np.random.default_rng(round(1000 * at_s)).uniform(-0.5, 0.5, round(24_000 * length_s))
        return AudioOut(asked.session, asked.response, noise.astype("<f4").tobytes())


FLAC = {"input": "a", "response_format": "flac"}


async def test_a_flac_in_events_is_one_file_that_is_cut() -> None:
    async with (
        running(engine=Noisy(Script("a", audio_s=2.0))) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        answer = await client.post("/v1/audio/speech", json={**FLAC, "stream_format": "sse"})
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        await eventually(lambda: bool(served.engine.of(SessionClosed)))
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    pieces = [base64.b64decode(event["audio"]) for event in deltas]
    assert [len(piece) for piece in pieces[:-1]] == [EVENT_BYTES]
    assert 0 < len(pieces[-1]) <= EVENT_BYTES
    samples, rate = soundfile.read(io.BytesIO(b"".join(pieces)))
    assert (rate, len(samples)) == (24_000, 48_000)
    assert (done["type"], done["usage"]["total_tokens"]) == ("speech.audio.done", 31)


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_a_flac_that_fails_in_the_middle_is_an_error_with_a_status(stream_format: str) -> None:
    failed = Script("a", status="failed", reason="invalid_prompt", message="lost its voice")
    async with (
        running(engine=FakeEngine(failed)) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        answer = await client.post("/v1/audio/speech", json={**FLAC, "stream_format": stream_format})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "lost its voice")
        await eventually(lambda: bool(served.engine.of(SessionClosed)))


async def test_a_flac_of_more_than_may_wait_is_refused() -> None:
    engine = Noisy(Script("a", audio_s=60.0, chunk_s=0.05, pace_s=0.03))
    async with (
        running(ServerSettings(max_queued_bytes=30_000), engine) as served,
        httpx.AsyncClient(base_url=served.http) as client,
    ):
        answer = await client.post("/v1/audio/speech", json=FLAC)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "limit_exceeded")
        assert error["param"] == "max_queued_bytes"
        assert "ask for another response_format" in error["message"]
        await eventually(lambda: not engine.num_open)


async def test_transcription(served: Running) -> None:
    async with served.client() as client:
        answer = await client.audio.transcriptions.create(
            model="test-omni", file=("a.wav", wav(channels=2)), language="en", prompt="Names: Ada."
        )
        assert answer.text == "Hello there."
        text = await client.audio.transcriptions.create(
            model="test-omni", file=("a.flac", wav(kind="FLAC")), response_format="text"
        )
        assert text == "Hello there."
        verbose = await client.audio.transcriptions.create(
            model="test-omni", file=("a.ogg", wav(kind="OGG")), response_format="verbose_json"
        )
        assert (verbose.duration, verbose.language) == (pytest.approx(0.5), "unknown")
    request = served.engine.of(ResponseRequested)[0]
    assert not request.speech
    assert request.items is not None
    audio, words = request.items[0].parts
    assert isinstance(audio, AudioPart)
    assert audio.num_samples == 8000
    assert isinstance(words, TextPart)
    assert "en" in words.text
    assert "Names: Ada." in words.text
    assert request.sampling["thinker"].temperature == 0


async def test_transcription_as_a_stream(served: Running) -> None:
    async with served.client() as client:
        stream = await client.audio.transcriptions.create(
            model="test-omni", file=("a.wav", wav()), stream=True
        )
        events = [event async for event in stream]
    assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == "Hello there."
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "Hello there."
    assert events[-1].usage.to_dict() == {
        "type": "tokens",
        "input_tokens": 20,
        "output_tokens": 11,
        "total_tokens": 31,
        "input_token_details": {"audio_tokens": 13, "text_tokens": 7},
    }


async def test_what_cannot_be_written_down(served: Running) -> None:
    async with served.client() as client:
        with pytest.raises(openai.BadRequestError, match="not one of WAV"):
            await client.audio.transcriptions.create(model="test-omni", file=("a.wav", b"no sound"))
        with pytest.raises(openai.BadRequestError, match="empty file"):
            await client.audio.transcriptions.create(model="test-omni", file=("a.wav", b""))
        with pytest.raises(openai.BadRequestError, match=r"1 channel at 900 Hz; allowed .* 1000 to 400000"):
            await client.audio.transcriptions.create(model="test-omni", file=("a.wav", wav(rate=900)))
        with pytest.raises(openai.BadRequestError, match="log probabilities"):
            await client.audio.transcriptions.create(
                model="test-omni", file=("a.wav", wav()), include=["logprobs"]
            )
        with pytest.raises(openai.NotFoundError):
            await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", wav()))
    async with httpx.AsyncClient(base_url=served.http) as client:
        for options, param in (
            ({"json": {}}, None),
            ({"files": {"other": b"a"}}, "file"),
            ({"files": {"file": wav()}, "data": {"stream": "perhaps"}}, "stream"),
            ({"files": {"file": wav()}, "data": {"temperature": "warm"}}, "temperature"),
            ({"files": {"file": wav(0.0)}}, "file"),
            ({"files": {"file": wav(0.05)}}, "file"),
            ({"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}}, None),
        ):
            answer = await client.post("/v1/audio/transcriptions", **options)  # type: ignore[arg-type]
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param
