"""Turns by voice: PROTOCOL §5."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.core.facts import (
    ItemAdded,
    ResponseCancelled,
    SpeechEnded,
    SpeechStarted,
    TurnDropped,
    TurnForeseen,
)
from antiphon.wire.limits import Limits
from antiphon.wire.session import NOTHING_SAID
from wire.ears import PlainEar
from wire.harness import INFO, Driver, kinds
from wire.speaking import QUIET, TURN, VOICE


@pytest.fixture
def driver() -> Driver:
    return Driver(detectors=PlainEar)


def test_a_session_hears_turns_by_default(driver: Driver) -> None:
    heard = driver.started[0]["session"]["audio"]["input"]["turn_detection"]
    assert (heard["type"], heard["create_response"], heard["interrupt_response"]) == (
        "server_vad",
        True,
        True,
    )
    extensions = driver.started[0]["session"]["x_extensions"]
    assert extensions == ["playback.ack", "antiphon.advise", "input_video"]


def test_speaking_is_answered(driver: Driver) -> None:
    events = driver.hear((QUIET, 2.0), (VOICE, 1.0), (QUIET, 0.6))
    assert kinds(events) == TURN
    assert len({event.get("item_id") or event["item"]["id"] for event in events[:5]}) == 1
    start, stop = events[0]["audio_start_ms"], events[1]["audio_end_ms"]
    assert 2000 - 300 - 40 <= start <= 2000 - 300
    assert 3500 <= stop <= 3560
    added = driver.fact(ItemAdded).item.parts[0]
    assert added.num_samples == (stop - start) * 24
    spoken = [type(fact) for fact in driver.facts if isinstance(fact, SpeechStarted | SpeechEnded)]
    assert spoken == [SpeechStarted, SpeechEnded]


def test_a_model_that_reads_ahead_is_told_of_every_pause(driver: Driver) -> None:
    """The turn's recording is what was foreseen in its last pause: its silence is cut off there."""
    writer = Driver(detectors=PlainEar, info=msgspec.structs.replace(INFO, reads_ahead=True))
    first_part = (QUIET, 1.0), (VOICE, 0.5), (QUIET, 0.3)
    pieces = *first_part, (VOICE, 0.5), (QUIET, 0.1), (VOICE, 0.2), (QUIET, 0.3), (QUIET, 0.3)
    events = [[event for piece in pieces for event in one.hear(piece)] for one in (writer, driver)]
    assert kinds(events[0]) == kinds(events[1]) == TURN
    assert events[0][1]["audio_end_ms"] == events[1][1]["audio_end_ms"]
    preface, first, last = writer.facts_of(TurnForeseen)
    assert preface.item == NOTHING_SAID
    assert preface.reply == last.reply
    item = writer.fact(ItemAdded).item
    assert (last.item.id, last.item.parts[0].key) == (item.id, item.parts[0].key)
    assert first.item.parts[0].num_samples < last.item.parts[0].num_samples
    whole = driver.fact(ItemAdded).item.parts[0].num_samples
    assert 0.29 * 24000 < whole - item.parts[0].num_samples < 0.36 * 24000
    assert msgspec.structs.replace(writer.request, response="", item_id="") == last.reply
    assert not driver.facts_of(TurnForeseen)


def test_only_the_last_pause_of_an_append_is_told() -> None:
    driver = Driver(detectors=PlainEar, info=msgspec.structs.replace(INFO, reads_ahead=True))
    driver.hear(*[(VOICE, 0.2), (QUIET, 0.3)] * 5)
    preface, pause = driver.facts_of(TurnForeseen)
    assert preface.item == NOTHING_SAID
    assert pause.item.parts[0].num_samples > 2 * 24_000


def test_a_turn_that_is_cleared_is_told_as_one_that_does_not_come() -> None:
    for reads_ahead in (False, True):
        driver = Driver(detectors=PlainEar, info=msgspec.structs.replace(INFO, reads_ahead=reads_ahead))
        driver.send("input_audio_buffer.clear")
        (started,) = driver.hear((VOICE, 0.5), (QUIET, 0.3))
        driver.send("input_audio_buffer.clear")
        dropped = [TurnDropped(driver.session.id, started["item_id"])]
        assert driver.facts_of(TurnDropped) == dropped * reads_ahead
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    driver.send("input_audio_buffer.commit")
    assert len(driver.facts_of(TurnDropped)) == 1, "what is committed is a turn"


