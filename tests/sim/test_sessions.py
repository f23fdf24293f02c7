"""The server's side of a simulated conversation does with facts what `wire.session` does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from antiphon.core.facts import (
    Fact,
    ItemAdded,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.core.ids import IdSource
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, Usage
from antiphon.core.turns import ReplyPaused, ReplyResumed, TurnEvent
from antiphon.sim.events import Agenda
from antiphon.sim.links import Link, Network
from antiphon.sim.sessions import PIECE, Asked, ServerSession
from antiphon.wire.effects import ServerEvent, ToEngine
from antiphon.wire.session import RealtimeSession
from antiphon.wire.turn_detection import TurnDetection
from wire.harness import INFO, FakeMedia, pcm

SAMPLES_PER_MS = 24


class PieceDetokeniser:
    """Every token is the simulator's piece."""

    def push(self, token_ids: list[int]) -> str:
        return PIECE * len(token_ids)

    def flush(self) -> str:
        return ""


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


class Ears:
    """Implements sim.sessions.Client."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *told: self.got.append((name, *told))


class Simulated:
    """A simulated session, told what happens."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.facts: list[Fact] = []
        self.ears = Ears()
        down = Link(self.agenda, Network(0.0), 0)
        self.session = ServerSession("s", "", self.agenda, self.facts.append, down)
        self.session.client = self.ears
        self.session.open()

    def wait(self, seconds: float) -> None:
        until_s = self.agenda.now + seconds
        self.agenda.run(until_s, lambda: False)
        self.agenda.now = until_s

    def heard(self) -> list[tuple[Any, ...]]:
        self.agenda.run(self.agenda.now + 1e-6, lambda: False)
        return self.ears.got

    @property
    def responses(self) -> list[str]:
        return [fact.response for fact in self.facts if isinstance(fact, ResponseRequested)]

    def output(self, output: Output) -> None:
        self.session.deliver(output)

    def create(self) -> None:
        self.session.create(Asked("ask", True, None))

    def cancel(self, response: str) -> None:
        self.session.cancel(response)

    def truncate(self, response: str, end_ms: int) -> None:
        self.session.truncate(response, end_ms)

    def ack(self, response: str, played_ms: int) -> None:
        self.session.acknowledge(response, played_ms / 1000.0)

    def notice(self, event: ReplyPaused | ReplyResumed) -> None:
        if isinstance(event, ReplyPaused):
            self.session.hold()
        else:
            self.session.release()


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
        self._keep(self.session.start(0.0))

    def wait(self, seconds: float) -> None:
        self.now += seconds

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
    return TokensOut("s", response, 1, "thinker", np.full((count, 1), 7))


def audio(response: str, length_ms: int) -> AudioOut:
    return AudioOut("s", response, 1, bytes(4 * SAMPLES_PER_MS * length_ms))


def ended(response: str, status: str = "completed") -> ResponseEnded:
    return ResponseEnded("s", response, 1, status, "", "", Usage(7, 13, 2, 4, 5, 6))


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


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tokens"), st.integers(1, 8)),
        st.tuples(st.just("audio"), st.integers(20, 900)),
        st.tuples(st.just("wait"), st.integers(1, 1500)),
        st.tuples(st.just("ack"), st.integers(0, 2000)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("end"), st.sampled_from(["completed", "cancelled", "failed"])),
        st.tuples(st.just("cancel"), st.just(0)),
        st.tuples(st.just("notice"), st.sampled_from([ReplyPaused(), ReplyResumed()])),
        st.tuples(st.just("create"), st.just(0)),
    ),
    max_size=25,
)


@examples(max_examples=150)
@given(STEPS)
def test_the_same_happens_to_replies_as_on_the_wire(steps: list[tuple[str, Any]]) -> None:
    """Whatever a client and an engine do: the same cuts, cancellations and reports."""
    sides = [Simulated(), Real()]
    for side in sides:
        side.create()
        sent_ms = [0]
        for kind, value in steps:
            _happen(side, kind, value, sent_ms)
    assert said(sides[0]) == said(sides[1])


def _happen(side: Simulated | Real, kind: str, value: Any, sent_ms: list[int]) -> None:
    response = side.responses[-1]
    match kind:
        case "tokens":
            side.output(tokens(response, value))
        case "audio":
            side.output(audio(response, value))
            sent_ms[0] += value
        case "wait":
            side.wait(value / 1024)
        case "ack":
            side.ack(response, value)
        case "truncate" if sent_ms[0]:
            side.truncate(response, int(value / 100 * sent_ms[0] / 2))
        case "end":
            side.output(ended(response, value))
        case "cancel":
            side.cancel(response)
        case "notice":
            side.notice(value)
        case "create":
            before = len(side.responses)
            side.create()
            if len(side.responses) > before:
                sent_ms[0] = 0
        case _:
            pass


