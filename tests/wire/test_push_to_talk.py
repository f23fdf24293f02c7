"""Who commits by hand speaks from the first audio on: the engine learns so, and nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.facts import ItemAdded, PersonFact, ResponseCancelled, SpeechEnded, SpeechStarted
from antiphon.wire.advisories import MIN_GAP_S
from antiphon.wire.limits import Limits
from wire.ears import PlainEar
from wire.harness import Driver, kinds, pcm
from wire.speaking import VOICE

SPOKEN = (SpeechStarted, SpeechEnded)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def spoken(driver: Driver) -> list[type[PersonFact]]:
    return [type(fact) for fact in driver.facts if isinstance(fact, SPOKEN)]


def append(driver: Driver, length_s: float = 0.1) -> None:
    assert driver.send("input_audio_buffer.append", audio=pcm(length_s)) == []


def test_the_first_audio_after_a_start_or_a_commit_begins_and_the_commit_ends(driver: Driver) -> None:
    for _ in range(2):
        driver.facts.clear()
        for _ in range(3):
            append(driver)
        assert spoken(driver) == [SpeechStarted]
        events = driver.send("input_audio_buffer.commit")
        assert events[0]["type"] == "input_audio_buffer.committed"
        told = [type(fact) for fact in driver.facts]
        assert told == [SpeechStarted, SpeechEnded, ItemAdded]


def test_a_clear_ends_it_and_nothing_ends_twice(driver: Driver) -> None:
    append(driver)
    for _ in range(2):
        assert kinds(driver.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert spoken(driver) == [SpeechStarted, SpeechEnded]


def test_audio_that_is_dropped_again_and_again_is_told_at_a_bounded_rate(driver: Driver) -> None:
    for _ in range(50):
        append(driver)
        driver.send("input_audio_buffer.clear")
        driver.now += MIN_GAP_S / 10
    assert spoken(driver) == [SpeechStarted, SpeechEnded] * 5


def test_what_goes_on_after_a_clear_is_told_a_little_later(driver: Driver) -> None:
    append(driver)
    driver.send("input_audio_buffer.clear")
    driver.now = 0.1
    append(driver)
    assert spoken(driver) == [SpeechStarted, SpeechEnded]
    assert driver.session.wake_at == MIN_GAP_S
    driver.now = MIN_GAP_S
    assert driver.tick() == []
    assert spoken(driver) == [SpeechStarted, SpeechEnded, SpeechStarted]
    assert driver.session.wake_at is None
    driver.send("input_audio_buffer.commit")
    append(driver)
    assert spoken(driver) == [SpeechStarted, SpeechEnded] * 2 + [SpeechStarted], "a turn was no flood"


def test_a_turn_that_is_over_before_it_is_told_is_not_told_to_end(driver: Driver) -> None:
    append(driver)
    driver.send("input_audio_buffer.clear")
    driver.facts.clear()
    append(driver)
    driver.send("input_audio_buffer.commit")
    assert [type(fact) for fact in driver.facts] == [ItemAdded]


def test_no_audio_is_no_speech(driver: Driver) -> None:
    append(driver, 0.0)
    driver.send("input_audio_buffer.clear")
    assert spoken(driver) == []


def test_a_commit_that_is_refused_ends_nothing(driver: Driver) -> None:
    append(driver, 0.05)
    driver.error("input_audio_buffer.commit")
    assert spoken(driver) == [SpeechStarted]
    append(driver)
    driver.send("input_audio_buffer.commit")
    assert spoken(driver) == [SpeechStarted, SpeechEnded]


def test_audio_that_is_refused_begins_nothing() -> None:
    driver = Driver(Limits(max_audio_s=1.0))
    driver.error("input_audio_buffer.append", audio=pcm(1.1))
    assert spoken(driver) == []


def test_more_than_fits_is_told_once_an_item() -> None:
    driver = Driver(Limits(max_audio_s=1.0))
    for end in ("commit", "clear", "commit"):
        append(driver, 0.8)
        assert "max_audio_s" in driver.error("input_audio_buffer.append", audio=pcm(0.3))["message"]
        assert not driver.send("input_audio_buffer.append", audio=pcm(0.3))
        assert driver.send(f"input_audio_buffer.{end}")[0]["type"] != "error"
    for _ in range(2):  # one that is too long by itself is no more of anything
        driver.error("input_audio_buffer.append", audio=pcm(1.1))


def test_a_reply_goes_on_while_audio_is_appended(driver: Driver) -> None:
    response = driver.ask()
    driver.audio(response, 1.0)
    append(driver)
    assert spoken(driver) == [SpeechStarted]
    assert driver.audio(response, 1.0)
    driver.send("input_audio_buffer.commit")
    assert driver.end(response)[-1]["response"]["status"] == "completed"
    assert not driver.facts_of(ResponseCancelled)


def test_settings_said_again_do_not_interrupt_it(driver: Driver) -> None:
    append(driver)
    driver.send("session.update", session={"type": "realtime", "instructions": "Hm."})
    append(driver)
    assert spoken(driver) == [SpeechStarted]


def test_turn_detection_that_is_turned_on_ends_it_and_hears_its_own() -> None:
    driver = Driver(detectors=PlainEar)
    hands = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    driver.send("session.update", session=hands)
    append(driver)
    driver.detect()
    assert spoken(driver) == [SpeechStarted, SpeechEnded]
    driver.hear((VOICE, 1.0))
    assert spoken(driver) == [SpeechStarted, SpeechEnded, SpeechStarted]
    driver.send("session.update", session=hands)
    assert spoken(driver) == [SpeechStarted, SpeechEnded] * 2
    driver.now += MIN_GAP_S
    append(driver)
    assert spoken(driver)[-1] is SpeechStarted


@given(
    st.lists(
        st.sampled_from(["append", "append_nothing", "commit", "clear", "off", "on", "voice", "silence"]),
        max_size=20,
    )
)
def test_speech_starts_and_ends_in_turn(steps: list[str]) -> None:
    driver = Driver(detectors=PlainEar)
    for step in steps:
        match step:
            case "append":
                driver.send("input_audio_buffer.append", audio=pcm(0.1))
            case "append_nothing":
                driver.send("input_audio_buffer.append", audio="")
            case "commit" | "clear":
                driver.send(f"input_audio_buffer.{step}")
            case "off":
                audio = {"input": {"turn_detection": None}}
                driver.send("session.update", session={"type": "realtime", "audio": audio})
            case "on":
                driver.detect()
            case "voice":
                driver.hear((VOICE, 0.5))
            case _:
                driver.hear((0, 1.0))
    told = spoken(driver)
    assert told == [SPOKEN[index % 2] for index in range(len(told))]
