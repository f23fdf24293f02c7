"""When a session's KV will be needed again: once the reply is played, and answered at each person's pace."""

from __future__ import annotations

from math import isnan

import pytest

from antiphon.core.facts import (
    Fact,
    ItemCut,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    ResponseCancelled,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.interaction.next_use import LEAST_S, REPLY_S, STALE_S, TOKEN_S
from interaction.people import People


def test_due_once_the_reply_is_played_and_answered() -> None:
    people = People("s")
    assert isnan(people.due_s(0.0))
    people.ask(1.0)
    assert people.due_s(1.5) == pytest.approx(1.5 + LEAST_S), "it is needed now"
    assert [*people.next_use.expected(1.5)] == ["s"]
    people.sound(2.0, 2.0)
    people.end(2.0)
    assert people.due_s(2.0) == pytest.approx(2.0 + 2.0 + REPLY_S)
    assert people.due_s(4.0) == pytest.approx(8.0)


@pytest.mark.parametrize("for_s", [0.0, 5.0, 20.0])
def test_reports_go_on_after_the_reply_is_played_and_say_no_more_of_it(for_s: float) -> None:
    """A client may report by a timer, and not only while it plays."""
    people = People("s")
    people.reply(0.0, 5.0)
    at = 0.5
    while at <= for_s:
        people.tell(PlaybackReported("s", "r", min(at, 5.0)), at)
        at += 0.5
    assert people.due_s(20.0) == pytest.approx(20.0 + abs(5.0 + REPLY_S - 20.0), abs=STALE_S)
    people.tell(SpeechStarted("s"), 18.0)
    people.ask(25.0, response="next")
    people.reply(100.0, 5.0, response="last")
    assert people.due_s(100.0) > 105.0 + REPLY_S + 1.0, "20 s went by since the first was heard"


def test_length_is_what_was_written_and_not_what_was_sent() -> None:
    """Under pacing little is sent ahead; 40 tokens are ten seconds all the same."""
    people = People("s")
    people.ask(0.0)
    people.write(40)
    people.sound(1.0, 1.0)
    expected = 1.0 + 40 * TOKEN_S + REPLY_S
    assert people.due_s(1.0) == pytest.approx(expected)
    people.sound(1.0, 1.9)
    assert people.due_s(1.9) == pytest.approx(expected)
    for second in range(1, 9):
        people.sound(1.0, 1.9 + second)
    people.end(10.0)
    assert people.due_s(10.0) == pytest.approx(expected, abs=STALE_S)


def test_the_pace_at_which_words_are_spoken_is_learnt() -> None:
    people = People("s")
    for number in range(200):
        name = f"r{number}"
        people.ask(10.0 * number, response=name)
        people.write(10, response=name)
        people.sound(4.0, 10.0 * number, response=name)
        people.end(10.0 * number, response=name)
    people.ask(3000.0)
    people.write(30)
    people.sound(1.0, 3000.0)
    played_s = people.due_s(3000.0) - people.next_use._sessions["s"].reply.value - 3000.0
    assert played_s == pytest.approx(12.0, abs=0.1)


def test_each_person_has_a_pace_of_their_own_and_newcomers_everybodys() -> None:
    people = People("quick", "slow", "new")
    for number in range(30):
        now = 100.0 * number
        people.reply(now, 1.0, "quick", f"q{number}")
        people.reply(now, 1.0, "slow", f"s{number}")
        for session, at in (("quick", now + 3.0), ("slow", now + 31.0)):
            people.tell(SpeechStarted(session), at - 1.0)
            people.tell(SpeechEnded(session), at)
        people.ask(now + 3.0, "quick", f"qq{number}")
        people.end(now + 3.0, "quick", f"qq{number}")
        people.ask(now + 31.0, "slow", f"ss{number}")
        people.end(now + 31.0, "slow", f"ss{number}")
    for session in ("quick", "slow", "new"):
        people.reply(5000.0, 1.0, session, "last")
    quick, slow, new = (people.due_s(5000.0, session) - 5001.0 for session in ("quick", "slow", "new"))
    assert quick < new < slow


def test_who_breaks_in_tells_nothing_of_how_long_people_take() -> None:
    people = People("s")
    people.ask(0.0)
    people.sound(20.0, 1.0)
    people.tell(SpeechStarted("s"), 5.0)
    people.tell(ResponseCancelled("s", "r"), 5.1)
    people.end(5.1, status="cancelled")
    people.tell(ItemCut("s", "item-r", 3), 5.1)
    people.tell(SpeechEnded("s"), 6.0)
    people.ask(6.0, response="again")
    people.end(6.0, response="again", status="failed")
    assert people.due_s(6.0) == pytest.approx(6.0 + REPLY_S), "and one that failed is due all the same"


@pytest.mark.parametrize("coming", [SpeechStarted("s"), TurnAdvised("s", "turn", 3.0)])
def test_whose_first_turn_was_announced_and_never_came_is_overdue_like_any_other(coming: Fact) -> None:
    """What was read ahead of it may leave before the KV of people who talk."""
    people = People("s", "t")
    people.tell(coming, 0.0)
    people.tell(SpeechEnded("s"), 2.0)
    people.reply(2.0, 1.0, "t")
    assert people.farthest(100.0) == ["s", "t"]
    people.ask(100.0)
    people.tell(coming, 101.0)
    assert people.farthest(200.0) == ["t"], "a request of its own waits for it"


def test_who_takes_longer_than_usual_will_take_longer_still() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    due = 1.0 + REPLY_S
    assert people.due_s(due + 7.0) == pytest.approx(due + 14.0)


def test_who_takes_longer_than_usual_is_overdue_until_the_next_turn_is_coming() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    due_s = people.due_s(2.0)
    late = people.next_use.overdue_s
    assert [late("s", due_s - 1.0), late("s", due_s + 4.0), late("stranger", 5.0)] == [0.0, 4.0, 0.0]
    people.tell(SpeechStarted("s"), due_s + 5.0)
    assert late("s", due_s + 5.0) == 0.0


def test_a_report_of_playback_moves_it() -> None:
    people = People("s")
    people.reply(0.0, 10.0)
    people.tell(PlaybackReported("s", "r", 1.0), 6.0)
    assert people.due_s(6.0) == pytest.approx(6.0 + 9.0 + REPLY_S)
    people.tell(ItemCut("s", "item-r", 1), 7.0)
    assert people.due_s(7.0) == pytest.approx(7.0 + REPLY_S)


def test_a_reply_that_was_cut_is_heard_no_further_though_it_is_still_made() -> None:
    """Its client truncates it, and does not cancel it."""
    people = People("s")
    people.ask(0.0)
    people.write(40)
    people.sound(1.0, 1.0)
    people.tell(ItemCut("s", "item-r", 3), 2.0)
    due_s = people.due_s(2.0)
    assert due_s == pytest.approx(2.0 + REPLY_S)
    people.sound(1.0, 3.0)
    assert people.due_s(3.0) == due_s
    people.end(4.0)
    assert people.due_s(4.0) == due_s


def test_a_cut_or_report_of_what_is_not_being_played_changes_nothing() -> None:
    people = People("s")
    people.reply(0.0, 1.0, response="before")
    people.reply(5.0, 30.0)
    due_s = people.due_s(6.0)
    people.tell(ItemCut("s", "item-before", 1), 6.0)
    people.tell(PlaybackReported("s", "before", 0.5), 6.0)
    assert people.due_s(6.0) == due_s


def test_a_client_that_is_farther_than_was_thought_is_due_sooner() -> None:
    """What is still to be sent comes after its buffer all the same: 40 tokens are ten seconds."""
    people = People("s")
    people.ask(0.0)
    people.write(40)
    people.sound(4.0, 1.0)
    people.tell(PlaybackReported("s", "r", 3.0), 2.0)
    assert people.due_s(2.0) == pytest.approx(2.0 + 1.0 + (40 * TOKEN_S - 4.0) + REPLY_S)


def test_another_reply_that_is_cancelled_changes_nothing() -> None:
    people = People("s")
    people.reply(0.0, 30.0)
    due_s = people.due_s(1.0)
    people.tell(ResponseCancelled("s", "beside"), 1.0)
    assert people.due_s(1.0) == due_s


def test_what_is_held_back_is_heard_once_it_is_released() -> None:
    people = People("s")
    people.ask(0.0)
    people.sound(1.0, 1.0)
    due_s = people.due_s(1.0)
    people.tell(OutputHeld("s", "r"), 1.5)
    people.sound(9.0, 1.6)
    people.end(1.6)
    assert people.due_s(1.6) == due_s, "nobody has it"
    people.tell(OutputReleased("s", "r"), 3.0)
    assert people.due_s(3.0) == pytest.approx(3.0 + 9.0 + REPLY_S)


def test_a_reply_that_is_cancelled_while_its_end_is_held_back_is_over() -> None:
    """No other end of it will come."""
    people = People("s")
    people.ask(0.0)
    people.tell(OutputHeld("s", "r"), 0.5)
    people.sound(9.0, 1.0)
    people.end(1.0)
    assert people.due_s(1.0) == pytest.approx(1.0 + LEAST_S), "its client has nothing of it yet"
    people.tell(ResponseCancelled("s", "r"), 2.0)
    assert people.due_s(2.0) == pytest.approx(2.0 + REPLY_S)
    assert [*people.next_use.expected(2.0)] == []


def test_what_runs_beside_the_conversation_and_strangers_change_nothing() -> None:
    people = People("s")
    people.reply(0.0, 1.0)
    people.ask(2.0, response="beside", remember=False)
    assert people.due_s(2.0) == pytest.approx(1.0 + REPLY_S)
    people.tell(SpeechStarted("stranger"), 2.0)
    assert [*people.next_use.expected(2.0)] == []
    assert isnan(people.due_s(2.0, "stranger"))
