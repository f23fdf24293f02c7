"""A client's and an engine's view of one session, for tests. No socket, no clock."""

from __future__ import annotations

import base64
import json
from typing import Any, get_args

import numpy as np
import pydantic
from openai.types.realtime.realtime_server_event import RealtimeServerEvent
from openai.types.realtime.realtime_session_create_response import RealtimeSessionCreateResponse
from pydantic import TypeAdapter

from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.core.errors import ProtocolError
from antiphon.core.facts import PersonFact, ResponseRequested
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import AudioOut, ResponseEnded, TokensOut, Usage, ints
from antiphon.wire.effects import Effect, ServerEvent
from antiphon.wire.limits import Limits, MediaRoom
from antiphon.wire.ports import TurnDetectorFactory
from antiphon.wire.session import RealtimeSession
from wire.ears import sound
from wire.recorder import Recorder

INFO = ModelInfo("test-omni", "/nowhere", "fake", ("ethan", "chelsie"), 4096, "cpu", "float32")
USAGE = Usage(7, 13, 2, 4, 5, 6)
TYPES = {
    name: kind
    for kind in get_args(get_args(RealtimeServerEvent)[0])
    for name in get_args(kind.model_fields["type"].annotation)
}
OURS = {"antiphon.advised"}
"""Events that only clients get that sent one of ours."""
EXTENSIONS = {".x_extensions", ".audio.input.turn_detection.min_speech_ms"}
"""Ours, in the session object: extra keys there are known to break no client."""
ADAPTERS = {name: TypeAdapter(kind) for name, kind in TYPES.items()}


class HalfDetokeniser:
    """Token ids are code points; the last one is held back until the next comes."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token_ids: list[int]) -> str:
        text = self._held + "".join(map(chr, token_ids))
        self._held = text[-1:]
        return text[:-1]

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text

    def spelled(self, token_id: int) -> bytes:
        return chr(token_id).encode()


class Doubled:
    """Every byte becomes six, as long at 24 kHz PCM16 as it was at 8 kHz G.711."""

    def push(self, audio: bytes) -> bytes:
        return b"".join(bytes([value]) * 6 for value in audio)


class Held:
    """One byte a sample at a third of the rate; the last push is held back until the next or the end."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, samples: bytes) -> bytes:
        out, self._held = self._held, samples[::12]
        return out

    def flush(self) -> bytes:
        return self._held


class FakeMedia:
    """Keeps bytes as they are."""

    def audio_part(self, pcm16_24k: bytes) -> AudioPart:
        return AudioPart.of(pcm16_24k * 2)

    def input_decoder(self, audio_format: str) -> Doubled:
        return Doubled()

    def output_encoder(self, audio_format: str) -> Held:
        return Held()

    def image_part(self, data_url: str, room: MediaRoom) -> ImagePart:
        if data_url == "data:broken":
            raise ProtocolError("The image is broken.")
        return ImagePart.of(b"\0" * 12, 2, 2)

    def video_part(self, data_urls: list[str], fps: float, room: MediaRoom) -> VideoPart:
        for url in data_urls:
            self.image_part(url, room)
        return VideoPart.of(b"\0" * 12 * len(data_urls), (2, 2), len(data_urls), fps)


def check_event(payload: dict[str, Any]) -> None:
    """Strictly an event of the official SDK: no wrong type, no field that it does not know, under 1 MiB."""
    text = json.dumps(payload)
    assert len(text) < 1 << 20
    if payload["type"] in OURS:
        return
    event = ADAPTERS[payload["type"]].validate_json(text, strict=True)
    if "session" in payload:
        # the SDK types the session in events as what clients send; what servers send has id and object too
        event = RealtimeSessionCreateResponse.model_validate_json(json.dumps(payload["session"]), strict=True)
    assert set(unknown_fields(event)) <= EXTENSIONS


