"""Interruptions, and what of a reply was heard: PROTOCOL §6 and §7."""

from __future__ import annotations

import pytest

from antiphon.core.facts import (
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
)
from wire.ears import PlainEar
from wire.harness import Driver, kinds, message, pcm
from wire.speaking import CANCELLED, QUIET, TURN, VOICE, item_of, replying, shown


@pytest.fixture
def driver() -> Driver:
    return Driver(detectors=PlainEar)


def test_speaking_over_a_reply_cancels_it_at_what_was_heard(driver: Driver) -> None:
    response = replying(driver)
    driver.now = 2.0
    assert kinds(driver.hear((VOICE, 0.1))) == ["input_audio_buffer.speech_started"]
    cancelled = driver.fact(ResponseCancelled)
    assert (cancelled.response, cancelled.reason) == (response, "turn_detected")
    assert cancelled.keep_tokens is not None
    assert 0 < cancelled.keep_tokens < 19
    assert driver.tokens(response, "five") == driver.audio(response) == []
    events = driver.end(response, "cancelled", "turn_detected")
    assert kinds(events) == CANCELLED
    done = events[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done["output"][0]["status"] == "incomplete"
    assert shown(driver, response) == "one two"
    assert driver.end(response) == []
    assert kinds(driver.hear((VOICE, 0.3), (QUIET, 0.6))) == TURN[1:]


def test_a_reply_that_ended_before_the_engine_heard_of_the_cancel_is_cut_all_the_same(driver: Driver) -> None:
    response = replying(driver)
    driver.now = 2.0
    driver.hear((VOICE, 0.1))
    kept = driver.fact(ResponseCancelled).keep_tokens
    events = driver.end(response, "completed")
    assert events[-1]["response"]["status"] == "cancelled"
    assert driver.fact(ItemCut) == ItemCut(driver.session.id, item_of(driver, response)["id"], kept)


def test_a_reply_that_is_only_still_playing_is_cut(driver: Driver) -> None:
    response = replying(driver)
    driver.end(response)
    driver.now = 2.5
    assert kinds(driver.hear((VOICE, 0.1))) == ["input_audio_buffer.speech_started"]
    assert not [fact for fact in driver.facts if isinstance(fact, ResponseCancelled)]
    assert shown(driver, response) == "one two"
    assert driver.fact(ItemCut).num_tokens == 8  # the detokeniser lags one token behind
    item = item_of(driver, response)
    assert item["status"] == "completed"
    # the client knows better, in either direction
    for end_ms, text in ((3999, "one two three"), (1000, "one"), (4000, "one two three four.")):
        (event,) = driver.send("conversation.item.truncate", item_id=item["id"], audio_end_ms=end_ms)
        assert (event["type"], event["audio_end_ms"]) == ("conversation.item.truncated", end_ms)
        assert shown(driver, response) == text
    assert driver.fact(ItemCut).num_tokens == 19


def test_after_a_gap_the_tail_is_still_playing(driver: Driver) -> None:
    """1 s of audio at 0 and 1 s at 3: at 3.5 a voice is over the third half second of two."""
    driver.detect(idle_timeout_ms=5000)
    response = replying(driver, audio_s=1.0)
    driver.now = 3.0
    driver.audio(response, 1.0)
    driver.end(response)
    assert driver.session.wake_at == pytest.approx(4.0 + 5.0)
    driver.now = 3.5
    assert kinds(driver.hear((VOICE, 0.1))) == ["input_audio_buffer.speech_started"]
    assert driver.fact(ItemCut).num_tokens == 14
    assert shown(driver, response) == "one two three"


def test_a_report_that_was_overtaken_moves_nothing(driver: Driver) -> None:
    response = replying(driver)
    driver.now = 2.0
    driver.send("playback.ack", response_id=response, played_ms=1000)
    driver.now = 3.0
    reported = len(driver.facts)
    driver.send("playback.ack", response_id=response, played_ms=500)
    assert len(driver.facts) == reported
    driver.send("playback.ack", response_id=response, played_ms=1000)
    assert driver.fact(PlaybackReported).played_s == 1.0, "it stands still, say with its device gone"
    assert len(driver.facts) == reported + 1


def test_a_reply_that_was_heard_to_its_end_stays_whole(driver: Driver) -> None:
    response = replying(driver)
    driver.end(response)
    driver.now = 9.0
    driver.hear((VOICE, 0.1))
    assert not [fact for fact in driver.facts if isinstance(fact, ItemCut)]
    assert shown(driver, response) == "one two three four."


def test_without_interrupt_response_the_reply_goes_on_and_the_next_waits(driver: Driver) -> None:
    driver.detect(interrupt_response=False)
    response = replying(driver)
    assert kinds(driver.hear((VOICE, 0.5), (QUIET, 0.6))) == TURN[:-1]
    assert kinds(driver.end(response))[-2:] == ["response.done", "response.created"]


def test_the_client_cancels_what_it_hears(driver: Driver) -> None:
    response = replying(driver)
    driver.now = 2.0
    driver.send("response.cancel")
    assert driver.fact(ResponseCancelled).keep_tokens == 8
    assert driver.fact(ResponseCancelled).reason == "client_cancelled"
    driver.end(response, "cancelled", "client_cancelled")
    assert shown(driver, response) == "one two"


def test_text_that_is_shown_is_read(driver: Driver) -> None:
    driver.say()
    response = driver.ask(output_modalities=["text"])
    driver.tokens(response, "abc")
    driver.send("response.cancel")
    assert driver.fact(ResponseCancelled).keep_tokens is None
    assert kinds(driver.tokens(response, "d")) == ["response.output_text.delta"]
    events = driver.end(response, "cancelled", "client_cancelled")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "abcd"
    item_id = events[-1]["response"]["output"][0]["id"]
    refused = driver.error("conversation.item.truncate", item_id=item_id, audio_end_ms=0)
    assert refused["param"] == "item_id"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"item_id": "nobody", "audio_end_ms": 0}, "item_truncate_invalid_item_id", "does not exist"),
        ({"audio_end_ms": 4200}, "invalid_value", "Audio content of 4000ms is already shorter than 4200ms"),
        ({"audio_end_ms": -1}, "invalid_value", "at least 0"),
        ({"audio_end_ms": 0, "content_index": 1}, "invalid_value", "content_index is 0"),
    ],
)
def test_truncations_that_are_refused(driver: Driver, fields: dict, code: str, words: str) -> None:
    response = replying(driver)
    driver.end(response)
    asked = {"item_id": item_of(driver, response)["id"], **fields}
    refused = driver.error("conversation.item.truncate", **asked)
    assert refused["code"] == code
    assert words in refused["message"]
    assert not [fact for fact in driver.facts if isinstance(fact, ItemCut)]


