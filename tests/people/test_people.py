"""What people do, without a server or a clock: each test plays the driver."""

from __future__ import annotations

import base64

import pytest

from antiphon.core.errors import ConfigError
from antiphon.metrics.log import AckSent, Interrupted, TextDelta, TurnEnded
from antiphon.people.acks import acknowledge
from antiphon.people.acts import Doing, Say, Stretch, Wait
from antiphon.people.downlink import GaveUp
from antiphon.people.job import Job
from antiphon.people.person import REACTION_S, Person
from antiphon.people.uplink import introduce, settings
from antiphon.workload.script import (
    Acks,
    Interjection,
    JobCall,
    JobScript,
    PersonScript,
    Picture,
    TurnScript,
    Voiced,
)
from people.played import Played

SECOND = base64.b64encode(bytes(48_000)).decode()
VAD = {"audio": {"input": {"turn_detection": {"interrupt_response": True}}}}


def ann(*turns: TurnScript) -> PersonScript:
    return PersonScript("ann", 0.0, 3, turns, Acks(0.2), instructions="Be kind.")


def test_a_committed_turn_is_heard_to_its_end() -> None:
    played = Played()
    turn = TurnScript(
        1.0, (Voiced(0.5, 0.2), Voiced(0.3, 9.0)), pictures=(Picture(8, 6),), max_output_tokens=7
    )
    doing = Person(ann(turn), played.seat).play()
    assert played.step(doing) == Wait(1.0)
    played.log.now = 1.0
    wait = played.step(doing)
    item, said, commit, asked = played.acts
    assert item.event["item"]["content"] == [{"type": "input_image", "image_url": "picture:8x6"}]
    assert said == Say((Stretch(0.5, 0.2, ("0", "0")), Stretch(0.3, 0.0, ("0", "1"))))
    assert commit.event == {"type": "input_audio_buffer.commit"}
    assert asked.event["response"] == {"output_modalities": ["audio"], "max_output_tokens": 7}
    assert wait == Wait(11.0, listens=True)
    assert next(e for e in played.log.events if isinstance(e, TurnEnded)).audio_s == pytest.approx(1.0)
    played.get("response.created", "r")
    played.get("response.output_audio.delta", "r", item_id="i", delta=SECOND)
    played.get("response.done", "r", answer={"status": "completed"})
    assert played.step(doing) == Wait(2.0, listens=True)
    assert played.num_received == 1
    played.log.now = 2.0
    assert played.step(doing) is None


def test_text_is_read_at_the_readers_pace_and_a_transcript_is_not() -> None:
    """Also what still comes of a spoken reply once the person has typed: a delta says what it is."""
    played = Played()
    played.downlink.begin(0, "speech")
    played.get("response.output_audio_transcript.delta", "spoken", delta="x" * 40)
    played.downlink.begin(1, "text")
    played.get("response.output_audio_transcript.delta", "spoken", delta="x" * 40)
    played.get("response.output_text.delta", "written", delta="x" * 40)
    assert played.downlink.replies["spoken"].playback.audio_s == 0.0
    assert played.downlink.replies["written"].playback.audio_s == pytest.approx(40 / 4 / 5)
    assert sum(event.chars for event in played.log.events if isinstance(event, TextDelta)) == 120


def barged(played: Played, *turns: TurnScript) -> Doing:
    """A reply of two seconds is half heard when the person barges in."""
    doing = Person(ann(*turns), played.seat).play()
    played.step(doing)
    played.step(doing)
    if played.seat.has_vad:
        played.get("input_audio_buffer.speech_started")
        played.get("input_audio_buffer.speech_stopped")
        played.step(doing)
    played.get("response.created", "r")
    played.get("response.output_audio.delta", "r", item_id="i", delta=SECOND)
    played.step(doing)
    played.get("response.output_audio.delta", "r", item_id="i", delta=SECOND)
    played.acts.clear()
    played.log.now = 1.0
    played.step(doing)
    return doing


CUT = TurnScript(0.0, (Voiced(0.5),), interjections=(Interjection("barge_in", 1.0, 0.4),))
NEXT = TurnScript(9.0, (Voiced(0.5),))


def test_who_commits_by_hand_silences_the_reply_and_speaks_on() -> None:
    played = Played()
    barged(played, CUT, NEXT)
    kinds = [act.event["type"] if not isinstance(act, Say) else act.length_s for act in played.acts]
    assert kinds == [
        "response.cancel",
        "conversation.item.truncate",
        pytest.approx(0.9),
        "input_audio_buffer.commit",
    ]
    assert played.sent[1]["audio_end_ms"] == 1000
    assert next(e for e in played.log.events if isinstance(e, Interrupted)).heard_s == 1.0


@pytest.mark.parametrize("interrupts", [True, False])
def test_with_an_open_microphone_playback_stops_when_it_is_noticed(interrupts: bool) -> None:
    """By the server, or by the person's own client where the server does not see to it."""
    played = Played(has_vad=True)
    if interrupts:
        played.get("session.updated", session=VAD)
    doing = barged(played, CUT)
    assert [type(act) for act in played.acts] == [Say]
    (helper,) = played.helpers
    assert not helper.is_over
    played.log.now = 1.0 + REACTION_S
    if interrupts:
        played.get("input_audio_buffer.speech_started")
    helper.go_on()
    assert helper.is_over
    played.step(doing)
    played.get("response.done", "r", answer={"status": "cancelled"})
    assert played.step(doing) is None
    kinds = [event["type"] for event in played.sent]
    assert kinds == ([] if interrupts else ["response.cancel"]) + ["conversation.item.truncate"]


