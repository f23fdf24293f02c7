"""A test conversation with the talk checkpoint, over the wire and on real time: is it understood, does it
answer what was asked, can it be understood, and how long does one wait?

    python benchmarks/talk_conversation.py checkpoints/talk --out benchmarks/results/talk-conversation.json

A server of its own, with the options of `make serve`. The twenty questions of talk_questions.yaml are spoken
by three voices in turn: the checkpoint's own, and two of Flite (Debian's package `flite`; CMU Arctic's slt, a
woman, and rms, a man). Without Flite, or with `--own-voice`, the checkpoint's own asks them all, at three
pitches and speeds; `voices` says whose they were. Each is asked in a conversation of its own, by push-to-talk
(`ptt`) and with the server hearing the end of the turn (`vad`, whose 500 ms of silence are part of the wait).
Counted:

- `heard_wer`: words of the input transcription that are wrong (`heard_wer_of`: where one voice asks all
  questions, as files); `said_wer`: of the replies, as its transcriber hears them again. Numbers and
  contractions are made alike first (Whisper's normaliser, but that it leaves brackets out with what is in
  them, which the voice says, and that `=`, `*` and the hyphen of a range are words here, as they are said).
- `on_topic`: answers with one of the question's words.
- `first_audio_ms`: from the end of the speech to the first sound, and which share is within the bound.
- `two`, `four`: people who ask at once, five questions each: gaps over 100 ms of a listener who plays what
  has come, and replies that failed.
- `barge_in_ms`: from the server's word that somebody speaks over a reply to the end of that reply.
- `human_wer`: words that are wrong of two recordings of people (human_recordings.yaml), cut at silences to
  what is heard at once. They are fetched once, 20 MB; without network this is null, and `human_left_out` says
  why. `--human-only` counts nothing else.
- `all_heard_wer`: of the questions by push-to-talk and of these recordings together.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soxr
import websockets
import yaml
from human_recordings import pieces, recordings
from served import served
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from antiphon.bench import provenance
from antiphon.core.errors import CheckpointError
from antiphon.core.playback import Playback

RATE_HZ = 24_000
FRAME_S = 0.02
GAP_S = 0.1
OWN = "own"
FLITE = ("slt", "rms")
"""Voices of Flite beside the checkpoint's own."""
PITCHES = {OWN: 1.0, "own, higher": 1.12, "own, deeper": 0.9}
"""Pitch and speed, of what the checkpoint's voice says where there is no other."""
OPTIONS = "--kv-tokens", "4096", "--max-context-tokens", "4096", "--min-lead-s", "0"
QUESTIONS = Path(__file__).with_name("talk_questions.yaml")
MOST_TOKENS = 48
LONG = 400
"""Tokens of a reply that is still made when somebody speaks over it."""
BARGE_IN_S = (0.3, 1.0, 2.0, 3.0)
"""After the first sound."""

IN_WORDS = (
    (re.compile(r"[()\[\]]"), " "),
    (re.compile(r"(?<=\d)[-–](?=\d)"), " to "),
    (re.compile(r"\s=\s"), " equals "),
    (re.compile(r"\s[*×]\s(?=\d)"), " times "),
)
"""What is said of a reply's signs."""

standard = EnglishTextNormalizer({})


def normalised(text: str) -> str:
    """As Whisper's normaliser has it, but that it leaves out brackets with what is in them, which a listener
    hears, and signs between numbers, which are read as words."""
    for signs, words in IN_WORDS:
        text = signs.sub(words, text)
    return standard(text)


@dataclass
class Heard:
    """A reply, as its listener met it. `first_s` counts from the end of the speech."""

    asked: str = ""
    said: str = ""
    status: str = ""
    first_s: float = float("nan")
    cut_s: float = float("nan")
    sound: bytes = b""
    gaps: int = 0
    playback: Playback = field(default_factory=Playback)

    def take(self, sound: bytes, now: float, since: float) -> None:
        if not self.sound:
            self.first_s = now - since
        self.sound += sound
        self.gaps += self.playback.add(len(sound) / 2 / RATE_HZ, now) > GAP_S