def test_a_small_overshoot_is_the_end(driver: Driver) -> None:
    response = replying(driver)
    driver.end(response)
    item_id = item_of(driver, response)["id"]
    (event,) = driver.send("conversation.item.truncate", item_id=item_id, audio_end_ms=4085)
    assert event["audio_end_ms"] == 4000
    assert shown(driver, response) == "one two three four."


def test_the_client_s_word_stands_over_the_estimate(driver: Driver) -> None:
    """Truncated while it is still being made, then cancelled."""
    response = replying(driver)
    driver.now = 3.0
    item_id = driver.request.item_id
    driver.send("conversation.item.truncate", item_id=item_id, audio_end_ms=900)
    kept = driver.fact(ItemCut).num_tokens
    driver.send("response.cancel")
    assert driver.fact(ResponseCancelled).keep_tokens == kept
    driver.end(response, "cancelled", "client_cancelled")
    assert shown(driver, response) == "one"


def test_progress_that_the_client_reports(driver: Driver) -> None:
    response = replying(driver)
    driver.now = 3.0
    assert driver.send("playback.ack", response_id=response, played_ms=1000, committed_ms=1, x=[]) == []
    assert driver.fact(PlaybackReported) == PlaybackReported(driver.session.id, response, 1.0)
    driver.send("playback.ack", item_id=driver.request.item_id, played_ms=90_000.5)
    assert driver.fact(PlaybackReported).played_s == 3.0, "nobody hears more in three seconds"
    driver.now = 4.5
    driver.send("playback.ack", item_id=driver.request.item_id, played_ms=90_000.5)
    assert driver.fact(PlaybackReported).played_s == 4.0
    assert driver.send("playback.ack", response_id="gone", item_id=7, played_ms=1) == []
    assert driver.error("playback.ack", response_id=response, played_ms="1")["param"] == "played_ms"
    assert driver.error("playback.ack", response_id=response, played_ms=True)["param"] == "played_ms"
    assert driver.error("playback.ack", played_ms=1)["param"] == "item_id"


