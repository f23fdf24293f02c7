"""How much of a reply was heard, by share, rate, word and token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.wire.cut import Cut, at_token, at_word, heard
from antiphon.wire.heard import Playback

TEXT = "Well, hello there my friend."
ENDS = [4, 5, 11, 17, 20, 27, 28]


@pytest.mark.parametrize(
    ("played_ms", "kept"),
    [
        (0, ""),
        (500, "Well,"),
        (1000, "Well, hello"),
        (1999, "Well, hello there my"),
        (2000, TEXT),
        (9000, TEXT),
    ],
)
def test_the_played_share_of_a_complete_reply(played_ms: float, kept: str) -> None:
    cut = heard(TEXT, ENDS, played_ms, 2000.0, None)
    assert TEXT[: cut.num_chars] == kept
    assert cut.num_tokens == (ENDS.index(len(kept)) + 1 if kept else 0)


def test_a_growing_reply_is_cut_by_rate_and_by_share() -> None:
    by_rate = heard(TEXT, ENDS, 800.0, 900.0, 15.0)
    assert TEXT[: by_rate.num_chars] == "Well, hello"
    by_share = heard(TEXT, ENDS, 800.0, 3000.0, 15.0)
    assert TEXT[: by_share.num_chars] == "Well,"
    assert heard(TEXT, ENDS, 0.0, 0.0, 15.0) == Cut(0, 0)


def test_ideographs_need_no_spaces() -> None:
    assert at_word("今天天气很好", 4) == 4
    assert at_word("hello world", 8) == 5
    assert at_word("hello", 3) == 0
    assert at_word("hi", 2) == 2


def test_a_token_that_began_a_character_is_not_whole() -> None:
    ends = [1, 1, 2, 2, 2, 5]  # the second and the fourth hold half a character each
    assert at_token(ends, 1) == Cut(1, 1)
    assert at_token(ends, 2) == Cut(3, 2)
    assert at_token(ends, 4) == Cut(3, 2)
    assert at_token([0, 0, 3], 2) == Cut(0, 0)


@given(
    st.text(max_size=40),
    st.lists(st.integers(0, 40), max_size=20),
    st.floats(0, 5000),
    st.floats(0, 5000),
    st.none() | st.floats(1, 40),
)
def test_a_cut_is_within_the_reply(
    text: str, marks: list[int], played_ms: float, audio_ms: float, rate: float | None
) -> None:
    ends = sorted(min(mark, len(text)) for mark in marks)
    cut = heard(text, ends, played_ms, audio_ms, rate)
    assert 0 <= cut.num_tokens <= len(ends)
    assert 0 <= cut.num_chars <= len(text)
    later = heard(text, ends, played_ms + 100.0, audio_ms, rate)
    assert later.num_tokens >= cut.num_tokens


def test_playback_without_acks_is_the_wall_clock() -> None:
    playback = Playback()
    assert (playback.played_ms(5.0), playback.ends_at, playback.is_audible(5.0)) == (0.0, None, False)
    playback.sent(400.0, 10.0)
    playback.sent(600.0, 10.1)
    assert playback.played_ms(10.3) == pytest.approx(300.0)
    assert playback.is_audible(10.3)
    assert playback.ends_at == pytest.approx(11.0)
    assert playback.played_ms(12.0) == 1000.0
    assert not playback.is_audible(12.0)


def test_acks_overrule_the_clock_and_are_bounded() -> None:
    playback = Playback()
    assert playback.acked(50.0, 0.0) == 0.0
    playback.sent(1000.0, 10.0)
    assert playback.acked(200.0, 10.5) == 200.0
    assert playback.played_ms(10.6) == pytest.approx(300.0)
    assert playback.acked(100.0, 10.7) == 200.0
    assert playback.acked(5000.0, 10.8) == 1000.0
    assert playback.acked(-5.0, 10.9) == 1000.0


def test_an_interrupted_reply_plays_no_more() -> None:
    playback = Playback()
    playback.stop(1.0)
    playback.sent(1000.0, 10.0)
    playback.stop(10.2)
    playback.stop(10.9)
    assert playback.played_ms(99.0) == pytest.approx(200.0)
    assert not playback.is_audible(10.2)
    assert playback.ends_at == 10.2
