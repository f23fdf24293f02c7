"""The server's side of a simulated conversation: `wire.session` without frames, on virtual time."""

from __future__ import annotations

import pytest

from antiphon.core.facts import (
    ItemAdded,
    ResponseRequested,
    SessionClosed,
)
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.people.uplink import settings
from antiphon.sim.sessions import clip_urls, picture_url
from antiphon.workload.script import Clip, JobScript
from sim.sides import MANUAL, Simulated, ended, tokens


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


def lengths_s(side: Simulated) -> list[list[float]]:
    """Of each item's recordings."""
    items = [fact.item for fact in side.facts if isinstance(fact, ItemAdded)]
    return [[part.num_samples / 16_000 for part in item.parts] for item in items]


def test_what_is_longer_than_a_model_hears_is_cut_in_its_pauses_as_the_server_does() -> None:
    side = Simulated(max_recording_s=10.0)
    side.wait(3.0)
    side.say((7.7, 0.32), (6.0, 0.0))
    side.wait(20.0)
    side.say((4.0, 0.32), (2.0, 0.0))
    side.wait(20.0)
    (first, rest), whole = lengths_s(side)
    assert first == pytest.approx(0.3 + 7.7 + 0.16, abs=0.05), "in the middle of the pause"
    assert first + rest == pytest.approx(0.3 + 14.02 + 0.512, abs=0.04)
    assert len(whole) == 1


def test_pieces_without_a_pause_are_content_of_their_own() -> None:
    side = Simulated(MANUAL, max_recording_s=10.0)
    for _ in range(2):
        side.append(25.0)
        side.send("commit")
    found = lengths_s(side)
    assert [sum(pieces) for pieces in found] == [25.0, 25.0]
    for *whole, last in found:
        assert all(10.0 * 2 / 3 <= piece <= 10.0 for piece in whole)
        assert last <= 10.0
    parts = [part for fact in side.facts if isinstance(fact, ItemAdded) for part in fact.item.parts]
    assert len({part.key for part in parts}) == len(parts) >= 6


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