def told(driver: Driver, response: str, played_ms: float) -> float:
    """What the engine is told of a report."""
    driver.send("playback.ack", response_id=response, played_ms=played_ms)
    return driver.fact(PlaybackReported).played_s


def test_a_client_that_claims_to_run_dry_goes_before_nobody(driver: Driver) -> None:
    """Audio comes faster than it is heard; the client says each time that all of it was."""
    response = replying(driver, audio_s=1.0)
    for _ in range(8):
        driver.now += 0.1
        driver.audio(response, 1.0)
        assert told(driver, response, 1e6) == pytest.approx(driver.now)


def test_a_gap_is_time_in_which_nothing_was_played(driver: Driver) -> None:
    response = replying(driver, audio_s=1.0)
    driver.now = 3.0
    driver.audio(response, 1.0)
    driver.now = 3.5
    assert told(driver, response, 2000) == 1.5


def test_a_pause_does_not_hold_a_reply_for_ever(driver: Driver) -> None:
    """A client whose playback stands still is believed for a while."""
    response = replying(driver, audio_s=300.0)
    for now, played_s in ((10.0, 1.0), (61.0, 1.0), (63.0, 3.0), (70.0, 10.0), (400.0, 240.0)):
        driver.now = now
        assert told(driver, response, 1000) == played_s


def test_an_ack_decides_what_was_heard(driver: Driver) -> None:
    response = replying(driver)
    driver.end(response)
    driver.now = 3.9
    driver.send("playback.ack", response_id=response, played_ms=1000)
    driver.hear((VOICE, 0.1))
    assert shown(driver, response) == "one"


def doubts(driver: Driver) -> list[OutputHeld | OutputReleased | ResponseCancelled]:
    """What the engine is told of held outputs, and what ends them."""
    kinds_of = (OutputHeld, OutputReleased, ResponseCancelled)
    return [fact for fact in driver.facts if isinstance(fact, kinds_of)]


def test_a_backchannel_holds_the_reply_for_a_moment(driver: Driver) -> None:
    driver.detect(min_speech_ms=400)
    response = replying(driver, audio_s=1.0)
    driver.now = 0.5
    assert driver.hear((VOICE, 0.2)) == []
    assert driver.audio(response) == driver.tokens(response, "!") == driver.end(response) == []
    events = driver.hear((QUIET, 0.3))
    assert kinds(events)[0] == "response.output_audio.delta"
    assert kinds(events)[-1] == "response.done"
    assert events[-1]["response"]["status"] == "completed"
    session = driver.session.id
    assert doubts(driver) == [OutputHeld(session, response), OutputReleased(session, response)]


def test_a_voice_over_what_is_only_still_playing_holds_nothing(driver: Driver) -> None:
    driver.detect(min_speech_ms=400)
    driver.end(replying(driver))
    driver.now = 1.0
    driver.hear((VOICE, 0.2), (QUIET, 0.3))
    assert doubts(driver) == []


def test_what_was_held_back_is_dropped_by_a_true_interruption(driver: Driver) -> None:
    driver.detect(min_speech_ms=400)
    response = replying(driver)
    driver.now = 1.0
    driver.hear((VOICE, 0.2))
    assert driver.audio(response) == driver.end(response) == []
    events = driver.hear((VOICE, 0.3))
    assert kinds(events) == ["input_audio_buffer.speech_started", *CANCELLED]
    assert events[-1]["response"]["status"] == "cancelled"
    assert driver.fact(ItemCut).num_tokens == driver.fact(ResponseCancelled).keep_tokens
    assert [type(fact) for fact in doubts(driver)] == [OutputHeld, ResponseCancelled]


