"""A person speaks over a reply on virtual time: what is held, cut and answered."""

from __future__ import annotations

import pytest

from antiphon.core.facts import (
    ItemAdded,
    ItemCut,
    OutputHeld,
    OutputReleased,
    ResponseCancelled,
    ResponseRequested,
    SpeechEnded,
    SpeechStarted,
)
from antiphon.core.turns import ReplyPaused
from antiphon.sim import sessions as room
from sim.sides import Simulated, ToldHearing, audio, ended, tokens


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


def test_a_second_voice_over_a_reply_that_is_being_cancelled_changes_nothing() -> None:
    side = Simulated()
    side.create()
    side.output(audio(side.responses[0], 9000))
    for _ in range(2):
        side.say((0.3, 0.0))
        side.wait(2.0)
    assert sum(isinstance(fact, SpeechStarted) for fact in side.facts) == 2
    assert sum(isinstance(fact, ResponseCancelled) for fact in side.facts) == 1