def test_what_a_first_turn_follows_is_told_when_a_button_is_pressed() -> None:
    driver = Driver(info=msgspec.structs.replace(INFO, reads_ahead=True))
    driver.send(
        "session.update",
        session={"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]},
    )
    for _ in range(2):
        driver.hear((VOICE, 0.3))
    (preface,) = driver.facts_of(TurnForeseen)
    assert (preface.item, preface.reply.instructions) == (NOTHING_SAID, "Be brief.")
    driver.send("input_audio_buffer.clear")
    driver.hear((VOICE, 0.3))
    driver.send("input_audio_buffer.commit")
    driver.hear((VOICE, 0.3))
    assert len(driver.facts_of(TurnForeseen)) == 1, "the next turn follows one that was read"


def test_turns_come_alike_in_any_pieces(driver: Driver) -> None:
    other = Driver(detectors=PlainEar)
    whole = driver.hear((QUIET, 1.0), (VOICE, 0.5), (QUIET, 1.0), (VOICE, 0.5), (QUIET, 1.0))
    events = []
    for percent in (QUIET, VOICE, QUIET, VOICE, QUIET):
        for _ in range(10 if percent == QUIET else 5):
            events += other.hear((percent, 0.1))
    for kind, name in (("started", "audio_start_ms"), ("stopped", "audio_end_ms")):
        times = [
            [event[name] for event in some if event["type"] == f"input_audio_buffer.speech_{kind}"]
            for some in (whole, events)
        ]
        assert times[0] == times[1]
        assert len(times[0]) == 2
    # the second turn came while the first one's reply had not begun: that reply is cancelled
    assert driver.fact(ResponseCancelled).reason == "turn_detected"


def test_silence_never_fills_the_buffer() -> None:
    driver = Driver(Limits(max_audio_s=2.0), PlainEar)
    for _ in range(20):
        assert driver.hear((QUIET, 1.0)) == []
    assert driver.session.buffered_audio_s < 0.8


def test_a_turn_without_end_is_ended_at_the_limit() -> None:
    driver = Driver(Limits(max_audio_s=2.0), PlainEar)
    events = driver.hear((VOICE, 5.0))
    assert kinds(events).count("input_audio_buffer.committed") >= 2
    parts = [fact.item.parts[0] for fact in driver.facts if isinstance(fact, ItemAdded)]
    assert all(part.num_samples <= 2.0 * 24_000 for part in parts)


def test_without_create_response_the_client_asks(driver: Driver) -> None:
    driver.detect(create_response=False)
    assert kinds(driver.hear((VOICE, 0.5), (QUIET, 0.6))) == TURN[:-1]


def test_committing_by_hand_in_the_middle_of_a_turn(driver: Driver) -> None:
    (started,) = driver.hear((VOICE, 0.5))
    events = driver.send("input_audio_buffer.commit")
    assert kinds(events) == TURN[1:5]
    assert {event.get("item_id") or event["item"]["id"] for event in events} == {started["item_id"]}
    (again,) = driver.hear((VOICE, 0.1))
    assert again["item_id"] != started["item_id"]
    assert again["audio_start_ms"] >= events[0]["audio_end_ms"] - 32


def test_clearing_in_the_middle_of_a_turn(driver: Driver) -> None:
    driver.hear((VOICE, 0.5))
    events = driver.send("input_audio_buffer.clear")
    assert kinds(events) == ["input_audio_buffer.speech_stopped", "input_audio_buffer.cleared"]
    assert driver.session.buffered_audio_s == 0
    assert driver.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_manual_turns_within_a_session_that_listens(driver: Driver) -> None:
    (started,) = driver.hear((VOICE, 0.5))
    manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    events = driver.send("session.update", session=manual)
    assert kinds(events) == ["input_audio_buffer.speech_stopped", "session.updated"]
    assert driver.hear((VOICE, 0.5), (QUIET, 2.0)) == []
    committed = driver.send("input_audio_buffer.commit")
    assert committed[0]["item_id"] == started["item_id"]
    assert driver.fact(ItemAdded).item.parts[0].num_samples == 72_000
    driver.detect()
    (again,) = driver.hear((QUIET, 1.0), (VOICE, 0.2))
    assert again["audio_start_ms"] == pytest.approx(4000 - 300, abs=40)


def test_settings_change_while_somebody_speaks(driver: Driver) -> None:
    driver.hear((VOICE, 0.5))
    driver.detect(silence_duration_ms=2000)
    assert driver.hear((QUIET, 1.5)) == []
    assert kinds(driver.hear((QUIET, 0.6)))[0] == "input_audio_buffer.speech_stopped"


def test_a_full_conversation_is_said_so_and_the_session_goes_on() -> None:
    driver = Driver(Limits(max_items=1), PlainEar)
    driver.say()
    events = driver.hear((VOICE, 0.5), (QUIET, 0.6))
    assert kinds(events) == [*TURN[:2], "error"]
    assert events[-1]["error"]["param"] == "max_items"
