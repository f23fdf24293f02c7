"""The server's side of one conversation on virtual time: `wire.session`, without frames.

A token is a piece of text, a recording is silence of its length, a picture is its size, and so is a clip.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Literal

import msgspec
import numpy as np

from antiphon.core.conversation import AudioPart, ImagePart, VideoPart
from antiphon.core.facts import Fact, ResponseRequested
from antiphon.core.ids import IdSource, content_key
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import Output
from antiphon.core.rng import stream
from antiphon.core.units import MODEL_SAMPLE_RATE_HZ, PCM16_BYTES, WIRE_SAMPLE_RATE_HZ
from antiphon.people.acts import Say
from antiphon.people.downlink import AUDIO_DELTAS, TEXT_DELTAS, TRANSCRIPT_DELTAS, Downlink, ReceivedEvent
from antiphon.sim.events import Agenda, Rank
from antiphon.sim.hearing import Hearing
from antiphon.sim.links import Link
from antiphon.wire.effects import Effect, ServerEvent, ToEngine
from antiphon.wire.input_settings import AudioFormat
from antiphon.wire.limits import MediaRoom
from antiphon.wire.ports import AudioDecoder, AudioEncoder
from antiphon.wire.readers import ReaderRates
from antiphon.wire.session import RealtimeSession, SessionPhase
from antiphon.workload.script import Clip

PIECE = "abc "
"""The text of a token: of the four characters that English has on average, and a word."""
SAMPLE_BYTES = 4
"""Of float32."""
NOISE = 1e-4
"""Of a quiet room, beside the loudest sample."""
MOST_TOKENS = 1 << 40
"""No bound: the engine itself ends a reply that outgrows its context."""
READ = frozenset(
    (
        *AUDIO_DELTAS,
        *TEXT_DELTAS,
        *TRANSCRIPT_DELTAS,
        "response.created",
        "response.done",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "error",
    )
)
"""Events that a person's client reads. No others cross the link."""


class ServerSession:
    """One conversation. Its methods are called when the client's messages arrive.

    asked     the session that the client asks for as it connects
    has_vad   turns are detected in what an open microphone sends
    tier      of its requests, and the `rate` at which they are read: the protocol has no word for them
    downlink  gets the events, when they arrive there
    readers   say how fast a text is read of which its client does not tell (`tells_rate`). Where they do
              not know either, the engine is told the person's rate all the same
    max_recording_s  what the model hears at once; None: any
    """

    def __init__(
        self,
        name: str,
        asked: dict[str, Any],
        has_vad: bool,
        tier: Literal["latency", "best_effort"],
        rate: float | Literal["auto"] | None,
        agenda: Agenda,
        tell: Callable[[Fact], None],
        down: Link,
        downlink: Downlink,
        readers: ReaderRates = ReaderRates(),
        *,
        tells_rate: bool = False,
        max_recording_s: float | None = None,
    ) -> None:
        self._asked = asked
        self._tells_rate = tells_rate
        self._tier: Literal["latency", "best_effort"] = tier
        self._rate = rate
        self._agenda = agenda
        self._tell = tell
        self._down = down
        self._downlink = downlink
        self._hearing = Hearing(agenda, self._append)
        ids, detectors = Names(name), self._hearing.detector if has_vad else None
        hears_s = inf if max_recording_s is None else max_recording_s
        info, media = msgspec.structs.replace(INFO, max_recording_s=hears_s), Silent(ids, hears_s)
        self._wire = RealtimeSession(info, ids, media, Pieces, detectors=detectors, readers=readers)
        self._alarm_s: float | None = None

    def open(self) -> None:
        """The client connects and says what its session is, in one round trip: nobody waits for another."""
        now = self._agenda.now
        self._carry_out(self._wire.start())
        introduced = self._wire.receive_object({"type": "session.update", "session": self._asked}, now)
        for effect in introduced:
            assert isinstance(effect, ServerEvent)
            self._arrive(msgspec.convert(effect.payload, ReceivedEvent))

    def receive(self, event: dict[str, Any]) -> None:
        """A client's event. Those that are under way when it leaves are lost."""
        if self._wire.phase is SessionPhase.OPEN:
            self._carry_out(self._wire.receive_object(event, self._agenda.now))

    def hear(self, said: Say) -> None:
        """The person begins to say this into an open microphone."""
        self._hearing.hear(said)

    def _append(self, frame: bytes) -> None:
        self.receive({"type": "input_audio_buffer.append", "audio": frame})

    def deliver(self, output: Output) -> None:
        """An engine's output."""
        self._carry_out(self._wire.deliver(output, self._agenda.now))

    def close(self) -> None:
        """The client is gone."""
        self._carry_out(self._wire.close(self._agenda.now))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ToEngine):
                fact = effect.fact
                if isinstance(fact, ResponseRequested):
                    if not fact.speech and (self._tells_rate or fact.rate is None):
                        fact = msgspec.structs.replace(fact, rate=self._rate)
                    fact = msgspec.structs.replace(fact, tier=self._tier)
                self._tell(fact)
            elif effect.payload["type"] in READ:
                self._down.send(self._arrive, msgspec.convert(effect.payload, ReceivedEvent))
        wake_s = self._wire.wake_at
        if wake_s is not None and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self._agenda.at(max(wake_s, self._agenda.now), Rank.LINK, self._tick)

    def _arrive(self, event: ReceivedEvent) -> None:
        self._downlink.receive(event, self._agenda.now)

    def _tick(self) -> None:
        self._carry_out(self._wire.tick(self._agenda.now))