def errors(truth: str, found: str) -> tuple[int, int]:
    """Words that are wrong, left out or put in, and how many there should be."""
    left, right = normalised(truth).split(), normalised(found).split()
    row = list(range(len(right) + 1))
    for i, word in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1], len(left)


def rate(pairs: Sequence[tuple[str, str]]) -> float:
    wrong, words = zip(*(errors(*pair) for pair in pairs), strict=True)
    return round(sum(wrong) / sum(words), 4)


def flite(text: str, voice: str) -> bytes:
    """PCM16 at 24 kHz."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "said.wav")
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", str(file)], check=True)
        with wave.open(str(file)) as said:
            assert (said.getnchannels(), said.getsampwidth()) == (1, 2)
            samples = np.frombuffer(said.readframes(said.getnframes()), np.int16)
            rate_hz = said.getframerate()
    return soxr.resample(samples, rate_hz, RATE_HZ).tobytes()


class Server:
    """One that runs, by its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def say(self, text: str, voice: str) -> bytes:
        """PCM16 at 24 kHz: the checkpoint's voice, also played faster or slower, or one of Flite's."""
        if voice in FLITE:
            return flite(text, voice)
        pitch = PITCHES[voice]
        body = {"model": "talk", "input": text, "voice": "default", "response_format": "pcm"}
        sound = httpx.post(f"{self.url}/v1/audio/speech", json=body, timeout=60).raise_for_status().content
        samples = np.frombuffer(sound, np.int16).astype(np.float32)
        at = np.arange(0, len(samples) - 1, pitch)
        return np.interp(at, np.arange(len(samples)), samples).astype(np.int16).tobytes()

    def hear(self, sound: bytes, rate_hz: int = RATE_HZ) -> str:
        """As the server's transcriber understands it."""
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setparams((1, 2, rate_hz, 0, "NONE", ""))
            out.writeframes(sound)
        answer = httpx.post(
            f"{self.url}/v1/audio/transcriptions",
            files={"file": ("said.wav", file.getvalue())},
            data={"model": "talk"},
            timeout=60,
        )
        return answer.raise_for_status().json()["text"]

    @asynccontextmanager
    async def talk(self, is_vad: bool, most_tokens: int = MOST_TOKENS) -> AsyncIterator[Person]:
        async with websockets.connect(
            f"{self.url.replace('http', 'ws')}/v1/realtime?model=talk", max_size=None
        ) as socket:
            person = Person(socket)
            turns = {"type": "server_vad", "silence_duration_ms": 500} if is_vad else None
            audio = {"input": {"turn_detection": turns, "transcription": {"model": "talk"}}}
            await person.send(
                "session.update",
                session={"type": "realtime", "audio": audio, "max_output_tokens": most_tokens},
            )
            await person.until("session.updated")
            yield person