def test_reports_of_playback_say_what_was_played_to_the_last_sample() -> None:
    """A whole number of milliseconds could be more than that."""
    played = Played()
    doing = acknowledge(ann(), played.seat)
    assert played.step(doing) == Wait(0.2)
    played.get("response.output_audio.delta", "r", item_id="i", content_index=0, delta=SECOND)
    played.log.now = 0.2006
    played.step(doing)
    (report,) = played.sent
    assert report == {
        "type": "playback.ack",
        "response_id": "r",
        "item_id": "i",
        "content_index": 0,
        "played_ms": pytest.approx(200.6),
    }
    (kept,) = [event for event in played.log.events if isinstance(event, AckSent)]
    assert report["played_ms"] / 1000 == pytest.approx(kept.played_s, abs=1e-12)


def test_a_reply_may_begin_while_others_are_reported() -> None:
    played = Played()
    doing = acknowledge(ann(), played.seat)
    next(doing)
    played.get("response.output_audio.delta", "r", delta=SECOND)
    played.log.now = 0.2
    assert next(doing).event["response_id"] == "r"  # type: ignore[union-attr]
    played.get("response.created", "later")
    assert isinstance(next(doing), Wait)


def test_patience_ends() -> None:
    played = Played()
    doing = Person(ann(TurnScript(0.0, (Voiced(0.5),))), played.seat).play()
    played.step(doing)
    assert played.step(doing) == Wait(10.0, listens=True)
    played.log.now = 10.0
    with pytest.raises(GaveUp, match="no sign of the reply for 10 s"):
        played.step(doing)


def test_a_turn_that_is_refused_is_over() -> None:
    played = Played()
    doing = Person(ann(TurnScript(0.0, text="Hello.", typing_s=2.0, wants="text")), played.seat).play()
    played.step(doing)
    assert played.step(doing) == Wait(2.0)
    assert played.step(doing) is not None
    played.refuse("ask-0")
    assert played.step(doing) is None


def test_what_was_refused_is_known_by_its_name() -> None:
    played = Played()
    assert played.downlink.latest is None
    played.refuse("ask-3")
    played.get("response.done", "r", answer={"status": "failed"})
    assert played.downlink.refused == {"ask-3"}
    assert played.downlink.open_replies == []
    assert played.downlink.latest is played.downlink.replies["r"]


def test_only_what_may_matter_rings() -> None:
    played, rings = Played(), []
    played.downlink.listeners.append(lambda: rings.append(1))
    played.get("response.created", "r")
    for _ in range(3):
        played.get("response.output_audio.delta", "r", delta=SECOND)
        played.get("response.output_audio_transcript.delta", "r", delta="abc")
    played.get("response.done", "r")
    assert len(rings) == 3


def test_calls_of_a_job_that_are_ready_together_queue() -> None:
    played = Played(reading_tokens_per_s=None)
    calls = (JobCall("a", 4), JobCall("b", 4, wait_s=1.0), JobCall("c", 4, after=(0, 1)))
    doing = Job(JobScript("ann", 0.0, calls), played.seat).play()
    assert played.step(doing) == Wait(listens=True)
    for helper in played.helpers:
        helper.go_on()
    for number in range(3):
        assert played.step(doing) == Wait(10.0, listens=True)
        assert played.sent[-1]["event_id"] == f"ask-{number}"
        played.get("response.done", f"r{number}")
        if number == 1:
            assert played.step(doing) == Wait(listens=True)
            played.helpers[2].go_on()
    assert played.step(doing) is None


def test_a_job_cannot_wait_for_later_calls() -> None:
    calls = (JobCall("a", 4, after=(1,)), JobCall("b", 4))
    with pytest.raises(ConfigError, match="call 0 may only wait for calls before it"):
        next(Job(JobScript("ann", 0.0, calls), Played().seat).play())


def test_the_session_says_what_is_asked_for() -> None:
    turn = TurnScript(0.0, (Voiced(0.5),), max_output_tokens=9)
    open_, manual = (settings(ann(turn), has_vad=has_vad) for has_vad in (True, False))
    assert open_["audio"]["input"]["turn_detection"]["interrupt_response"]
    assert manual["audio"]["input"]["turn_detection"] is None
    assert (open_["max_output_tokens"], open_["instructions"]) == (9, "Be kind.")
    job = settings(JobScript("sum", 0.0, ()), has_vad=True)
    assert job == {"type": "realtime", "output_modalities": ["text"]}


def test_who_is_refused_at_the_door_hears_why() -> None:
    played = Played()
    doing = introduce(settings(ann(), has_vad=False), played.downlink, played.log)
    assert played.step(doing) == Wait(10.0, listens=True)
    played.get("session.created", session={})
    played.step(doing)
    played.refuse(played.sent[0]["event_id"])
    with pytest.raises(ConfigError, match="refused the session's settings: not now"):
        played.step(doing)
    silent = Played()
    silent.log.now = 0.0
    doing = introduce({}, silent.downlink, silent.log)
    silent.step(doing)
    silent.log.now = 10.0
    with pytest.raises(GaveUp, match=r"no session\.created"):
        silent.step(doing)