INFO = ModelInfo("simulated", "", "", ("simulated",), MOST_TOKENS, "", "")
"""With a voice: whether the graph has one is checked before (`sim.suited`)."""


class Names(IdSource):
    """Ids that tell the session, and count its items, responses and recordings."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self._session = session
        self._num_named = 0

    def new(self, prefix: str, joint: str = "_") -> str:
        if prefix in ("sess", "conv", "event"):
            return self._session
        self._num_named += 1
        return f"{self._session}/{prefix}-{self._num_named}"


class Pieces:
    """Implements wire.ports.Detokeniser: all tokens are the same piece."""

    def push(self, token_ids: list[int]) -> str:
        return PIECE * len(token_ids)

    def flush(self) -> str:
        return ""

    def spelled(self, token_id: int) -> bytes:
        return PIECE.encode()


class Silent:
    """Implements wire.ports.Media: every recording is content of its own, all pictures of a size are one, and
    so are all clips of a size and a seed."""

    def __init__(self, ids: IdSource, max_recording_s: float = inf) -> None:
        """max_recording_s: longer recordings are cut by what is heard in them."""
        self._ids = ids
        self._most_samples = max_recording_s * MODEL_SAMPLE_RATE_HZ

    def audio_part(self, pcm16_24k: bytes) -> AudioPart:
        num_samples = round(len(pcm16_24k) // PCM16_BYTES * MODEL_SAMPLE_RATE_HZ / WIRE_SAMPLE_RATE_HZ)
        name = self._ids.new("voice")
        if num_samples <= self._most_samples:
            return AudioPart(bytes(SAMPLE_BYTES * num_samples), content_key(name.encode()))
        return AudioPart(_heard(pcm16_24k, num_samples, name), content_key(name.encode()))

    def image_part(self, data_url: str, room: MediaRoom) -> ImagePart:
        width, height = (int(side) for side in data_url.removeprefix(PICTURE).split("x"))
        return ImagePart(b"", width, height, content_key(b"picture", f"{width}x{height}".encode()))

    def video_part(self, data_urls: list[str], fps: float, room: MediaRoom) -> VideoPart:
        first, key = data_urls[0], content_key(b"clip", " ".join(data_urls).encode(), repr(fps).encode())
        width, height = (int(side) for side in first.removeprefix(CLIP).split("#")[0].split("x"))
        return VideoPart(b"", width, height, len(data_urls), fps, None, key)

    def input_decoder(self, audio_format: AudioFormat) -> AudioDecoder:
        raise NotImplementedError(f"simulated clients send PCM16, not {audio_format}")

    def output_encoder(self, audio_format: AudioFormat) -> AudioEncoder:
        raise NotImplementedError(f"simulated clients receive PCM16, not {audio_format}")


def _heard(pcm16_24k: bytes, num_samples: int, name: str) -> bytes:
    """float32 samples: the voice and its pauses as they came, and noise far below them, by which no two
    pieces are the same and a recording without a pause is cut anywhere."""
    came = np.frombuffer(pcm16_24k, "<i2").astype(np.float32)
    voice = came[np.arange(num_samples) * (len(came) - 1) // max(num_samples - 1, 1)] / 32768
    return (voice + NOISE * stream(0, name).random(num_samples, np.float32)).astype("<f4").tobytes()


PICTURE, CLIP = "data:picture/", "data:clip/"


def picture_url(width: int, height: int) -> str:
    """Of a picture of this size."""
    return f"{PICTURE}{width}x{height}"


def clip_urls(clip: Clip) -> tuple[str, ...]:
    """Of a clip's frames."""
    return (f"{CLIP}{clip.width}x{clip.height}#{clip.seed}",) * clip.num_frames