class Person:
    """Somebody who talks with the server."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket

    async def send(self, kind: str, **more: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **more}))

    async def next(self) -> dict[str, Any]:
        event = json.loads(await asyncio.wait_for(self._socket.recv(), 60))
        if event["type"] == "error":
            raise RuntimeError(event["error"])
        return event

    async def until(self, kind: str) -> dict[str, Any]:
        while (event := await self.next())["type"] != kind:
            pass
        return event

    async def speak(self, sound: bytes) -> float:
        """On real time, as a microphone; returns when the last of it was said."""
        began, size = time.monotonic(), round(FRAME_S * RATE_HZ) * 2
        for number, start in enumerate(range(0, len(sound), size)):
            await asyncio.sleep(max(began + (number + 1) * FRAME_S - time.monotonic(), 0.0))
            piece = base64.b64encode(sound[start : start + size]).decode()
            await self.send("input_audio_buffer.append", audio=piece)
        return time.monotonic()

    async def ask(self, sound: bytes, is_vad: bool) -> Heard:
        ended = await self.speak(sound)
        if is_vad:
            silence = asyncio.create_task(self.speak(bytes(RATE_HZ * 4)))
        else:
            silence = None
            await self.send("input_audio_buffer.commit")
            await self.send("response.create")
        heard = await self.listen(ended)
        if silence is not None:
            await silence
        return heard

    async def listen(self, since: float) -> Heard:
        heard, is_over = Heard(), False
        while not (is_over and heard.asked):
            event = await self.next()
            match event["type"]:
                case "response.output_audio.delta":
                    heard.take(base64.b64decode(event["delta"]), time.monotonic(), since)
                case "response.output_audio_transcript.delta":
                    heard.said += event["delta"]
                case "conversation.item.input_audio_transcription.completed":
                    heard.asked = event["transcript"] or "-"
                case "conversation.item.input_audio_transcription.failed":
                    heard.asked = "-"
                case "response.done":
                    heard.status, is_over = event["response"]["status"], True
                case _:
                    pass
        return heard

    async def interrupt(self, question: bytes, voice: bytes, after_s: float) -> float:
        """Seconds from the server's word that somebody speaks over the reply to the reply's end; nan where it
        had been heard to its end."""
        await self.speak(question)
        silence = asyncio.create_task(self.speak(bytes(RATE_HZ * 2)))
        await self.until("response.output_audio.delta")
        await silence
        await asyncio.sleep(after_s)
        speaking = asyncio.create_task(self.speak(voice + bytes(RATE_HZ * 2)))
        await self.until("input_audio_buffer.speech_started")
        began = time.monotonic()
        while (event := await self.next())["type"] != "response.created":
            if _cuts(event):
                ended = time.monotonic()
                await speaking
                return ended - began
        await speaking
        return float("nan")


def _cuts(event: dict[str, Any]) -> bool:
    """Is this a reply's end by interruption? One that was made to its end is cut to what was heard."""
    if event["type"] == "response.done":
        return event["response"]["status"] == "cancelled"
    return event["type"] == "conversation.item.truncated"


def said_anew(sounds: Sequence[bytes], number: int) -> list[bytes]:
    """The same, behind so many samples of silence: what was heard once would be known."""
    return [bytes(2 * number) + sound for sound in sounds]


async def one_by_one(server: Server, sounds: dict[str, bytes], is_vad: bool) -> list[tuple[str, Heard]]:
    found: list[tuple[str, Heard]] = []
    for question, sound in sounds.items():
        async with server.talk(is_vad) as person:
            found.append((question, await person.ask(sound, is_vad)))
    return found


async def at_once(server: Server, sounds: Sequence[bytes], people: int) -> dict[str, float]:
    async def one(own: Sequence[bytes]) -> list[Heard]:
        async with server.talk(is_vad=False) as person:
            return [await person.ask(sound, is_vad=False) for sound in own]

    each = await asyncio.gather(*(one(sounds[at::people][:5]) for at in range(people)))
    replies = [reply for own in each for reply in own]
    return {
        "replies": len(replies),
        "with_gaps": sum(reply.gaps > 0 for reply in replies),
        "failed": sum(reply.status not in ("completed", "incomplete") for reply in replies),
        "first_audio_ms": round(1e3 * statistics.median(reply.first_s for reply in replies)),
    }


def waits(replies: Sequence[Heard], most_ms: float) -> dict[str, float]:
    all_ms = sorted(1e3 * reply.first_s for reply in replies)
    p90 = all_ms[int(0.9 * (len(all_ms) - 1))]
    within = sum(one <= most_ms for one in all_ms) / len(all_ms)
    return {"p50": round(statistics.median(all_ms)), "p90": round(p90), "within_bound": round(within, 2)}


def heard_of(server: Server, asked: Sequence[str], voice: str) -> float:
    """The rate of words that are wrong where a voice asks all questions, sent as files."""
    return rate([(ask, server.hear(server.say(ask, voice))) for ask in asked])


