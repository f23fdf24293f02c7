"""The server's side of a simulated conversation: `wire.session` without frames, on virtual time."""

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
from antiphon.people.acts import Say, Stretch
from antiphon.people.downlink import Downlink, ReceivedEvent
from antiphon.people.uplink import settings
from antiphon.sim import sessions as room
from antiphon.sim.events import Agenda
from antiphon.sim.links import Link, Network
from antiphon.sim.log import Log
from antiphon.sim.sessions import PIECE, ServerSession, clip_urls, picture_url
from antiphon.wire.effects import ServerEvent, ToEngine
from antiphon.wire.session import RealtimeSession
from antiphon.wire.turn_detection import TurnDetection
from antiphon.workload.script import Clip, JobScript, PersonScript
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

    def __init__(self, asked: dict[str, Any] | None = None, tier: Any = "latency") -> None:
        self.agenda = Agenda()
        self.facts: list[Fact] = []
        self.ears = Ears(self.agenda)
        down = Link(self.agenda, Network(0.0), 0)
        asked = asked or OPEN
        has_vad = bool(asked.get("audio", {}).get("input", {}).get("turn_detection"))
        self.session = ServerSession(
            "s", asked, has_vad, tier, self.agenda, self.facts.append, down, self.ears
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
        self._keep(self.session.start(0.0))

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
    """Whatever a client and an engine do: the same cuts, cancellations and reports as with frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Hearing", ToldHearing)
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
    simulated, real = Simulated(MANUAL), Real()
    manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    real._send({"type": "session.update", "session": manual})
    has_audio = False
    for step in steps:
        if step == "commit" and not has_audio:
            continue
        has_audio = step == "append" or (has_audio and step == "create")
        match step:
            case "append":
                simulated.append(0.2)
                real._send({"type": "input_audio_buffer.append", "audio": pcm(0.2)})
            case "commit":
                simulated.send("commit")
                real._send({"type": "input_audio_buffer.commit"})
            case "clear":
                simulated.send("clear")
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
    (refused,) = [event.error for event in simulated.heard() if event.error is not None]
    assert [(refused.code, refused.message)] == real.errors
    for side in sides:
        side.truncate(side.responses[0], 300)
    assert said(simulated) == said(real)
    assert sum(isinstance(fact, ItemCut) for fact in real.facts) == 1


def test_one_reply_at_a_time() -> None:
    side = Simulated()
    side.create()
    side.create()
    side.output(ended(side.responses[0], "failed"))
    assert side.heard_kinds() == ["response.created", "error", "response.done"]
    assert side.ears.refused == {"ask"}
    side.create()
    assert len(side.responses) == 2


def test_a_cancel_that_comes_too_late_is_told_as_on_the_wire() -> None:
    """The reply was over when it arrived: the server says so, and nothing else happens."""
    side = Simulated()
    side.create()
    side.output(ended(side.responses[0]))
    before = len(side.facts)
    side.cancel(side.responses[0])
    assert [event.error.code for event in side.heard() if event.error] == ["response_cancel_not_active"]
    assert len(side.facts) == before


def test_a_reply_that_failed_is_logged_in_the_words_that_clients_read() -> None:
    side = Simulated()
    side.create()
    side.output(ResponseEnded("s", side.responses[0], "failed", "stage_lost", "the talker died", Usage()))
    (done,) = [event.response for event in side.heard() if event.type == "response.done"]
    assert done is not None
    assert done.status_details["error"] == {  # type: ignore[index]
        "type": "server_error",
        "code": "stage_lost",
        "message": "the talker died",
    }


def test_a_voice_ends_what_is_being_made_and_its_turn_is_answered_once_that_is_over() -> None:
    side = Simulated()
    side.create()
    response = side.responses[0]
    side.output(tokens(response, 8))
    side.output(audio(response, 4000))
    side.wait(1.0)
    side.say((0.7, 0.0))
    side.wait(0.5)
    side.session.receive({"type": "session.update", "session": {"type": "realtime", "max_output_tokens": 20}})
    side.wait(1.5)
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
    assert side.facts[-1].max_tokens == 20  # type: ignore[union-attr]
    assert sum(kind == "response.output_audio.delta" for kind in side.heard_kinds()) == 1
    reply = side.ears.replies[response]
    assert reply.is_done
    done = next(event.response for event in side.ears.got if event.type == "response.done")
    assert done is not None
    assert (done.status, done.status_details) == (
        "cancelled",
        {"type": "cancelled", "reason": "turn_detected"},
    )


def doubtful() -> Simulated:
    """A reply is playing, and a voice has to last 0.3 s to interrupt it."""
    detection = {"type": "server_vad", "min_speech_ms": 300}
    side = Simulated({"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    side.create()
    side.output(audio(side.responses[0], 4000))
    side.wait(0.5)
    return side


def test_what_is_held_is_not_heard_until_it_is_released() -> None:
    """A murmur is no interruption, and is over once 0.2 s are silent."""
    side = doubtful()
    side.say((0.1, 0.0))
    side.wait(0.2)
    side.output(audio(side.responses[0], 400))
    side.output(ended(side.responses[0]))
    assert side.heard_kinds() == ["response.created", "response.output_audio.delta"]
    side.wait(0.3)
    assert side.heard_kinds()[2:] == ["response.output_audio.delta", "response.done"]
    assert [type(fact) for fact in side.facts[-2:]] == [OutputHeld, OutputReleased]


def test_a_voice_that_lasts_interrupts() -> None:
    side = doubtful()
    side.say((1.0, 0.0))
    side.wait(0.5)
    assert [type(fact) for fact in side.facts[-3:]] == [OutputHeld, SpeechStarted, ResponseCancelled]


def test_a_doubt_that_no_audio_resolves_ends_by_itself() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Hearing", ToldHearing)
        side = Simulated()
    side.create()
    side.output(audio(side.responses[0], 9000))
    side.notice(ReplyPaused())
    side.wait(1.9)
    assert isinstance(side.facts[-1], OutputHeld)
    side.wait(0.2)
    assert isinstance(side.facts[-1], OutputReleased)


def test_a_voice_cuts_what_is_only_still_playing() -> None:
    side = Simulated()
    side.create()
    response = side.responses[0]
    side.output(tokens(response, 8))
    side.output(audio(response, 4000))
    side.output(ended(response))
    side.wait(2.0)
    side.say((0.5, 0.0))
    side.wait(0.1)
    assert [fact.num_tokens for fact in side.facts if isinstance(fact, ItemCut)] == [3]
    assert any(isinstance(fact, SpeechStarted) for fact in side.facts)


def test_a_turn_is_as_long_as_its_voice_and_the_silence_around_it() -> None:
    """0.3 s before it, and the half second that ends it; in frames of 32 ms."""
    side = Simulated()
    side.wait(3.0)
    side.say((0.64, 0.32), (0.64, 0.0))
    side.wait(5.0)
    (item,) = [fact.item for fact in side.facts if isinstance(fact, ItemAdded)]
    assert item.parts[0].num_samples / 16_000 == pytest.approx(0.3 + 1.6 + 0.512, abs=0.04)
    assert side.heard_kinds() == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "response.created",
    ]


def test_what_is_committed_is_as_long_as_what_was_appended_and_content_of_its_own() -> None:
    side = Simulated(MANUAL)
    for _ in range(2):
        side.append(1.5)
        side.send("commit")
    first, second = [fact.item.parts[0] for fact in side.facts if isinstance(fact, ItemAdded)]
    assert first.num_samples == second.num_samples == 24_000
    assert first.key != second.key


def test_pictures_of_a_size_are_one() -> None:
    side = Simulated()
    for width in (640, 640, 320):
        shown = {"type": "input_image", "image_url": picture_url(width, 480)}
        item = {"type": "message", "role": "user", "content": [shown]}
        side.session.receive({"type": "conversation.item.create", "item": item})
    parts = [fact.item.parts[0] for fact in side.facts if isinstance(fact, ItemAdded)]
    assert [(part.width, part.height) for part in parts] == [(640, 480), (640, 480), (320, 480)]
    assert parts[0].key == parts[1].key != parts[2].key


def test_clips_of_a_size_and_a_seed_are_one() -> None:
    side = Simulated()
    for seed in (1, 1, 2):
        shown = {"type": "input_video", "video": list(clip_urls(Clip(160, 120, 3, 0.25, seed))), "fps": 0.25}
        item = {"type": "message", "role": "user", "content": [shown]}
        side.session.receive({"type": "conversation.item.create", "item": item})
    parts = [fact.item.parts[0] for fact in side.facts if isinstance(fact, ItemAdded)]
    assert {(part.width, part.height, part.num_frames, part.fps) for part in parts} == {(160, 120, 3, 0.25)}
    assert parts[0].key == parts[1].key != parts[2].key


def test_requests_of_a_job_have_its_tier() -> None:
    side = Simulated(settings(JobScript("s", 0.0, ()), has_vad=False), "best_effort")
    side.create()
    (asked,) = [fact for fact in side.facts if isinstance(fact, ResponseRequested)]
    assert (asked.tier, asked.speech) == ("best_effort", False)


def test_a_second_voice_over_a_reply_that_is_being_cancelled_changes_nothing() -> None:
    side = Simulated()
    side.create()
    side.output(audio(side.responses[0], 9000))
    for _ in range(2):
        side.say((0.3, 0.0))
        side.wait(2.0)
    assert sum(isinstance(fact, SpeechStarted) for fact in side.facts) == 2
    assert sum(isinstance(fact, ResponseCancelled) for fact in side.facts) == 1


def test_nobody_is_told_of_what_is_gone() -> None:
    """Also of a turn that a microphone was in the midst of."""
    side = Simulated()
    side.cancel("never")
    side.ack("never", 5)
    side.create()
    response = side.responses[0]
    side.say((5.0, 0.0))
    side.wait(1.0)
    side.session.close()
    side.session.close()
    side.output(tokens(response, 1))
    side.wait(9.0)
    assert isinstance(side.facts[-1], SessionClosed)
    assert sum(isinstance(fact, SessionClosed) for fact in side.facts) == 1
    assert side.heard_kinds()[:2] == ["error", "response.created"]
    assert "response.output_audio_transcript.delta" not in side.heard_kinds()
