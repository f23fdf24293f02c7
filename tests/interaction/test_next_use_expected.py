"""Whose turn is expected: whose voice is heard, who announced it, and who waits for a reply."""

from __future__ import annotations

from math import inf

import pytest

from antiphon.core.facts import (
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.interaction.next_use import LEAST_S, LONGEST_S, MOST_STALE_S, NEAR_S, SPEECH_S, WARM_S
from interaction.people import People


def test_whose_voice_is_heard_is_expected_until_the_turn_is_there_or_comes_to_nothing() -> None:
    people = People("s", "t")
    people.reply(0.0, 1.0)
    people.reply(0.0, 9.0, "t", "q")
    people.tell(SpeechStarted("s"), 4.0)
    people.tell(SpeechStarted("t"), 5.0)
    assert [*people.next_use.expected(5.0)] == ["s", "t"]
    assert people.farthest(5.0) == []
    assert people.due_s(4.0) == pytest.approx(4.0 + SPEECH_S)
    assert people.due_s(50.0) == pytest.approx(50.0 + LEAST_S), "at any moment"
    people.tell(SpeechEnded("s"), 50.0)
    assert [*people.next_use.expected(50.0 + WARM_S)] == ["s", "t"]
    assert [*people.next_use.expected(50.1 + WARM_S)] == ["t"]
    assert people.farthest(50.1 + WARM_S) == ["s"]
    people.ask(55.0, "t", "more")
    assert [*people.next_use.expected(55.0)] == ["t"], "until something of the reply is heard"
    people.sound(1.0, 56.0, "t", "more")
    assert [*people.next_use.expected(56.0)] == []


@pytest.mark.parametrize("announced", [False, True], ids=["typed", "announced"])
def test_a_voice_that_came_to_nothing_is_no_part_of_a_later_turn(announced: bool) -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    people.tell(SpeechEnded("s"), 4.2)
    if announced:
        people.tell(TurnAdvised("s"), 598.0)
    people.ask(600.0, response="typed")
    people.sound(1.0, 601.0, response="typed")
    people.tell(SpeechStarted("s"), 610.0)
    assert people.due_s(610.0) == pytest.approx(610.0 + SPEECH_S)


@pytest.mark.parametrize("reports", [False, True], ids=["no-reports", "reports"])
def test_a_cough_during_a_reply_leaves_the_next_turn_due_after_it(reports: bool) -> None:
    people = People("s")
    people.reply(0.0, 40.0)
    due_s = people.due_s(1.0)
    people.tell(SpeechStarted("s"), 1.0)
    people.tell(SpeechEnded("s"), 1.4)
    if reports:
        people.tell(PlaybackReported("s", "r", 1.4), 1.4)
    for now in (1.4 + WARM_S + 0.1, 20.0):
        assert people.due_s(now) == pytest.approx(due_s, abs=MOST_STALE_S)


def test_who_is_never_done_is_expected_for_a_while_only() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    assert [*people.next_use.expected(4.0 + LONGEST_S)] == ["s"]
    assert [*people.next_use.expected(4.1 + LONGEST_S)] == []


def test_who_spoke_for_longer_than_that_is_expected_again_once_they_are_done() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    before = people.next_use._sessions["s"].turn.value
    people.tell(SpeechEnded("s"), 204.0)
    assert [*people.next_use.expected(204.0 + WARM_S)] == ["s"]
    people.ask(204.5, response="next")
    assert before < people.next_use._sessions["s"].turn.value < LONGEST_S


def test_a_turn_may_be_announced_by_who_began_to_speak_and_was_never_done() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(SpeechStarted("s"), 4.0)
    people.tell(TurnAdvised("s", expected_s=1.0), 100.0)
    assert [*people.next_use.expected(100.0)] == ["s"]


def test_a_turn_may_be_announced() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(TurnAdvised("s", expected_s=3.0), 10.0)
    assert people.due_s(10.0) == pytest.approx(13.0)
    assert [*people.next_use.expected(13.0 + WARM_S)] == ["s"]
    assert [*people.next_use.expected(13.1 + WARM_S)] == []
    people.tell(TurnAdvised("s"), 20.0)
    assert people.due_s(20.0) == pytest.approx(20.0 + SPEECH_S)
    people.tell(SpeechStarted("s"), 21.0)
    people.tell(TurnAdvised("s", expected_s=900.0), 21.5)
    assert people.due_s(21.5) == pytest.approx(21.0 + SPEECH_S), "the voice itself says more"


def test_a_turn_that_is_likelier_not_to_come_is_not_expected() -> None:
    people = People("s", "t")
    people.reply(0.0, 1.0)
    due_s = people.due_s(10.0)
    people.tell(TurnAdvised("s", expected_s=3.0, confidence=0.49), 10.0)
    people.tell(TurnAdvised("t", expected_s=3.0, confidence=0.5), 10.0)
    assert [*people.next_use.expected(10.0)] == ["t"]
    assert people.due_s(10.0) == due_s


def test_who_types_for_ten_seconds_is_expected_all_the_while() -> None:
    """The console advises every two seconds meanwhile."""
    people = People("s")
    for at in range(0, 10, 2):
        people.tell(TurnAdvised("s"), float(at))
    for at in range(11):
        assert people.next_use.is_expected("s", float(at))
    assert not people.next_use.is_expected("s", 8.1 + SPEECH_S + WARM_S)


def test_who_renews_an_expectation_for_ever_keeps_no_place_before_others() -> None:
    people = People("a", "b", "c")
    people.tell(TurnAdvised("a", expected_s=1.0), 0.0)
    people.tell(SpeechStarted("b"), 0.0)
    for at in range(1, int(LONGEST_S) + 5):
        people.tell(TurnAdvised("a", expected_s=1.0), float(at))
        people.tell(SpeechEnded("b"), float(at))
        people.tell(SpeechStarted("b"), float(at))
        if at == 10:
            people.tell(SpeechStarted("c"), float(at))
    assert next(people.next_use.expected(LONGEST_S + 5.0)) == "c"


def test_who_speaks_or_waits_comes_before_who_only_announced_a_turn() -> None:
    people = People("a", "b", "c")
    people.tell(TurnAdvised("a", expected_s=1.0), 0.0)
    people.tell(SpeechStarted("b"), 0.5)
    people.ask(1.0, "c", "p")
    people.tell(TurnAdvised("c", expected_s=5.0), 1.2)
    assert [*people.next_use.expected(1.5)] == ["b", "c", "a"], "waits still"
    people.tell(SpeechStarted("a"), 2.0)
    assert [*people.next_use.expected(2.0)] == ["a", "b", "c"], "told of first"


@pytest.mark.parametrize(("expected_s", "is_expected"), [(5.0, True), (90.0, False)])
def test_a_turn_announced_while_a_reply_is_sent_stays_announced(expected_s: float, is_expected: bool) -> None:
    people = People("s")
    people.ask(0.0)
    people.sound(1.0, 1.0)
    people.tell(TurnAdvised("s", expected_s=expected_s), 1.5)
    people.sound(1.0, 1.7)
    assert people.next_use.is_expected("s", 1.8) == is_expected
    assert people.due_s(1.8) == pytest.approx(1.5 + expected_s)


def test_a_turn_announced_long_before_is_expected_only_when_it_is_near() -> None:
    people = People("s", "t")
    people.reply(0.0, 1.0)
    people.reply(0.0, 1.0, "t", "q")
    people.tell(TurnAdvised("s", expected_s=3600.0), 10.0)
    due_at = 3610.0
    assert people.due_s(10.0) == pytest.approx(due_at), "it is kept by when it is due"
    assert people.farthest(10.0) == ["s", "t"]
    assert people.next_use.expects_at(10.0) == due_at - NEAR_S
    people.tell(TurnAdvised("t", expected_s=NEAR_S + 5), 11.0)
    assert people.next_use.expects_at(11.0) == pytest.approx(16.0)
    assert [*people.next_use.expected(15.9)] == []
    assert [*people.next_use.expected(16.1)] == ["t"]
    assert people.next_use.is_expected("t", 16.1)
    people.tell(TurnAdvised("t", expected_s=900.0), 17.0)
    assert people.due_s(17.0, "t") == pytest.approx(26.0), "what is near already stands"
    assert [*people.next_use.expected(26.1 + WARM_S)] == []
    assert [*people.next_use.expected(due_at)] == ["s"]
    assert people.next_use.expects_at(due_at) == inf


def test_an_announcement_that_is_not_near_may_be_put_off() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.tell(TurnAdvised("s", expected_s=30.0), 10.0)
    people.tell(TurnAdvised("s", expected_s=90.0), 11.0)
    assert [*people.next_use.expected(40.0)] == []
    assert [*people.next_use.expected(101.0)] == ["s"]


def test_a_release_before_anything_was_heard_leaves_it_expected() -> None:
    people = People("s")
    people.ask(0.0)
    people.tell(OutputHeld("s", "r"), 0.5)
    people.tell(OutputReleased("s", "r"), 0.6)
    assert [*people.next_use.expected(0.6)] == ["s"]


def test_what_runs_beside_a_turn_that_waits_for_its_reply_leaves_it_expected() -> None:
    """The transcription of what was said ends before the reply has begun."""
    people = People("s")
    people.reply(0.0, 1.0)
    people.ask(3.0, response="reply")
    people.ask(3.0, response="beside", remember=False)
    people.end(3.2, response="beside")
    assert [*people.next_use.expected(3.2)] == ["s"]
    people.sound(1.0, 3.4, response="reply")
    assert [*people.next_use.expected(3.4)] == []