async def conversation(server: Server, voices: Sequence[str]) -> dict[str, Any]:
    """All that is counted."""
    questions: list[dict[str, Any]] = yaml.safe_load(QUESTIONS.read_text())
    topics = {one["ask"]: {str(word) for word in one["topic"]} for one in questions}
    sounds = {
        ask: await asyncio.to_thread(server.say, ask, voices[number % len(voices)])
        for number, ask in enumerate(topics)
    }
    ptt = await one_by_one(server, sounds, is_vad=False)
    said_once = list(sounds.values())
    anew = dict(zip(sounds, said_anew(said_once, 1), strict=True))
    vad = await one_by_one(server, anew, is_vad=True)
    again = [await asyncio.to_thread(server.hear, reply.sound) if reply.sound else "" for _, reply in ptt]
    on_topic = [bool(topics[ask] & set(re.findall(r"[a-z0-9]+", reply.said.lower()))) for ask, reply in ptt]
    cuts: list[float] = []
    for number, after_s in enumerate(BARGE_IN_S):
        async with server.talk(is_vad=True, most_tokens=LONG) as person:
            story, voice = list(sounds.values())[-1], list(sounds.values())[number]
            cuts.append(await person.interrupt(story, voice, after_s))
    return {
        "questions": len(topics),
        "voices": list(voices),
        "heard_wer_of": {
            voice: await asyncio.to_thread(heard_of, server, list(topics), voice) for voice in voices
        },
        "heard_wer": rate([(ask, reply.asked) for ask, reply in ptt]),
        "heard_wer_vad": rate([(ask, reply.asked) for ask, reply in vad]),
        "said_wer": rate([(reply.said, heard) for (_, reply), heard in zip(ptt, again, strict=True)]),
        "on_topic": sum(on_topic),
        "first_audio_ms": {
            "ptt": waits([reply for _, reply in ptt], 350),
            "vad": waits([reply for _, reply in vad], 900),
        },
        "gaps_alone": sum(reply.gaps for _, reply in (*ptt, *vad)),
        "two": await at_once(server, said_anew(said_once, 2), 2),
        "four": await at_once(server, said_anew(said_once, 3), 4),
        "barge_in_ms": [round(1e3 * one) for one in cuts if one == one],
        "dialogue": [
            {
                "asked": ask,
                "understood": reply.asked.strip(),
                "said": reply.said.strip(),
                "heard": heard.strip(),
            }
            for (ask, reply), heard in zip(ptt, again, strict=True)
        ],
    }


def people_heard(server: Server, asked: list[tuple[str, str]]) -> dict[str, Any]:
    """Of the recordings of people: the rate of all their words, of each, and together with the questions."""
    try:
        found = recordings()
    except CheckpointError as error:
        return {"human_wer": None, "human_left_out": str(error)}
    pairs: dict[str, tuple[str, str]] = {}
    for one in found:
        heard = (server.hear(part.tobytes(), one.rate_hz) for part in pieces(one.samples, one.rate_hz))
        pairs[one.name] = one.said, " ".join(heard)
        sys.stderr.write(f"{one.name}: {pairs[one.name][1]}\n")
    each = {name: rate([pair]) for name, pair in pairs.items()}
    people = list(pairs.values())
    return {"human_wer": {"all": rate(people), **each}, "all_heard_wer": rate([*asked, *people])}


async def run(model: str, threads: int, human_only: bool, voices: Sequence[str]) -> dict[str, Any]:
    options = *("--name", "talk", "--threads", str(threads)), *OPTIONS
    with (
        tempfile.TemporaryDirectory() as folder,
        served(
            Path(folder) / "log", model, *options, environment={"OMP_NUM_THREADS": str(threads)}
        ) as started,
    ):
        server = Server(started.url)
        try:
            found = {} if human_only else await conversation(server, voices)
            asked = [(one["asked"], one["understood"]) for one in found.get("dialogue", ())]
            return {**found, **await asyncio.to_thread(people_heard, server, asked)}
        except websockets.InvalidStatus as error:
            raise RuntimeError(f"the server refuses a conversation: {error.response.body!r}") from error


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--human-only", action="store_true", help="only the recordings of people")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--own-voice", action="store_true", help="do not take Flite's voices")
    arguments = parser.parse_args()
    is_own = arguments.own_voice or shutil.which("flite") is None
    voices = tuple(PITCHES) if is_own else (OWN, *FLITE)
    result = asyncio.run(run(arguments.model, arguments.threads, arguments.human_only, voices))
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