def unknown_fields(value: Any, path: str = "") -> list[str]:
    """Paths that no SDK type declares."""
    if isinstance(value, list):
        return [
            found for index, part in enumerate(value) for found in unknown_fields(part, f"{path}[{index}]")
        ]
    if not isinstance(value, pydantic.BaseModel):
        return []
    extra = [f"{path}.{name}" for name in value.model_extra or {}]
    return extra + [
        found
        for name, part in value
        if name not in (value.model_extra or {})
        for found in unknown_fields(part, f"{path}.{name}")
    ]


def pcm(length_s: float) -> str:
    return base64.b64encode(b"\1\0" * round(24_000 * length_s)).decode()


def message(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}


class Driver:
    """Drives a session; every event that it emits is validated and kept."""

    def __init__(
        self,
        limits: Limits | None = None,
        detectors: TurnDetectorFactory | None = None,
        info: ModelInfo = INFO,
    ) -> None:
        self.now = 0.0
        self.session = RealtimeSession(
            info, IdSource("test"), FakeMedia(), HalfDetokeniser, limits, detectors
        )
        self.events: list[dict[str, Any]] = []
        self.recorder = Recorder()
        self.facts: list[PersonFact] = []
        self.started = self._keep(self.session.start())

    def send(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        return self.frame(json.dumps({"type": kind, **fields}))

    def frame(self, frame: str | bytes) -> list[dict[str, Any]]:
        return self._keep(self.session.receive(frame, self.now))

    def error(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send what must be refused; the refusal."""
        (event,) = self.send(kind, **fields)
        assert event["type"] == "error", event
        return event["error"]

    def say(self, text: str = "hi", **fields: Any) -> str:
        """Add a typed user item; its id."""
        return self.send("conversation.item.create", item=message(text, **fields))[0]["item"]["id"]

    def ask(self, **response: Any) -> str:
        """Create a response; its id."""
        events = self.send("response.create", response=response)
        assert kinds(events) == ["response.created"], events
        return events[0]["response"]["id"]

    def tokens(self, response: str, text: str) -> list[dict[str, Any]]:
        column = ints([ord(char) for char in text]).reshape(-1, 1)
        return self.output(TokensOut(self.session.id, response, "thinker", column))

    def audio(self, response: str, length_s: float = 0.1, value: float = 0.5) -> list[dict[str, Any]]:
        samples = np.full(round(length_s * 24_000), value, "<f4").tobytes()
        return self.output(AudioOut(self.session.id, response, samples))

    def end(self, response: str, status: str = "completed", reason: str = "", message: str = "") -> list[Any]:
        return self.output(ResponseEnded(self.session.id, response, status, reason, message, USAGE))

    def facts_of(self, kind: type[PersonFact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def output(self, output: Any) -> list[dict[str, Any]]:
        self.recorder.output(output)
        return self._keep(self.session.deliver(output, self.now))

    def tick(self, by_s: float = 0.0) -> list[dict[str, Any]]:
        """Time passes, and the session is told."""
        self.now += by_s
        return self._keep(self.session.tick(self.now))

    def detect(self, **fields: Any) -> None:
        """Ask for this turn detection."""
        detection = {"type": "server_vad", **fields}
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        assert kinds(self.send("session.update", session=session)) == ["session.updated"]

    def hear(self, *pieces: tuple[int, float]) -> list[dict[str, Any]]:
        """Append sound of (percent of voice, seconds)."""
        return self.send("input_audio_buffer.append", audio=sound(*pieces))

    def fact(self, kind: type[PersonFact]) -> Any:
        """The last fact of a kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)][-1]

    @property
    def request(self) -> ResponseRequested:
        return self.fact(ResponseRequested)

    def _keep(self, effects: list[Effect]) -> list[dict[str, Any]]:
        events = [effect.payload for effect in effects if isinstance(effect, ServerEvent)]
        for event in events:
            check_event(event)
        self.events += events
        facts = [effect.fact for effect in effects if not isinstance(effect, ServerEvent)]
        self.facts += facts
        for fact in facts:
            self.recorder.fact(fact)
        return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]
