"""Two servers of one conversation, to compare: a simulated session and `wire.session` itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from antiphon.core.facts import (
    Fact,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
)
from antiphon.core.ids import IdSource
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, Usage
from antiphon.core.turns import ReplyPaused, ReplyResumed, TurnEvent
from antiphon.people.acts import Say, Stretch
from antiphon.people.downlink import Downlink, ReceivedEvent
from antiphon.people.uplink import settings
from antiphon.sim.events import Agenda
from antiphon.sim.links import Link, Network
from antiphon.sim.log import Log
from antiphon.sim.sessions import PIECE, ServerSession
from antiphon.wire.effects import ServerEvent, ToEngine
from antiphon.wire.session import RealtimeSession
from antiphon.wire.turn_detection import TurnDetection
from antiphon.workload.script import PersonScript
from wire.harness import INFO, FakeMedia, pcm

SAMPLES_PER_MS = 24


class PieceDetokeniser:
    """Every token is the simulator's piece."""

    def push(self, token_ids: list[int]) -> str:
        return PIECE * len(token_ids)

    def flush(self) -> str:
        return ""

    def spelled(self, token_id: int) -> bytes:
        return PIECE.encode()


class ToldDetector:
    """`wire.ports.TurnDetector` that notices what it is told to."""

    def __init__(self, asked: TurnDetection) -> None:
        self.notices: list[TurnEvent] = []

    def feed(self, pcm16: bytes, reply_is_heard: bool) -> list[TurnEvent]:
        noticed, self.notices = self.notices, []
        return noticed

    def configure(self, asked: TurnDetection) -> None:
        pass

    def end(self) -> list[TurnEvent]:
        return []


class ToldHearing:
    """In place of sim.hearing.Hearing: its detector notices what it is told to."""

    def __init__(self, agenda: Agenda, append: Any) -> None:
        self.told: ToldDetector | None = None

    def detector(self, asked: TurnDetection) -> ToldDetector:
        self.told = ToldDetector(asked)
        return self.told


OPEN = settings(PersonScript("s", 0.0, 0, ()), has_vad=True)

MANUAL = settings(PersonScript("s", 0.0, 0, ()), has_vad=False)


class Ears(Downlink):
    """Keeps what comes."""

    def __init__(self, agenda: Agenda) -> None:
        super().__init__("s", Log(agenda), 5.0)
        self.got: list[ReceivedEvent] = []

    def receive(self, event: ReceivedEvent, now: float) -> None:
        super().receive(event, now)
        if event.type != "session.updated":
            self.got.append(event)


class Simulated:
    """A simulated session, told what happens."""

    def __init__(
        self,
        asked: dict[str, Any] | None = None,
        tier: Any = "latency",
        max_recording_s: float | None = None,
    ) -> None:
        self.agenda = Agenda()
        self.facts: list[Fact] = []
        self.ears = Ears(self.agenda)
        down = Link(self.agenda, Network(0.0), 0)
        asked = asked or OPEN
        has_vad = bool(asked.get("audio", {}).get("input", {}).get("turn_detection"))
        self.session = ServerSession(
            "s",
            asked,
            has_vad,
            tier,
            None,
            self.agenda,
            self.facts.append,
            down,
            self.ears,
            max_recording_s=max_recording_s,
        )
        self.session.open()

    def wait(self, seconds: float) -> None:
        until_s = self.agenda.now + seconds
        self.agenda.run(until_s, lambda: False)
        self.agenda.now = until_s

    def heard(self) -> list[ReceivedEvent]:
        self.agenda.run(self.agenda.now + 1e-6, lambda: False)
        return self.ears.got

    def heard_kinds(self) -> list[str]:
        return [event.type for event in self.heard()]

    @property
    def responses(self) -> list[str]:
        return [fact.response for fact in self.facts if isinstance(fact, ResponseRequested)]

    def item(self, response: str) -> str:
        return next(
            f.item_id for f in self.facts if isinstance(f, ResponseRequested) and f.response == response
        )

    def output(self, output: Output) -> None:
        self.session.deliver(output)

    def create(self) -> None:
        self.session.receive({"type": "response.create", "event_id": "ask"})

    def cancel(self, response: str) -> None:
        self.session.receive({"type": "response.cancel", "response_id": response})

    def truncate(self, response: str, end_ms: int) -> None:
        place = {"content_index": 0, "audio_end_ms": end_ms}
        self.session.receive({"type": "conversation.item.truncate", "item_id": self.item(response), **place})

    def ack(self, response: str, played_ms: int) -> None:
        self.session.receive({"type": "playback.ack", "response_id": response, "played_ms": played_ms})

    def append(self, seconds: float) -> None:
        audio = bytes(2 * round(24_000 * seconds))
        self.session.receive({"type": "input_audio_buffer.append", "audio": audio})

    def send(self, kind: str) -> None:
        self.session.receive({"type": f"input_audio_buffer.{kind}"})

    def say(self, *stretches: tuple[float, float]) -> None:
        self.session.hear(Say(tuple(Stretch(speech_s, pause_s, ()) for speech_s, pause_s in stretches)))

    def notice(self, event: ReplyPaused | ReplyResumed) -> None:
        hearing = self.session._hearing
        assert isinstance(hearing, ToldHearing)
        assert hearing.told is not None
        hearing.told.notices = [event]
        self.append(0.02)


