"""What a session's replies said, and what of it the engine is told was heard."""

from __future__ import annotations

import pytest

from antiphon.core.errors import ProtocolError
from antiphon.wire.cut import CHARS_PER_S
from antiphon.wire.spoken import MOST_PAUSED_S, OVERSHOOT_MS, Speeches, Spoken


def spoken(seconds: float = 4.0, speech: bool = True) -> Spoken:
    """Of "one two three four", a character a token, whose sound came at 0."""
    made = Spoken("r", "item", speech)
    for letter in "one two three four":
        made.wrote(letter)
    made.sounded(seconds, 0.0)
    return made


def complete(made: Spoken) -> Speeches:
    speeches = Speeches()
    speeches.add(made)
    speeches.completed(made)
    return speeches


def test_text_that_was_held_back_belongs_to_the_last_token() -> None:
    made = Spoken("r", "item", True)
    made.flushed("?")
    assert (made.text, made.token_ends) == ("?", [])
    made.wrote("a")
    made.flushed("!")
    assert (made.text, made.token_ends) == ("?a!", [3])


def test_a_reply_is_found_by_either_name_until_it_is_forgotten() -> None:
    made = spoken()
    speeches = complete(made)
    assert speeches.find("item", "") is speeches.find(None, "r") is made
    assert speeches.find(["item"], "other") is None
    speeches.forget("item")
    assert speeches.find("item", "r") is None


def test_an_interrupted_reply_is_cut_at_a_word_that_was_heard() -> None:
    made = spoken()
    speeches = complete(made)
    assert speeches.audible(2.5) == [made]
    assert speeches.interrupt(made, 2.5) == len("one two")
    assert made.shown == "one two"
    assert speeches.audible(2.6) == []


def test_what_is_read_or_calls_a_tool_is_not_cut() -> None:
    shown, calling = spoken(speech=False), spoken()
    calling.has_call = True
    for made in (shown, calling):
        assert complete(made).interrupt(made, 2.0) is None
        assert made.shown is None
    assert complete(calling).truncate(calling, 1000, 2.0) == 1000
    assert calling.shown is None


def test_a_reply_that_grows_is_cut_by_the_sessions_own_rate() -> None:
    speeches = Speeches()
    assert speeches.chars_per_s == CHARS_PER_S
    first = spoken(6.0)
    speeches.add(first)
    speeches.completed(first)
    assert speeches.chars_per_s == 3.0
    second = spoken(4.0)
    speeches.add(second)
    assert speeches.interrupt(second, 3.0) == len("one two"), "nine characters by rate, 13 by share"


def test_the_clients_own_word_overrules_the_estimate() -> None:
    made = spoken()
    speeches = complete(made)
    assert speeches.truncate(made, 2000, 1.0) == 2000
    assert (made.shown, made.is_truncated) == ("one two", True)
    assert speeches.interrupt(made, 4.0) == len("one two")
    assert speeches.truncate(made, 4000 + OVERSHOOT_MS, 5.0) == 4000
    assert made.shown == made.text
    with pytest.raises(ProtocolError, match="Audio content of 4000ms is already shorter than 4101ms"):
        speeches.truncate(made, 4001 + OVERSHOOT_MS, 5.0)


def test_reports_tell_the_engine_what_there_was_time_for() -> None:
    made = Spoken("r", "item", True)
    assert made.acked(1.0, 0.0) is None, "there was no sound yet"
    made.sounded(200.0, 0.0)
    assert made.acked(0.5, 1.0) == 0.5
    assert made.acked(5.0, 2.0) == 2.0, "it cannot have played faster than time goes"
    assert made.acked(1.0, 3.0) is None, "less than before"
    assert made.acked(5.0, 100.0) == 100.0 - MOST_PAUSED_S, "no pause is longer"