def test_a_doubt_without_audio_resolves_in_time(driver: Driver) -> None:
    driver.detect(min_speech_ms=400)
    response = replying(driver)
    driver.hear((VOICE, 0.1))
    driver.audio(response)
    assert driver.session.wake_at == 2.0
    assert driver.tick(1.0) == []
    assert kinds(driver.tick(1.0)) == ["response.output_audio.delta"]
    assert driver.session.wake_at is None
    assert [type(fact) for fact in doubts(driver)] == [OutputHeld, OutputReleased]


def test_who_no_longer_may_interrupt_frees_the_reply(driver: Driver) -> None:
    driver.detect(min_speech_ms=400)
    response = replying(driver)
    driver.hear((VOICE, 0.1))
    driver.audio(response)
    free = {"type": "server_vad", "interrupt_response": False}
    session = {"type": "realtime", "audio": {"input": {"turn_detection": free}}}
    assert kinds(driver.send("session.update", session=session)) == [
        "response.output_audio.delta",
        "session.updated",
    ]
    assert [type(fact) for fact in doubts(driver)] == [OutputHeld, OutputReleased]


def test_held_replies_end_when_the_server_stops(driver: Driver) -> None:
    driver.detect(min_speech_ms=400)
    replying(driver)
    driver.hear((VOICE, 0.1))
    events = driver._keep(driver.session.abandon("server_shutting_down", "Bye.", 1.0))
    assert kinds(events)[-1] == "response.done"
    assert driver.session.wake_at is None


def test_nobody_speaks_after_a_reply(driver: Driver) -> None:
    driver.detect(idle_timeout_ms=5000)
    response = replying(driver, audio_s=4.0)
    assert driver.session.wake_at is None
    driver.now = 1.0
    driver.end(response)
    assert driver.session.wake_at == pytest.approx(4.0 + 5.0)  # played to its end, and silence since
    driver.now = 2.0
    driver.send("playback.ack", response_id=response, played_ms=1000)
    assert driver.session.wake_at == pytest.approx(5.0 + 5.0)
    driver.hear((QUIET, 6.0))
    assert driver.tick(7.9) == []
    events = driver.tick(0.1)
    assert kinds(events) == ["input_audio_buffer.timeout_triggered", *TURN[2:]]
    assert events[0]["audio_end_ms"] - events[0]["audio_start_ms"] == 5000
    assert events[0]["item_id"] == events[1]["item_id"]
    assert driver.session.wake_at is None


def test_speech_stops_the_idle_clock(driver: Driver) -> None:
    driver.detect(idle_timeout_ms=5000)
    driver.end(replying(driver))
    assert driver.session.wake_at is not None
    driver.hear((VOICE, 0.2))
    assert driver.session.wake_at is None
    assert driver.tick(60.0) == []


def test_deleted_replies_are_forgotten(driver: Driver) -> None:
    response = replying(driver)
    driver.end(response)
    item_id = item_of(driver, response)["id"]
    driver.send("conversation.item.delete", item_id=item_id)
    refused = driver.error("conversation.item.truncate", item_id=item_id, audio_end_ms=0)
    assert refused["code"] == "item_truncate_invalid_item_id"
    assert driver.send("playback.ack", item_id=item_id, played_ms=5) == []


def test_out_of_band_replies_are_not_interrupted(driver: Driver) -> None:
    side = driver.ask(conversation="none", input=[message("x")])
    driver.audio(side, 2.0)
    driver.hear((VOICE, 0.2))
    assert not [fact for fact in driver.facts if isinstance(fact, ResponseCancelled)]
    driver.end(side)
    assert driver.send("playback.ack", response_id=side, played_ms=5) == []


def test_without_a_detector_it_commits_by_hand() -> None:
    driver = Driver()
    driver.send("input_audio_buffer.append", audio=pcm(0.2))
    assert driver.session.wake_at is None
    assert driver.tick(9.0) == []
    driver._keep(driver.session.close(9.0))
    assert driver.session.tick(10.0) == []