class Real:
    """The wire's session, told the same as a client's frames."""

    def __init__(self) -> None:
        self.now = 0.0
        self.detector = ToldDetector(TurnDetection())
        self.session = RealtimeSession(
            INFO, IdSource("test"), FakeMedia(), PieceDetokeniser, detectors=lambda asked: self.detector
        )
        self.facts: list[Fact] = []
        self.errors: list[tuple[str, str]] = []
        self._keep(self.session.start())

    def wait(self, seconds: float) -> None:
        """Its server calls it when it asked for it."""
        until = self.now + seconds
        while (wake_s := self.session.wake_at) is not None and wake_s <= until:
            self.now = max(self.now, wake_s)
            self._keep(self.session.tick(self.now))
        self.now = until

    @property
    def responses(self) -> list[str]:
        return [fact.response for fact in self.facts if isinstance(fact, ResponseRequested)]

    def item(self, response: str) -> str:
        return next(
            f.item_id for f in self.facts if isinstance(f, ResponseRequested) and f.response == response
        )

    def output(self, output: Output) -> None:
        self._keep(self.session.deliver(output, self.now))

    def create(self) -> None:
        self._send({"type": "response.create"})

    def cancel(self, response: str) -> None:
        self._send({"type": "response.cancel", "response_id": response})

    def truncate(self, response: str, end_ms: int) -> None:
        place = {"content_index": 0, "audio_end_ms": end_ms}
        self._send({"type": "conversation.item.truncate", "item_id": self.item(response), **place})

    def ack(self, response: str, played_ms: int) -> None:
        self._send({"type": "playback.ack", "response_id": response, "played_ms": played_ms})

    def notice(self, event: ReplyPaused | ReplyResumed) -> None:
        self.detector.notices = [event]
        self._send({"type": "input_audio_buffer.append", "audio": pcm(0.02)})

    def _send(self, event: dict[str, Any]) -> None:
        self._keep(self.session.receive(json.dumps(event), self.now))

    def _keep(self, effects: list[Any]) -> None:
        self.facts += [effect.fact for effect in effects if isinstance(effect, ToEngine)]
        told = [effect.payload for effect in effects if isinstance(effect, ServerEvent)]
        self.errors += [(e["error"]["code"], e["error"]["message"]) for e in told if e["type"] == "error"]


def tokens(response: str, count: int) -> TokensOut:
    return TokensOut("s", response, "thinker", np.full((count, 1), 7))


def audio(response: str, length_ms: int) -> AudioOut:
    return AudioOut("s", response, bytes(4 * SAMPLES_PER_MS * length_ms))


def ended(response: str, status: str = "completed") -> ResponseEnded:
    return ResponseEnded("s", response, status, "", "", Usage(7, 13, 2, 4, 5, 6))


def said(side: Simulated | Real) -> list[tuple[Any, ...]]:
    """The facts about replies, which are counted and not named."""
    number = {response: index for index, response in enumerate(side.responses)}
    items = {
        fact.item_id: i for i, fact in enumerate(f for f in side.facts if isinstance(f, ResponseRequested))
    }
    found: list[tuple[Any, ...]] = []
    for fact in side.facts:
        match fact:
            case ResponseRequested():
                found.append(("asked", fact.speech, fact.max_tokens, fact.retention, fact.remember))
            case ResponseCancelled():
                found.append(("cancelled", number[fact.response], fact.reason, fact.keep_tokens))
            case ItemCut():
                found.append(("cut", items[fact.item_id], fact.num_tokens))
            case PlaybackReported():
                found.append(("played", number[fact.response], pytest.approx(fact.played_s)))
            case OutputHeld() | OutputReleased():
                found.append((type(fact), number[fact.response]))
            case _:
                pass
    return found