@given(st.lists(st.sampled_from(["append", "commit", "clear", "create"]), max_size=12))
def test_who_commits_by_hand_speaks_from_the_first_audio_on(steps: list[str]) -> None:
    """The engine is told the same as over the wire."""
    simulated, real = Simulated(), Real()
    manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    real._send({"type": "session.update", "session": manual})
    has_audio = False
    for step in steps:
        if step == "commit" and not has_audio:
            continue
        has_audio = step == "append" or (has_audio and step == "create")
        match step:
            case "append":
                simulated.session.append()
                real._send({"type": "input_audio_buffer.append", "audio": pcm(0.2)})
            case "commit":
                simulated.session.commit(0.2)
                real._send({"type": "input_audio_buffer.commit"})
            case "clear":
                simulated.session.clear()
                real._send({"type": "input_audio_buffer.clear"})
            case _:
                simulated.create()
                real.create()
    kinds = [[type(fact) for fact in side.facts] for side in (simulated, real)]
    assert kinds[0] == kinds[1]


def test_nobody_can_have_heard_more_than_was_sent() -> None:
    """What comes for a reply that is over is not sent; a client that counts it all the same is refused."""
    sides: list[Simulated | Real] = [Simulated(), Real()]
    for side in sides:
        side.create()
        for kind, value in (("tokens", 2), ("audio", 200), ("end", "completed"), ("audio", 400)):
            _happen(side, kind, value, [0])
        side.truncate(side.responses[0], 301)
    assert said(sides[0]) == said(sides[1])
    assert not any(isinstance(fact, ItemCut) for side in sides for fact in side.facts)
    simulated, real = sides
    assert isinstance(simulated, Simulated)
    assert isinstance(real, Real)
    (refused,) = [told for told in simulated.heard() if told[0] == "refused"]
    assert [(refused[2], refused[3])] == real.errors
    for side in sides:
        side.truncate(side.responses[0], 300)
    assert said(simulated) == said(real)
    assert sum(isinstance(fact, ItemCut) for fact in real.facts) == 1


def test_one_reply_at_a_time() -> None:
    side = Simulated()
    side.create()
    side.create()
    side.output(ended(side.responses[0], "failed"))
    assert [kind for kind, *_ in side.heard()] == ["created", "refused", "done"]
    side.create()
    assert len(side.responses) == 2


def test_a_voice_ends_what_is_being_made_and_its_turn_is_answered_once_that_is_over() -> None:
    side = Simulated()
    side.create()
    response = side.responses[0]
    side.output(tokens(response, 8))
    side.output(audio(response, 4000))
    side.wait(1.0)
    side.session.speech_began()
    side.session.speech_over(1.2, Asked("ask-1", True, 20))
    cancelled = next(fact for fact in side.facts if isinstance(fact, ResponseCancelled))
    assert cancelled.reason == "turn_detected"
    assert cancelled.keep_tokens is not None
    assert 0 < cancelled.keep_tokens < 8
    assert len(side.responses) == 1
    side.output(audio(response, 100))
    side.output(ended(response))
    assert len(side.responses) == 2
    after = [type(fact) for fact in side.facts[side.facts.index(cancelled) + 1 :]]
    assert after == [SpeechEnded, ItemAdded, ItemCut, ResponseRequested]
    done = next(told for told in side.heard() if told[0] == "done")
    assert done[2:4] == ("cancelled", "turn_detected")
    assert sum(told[0] == "heard" for told in side.ears.got) == 1


def test_what_is_held_is_not_heard_until_it_is_released() -> None:
    side = Simulated()
    side.create()
    response = side.responses[0]
    side.output(audio(response, 100))
    side.session.hold()
    side.session.hold()
    side.output(audio(response, 400))
    side.output(ended(response))
    side.wait(1.0)
    assert side.session.is_heard, "what is held is to come"
    assert [kind for kind, *_ in side.heard()] == ["created", "heard"]
    side.session.release()
    side.session.release()
    assert [kind for kind, *_ in side.heard()] == ["created", "heard", "heard", "done"]
    assert [type(fact) for fact in side.facts[-2:]] == [OutputHeld, OutputReleased]
    assert side.session.is_heard
    side.wait(0.5)
    assert not side.session.is_heard


def test_a_voice_cuts_what_is_only_still_playing() -> None:
    side = Simulated()
    side.create()
    response = side.responses[0]
    side.output(tokens(response, 8))
    side.output(audio(response, 4000))
    side.output(ended(response))
    assert side.session.is_heard
    side.wait(2.0)
    side.session.speech_began()
    assert not side.session.is_heard
    assert [fact.num_tokens for fact in side.facts if isinstance(fact, ItemCut)] == [3]
    assert any(isinstance(fact, SpeechStarted) for fact in side.facts)


def test_a_second_voice_over_a_reply_that_is_being_cancelled_changes_nothing() -> None:
    side = Simulated()
    side.create()
    side.session.speech_began()
    side.session.speech_began()
    assert sum(isinstance(fact, ResponseCancelled) for fact in side.facts) == 1


def test_nobody_is_told_of_what_is_gone() -> None:
    side = Simulated()
    side.session.cancel("never")
    side.session.truncate("never", 5)
    side.session.acknowledge("never", 5.0)
    side.create()
    response = side.responses[0]
    side.session.close()
    side.session.close()
    side.output(tokens(response, 1))
    assert sum(isinstance(fact, SessionClosed) for fact in side.facts) == 1
    assert [kind for kind, *_ in side.heard()] == ["created"]
