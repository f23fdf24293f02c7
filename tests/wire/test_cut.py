"""How much of a reply was heard, by share, rate, word and token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.wire.cut import Cut, at_token, at_word, heard, heard_words

TEXT = "Well, hello there my friend."
ENDS = [4, 5, 11, 17, 20, 27, 28]


@pytest.mark.parametrize(
    ("played_s", "kept"),
    [
        (0, ""),
        (0.5, "Well,"),
        (1.0, "Well, hello"),
        (1.999, "Well, hello there my"),
        (2.0, TEXT),
        (9.0, TEXT),
    ],
)
def test_the_played_share_of_a_complete_reply(played_s: float, kept: str) -> None:
    cut = heard(TEXT, ENDS, played_s, 2.0, None)
    assert TEXT[: cut.num_chars] == kept
    assert cut.num_tokens == (ENDS.index(len(kept)) + 1 if kept else 0)


def test_a_growing_reply_is_cut_by_rate_and_by_share() -> None:
    by_rate = heard(TEXT, ENDS, 0.8, 0.9, 15.0)
    assert TEXT[: by_rate.num_chars] == "Well, hello"
    by_share = heard(TEXT, ENDS, 0.8, 3.0, 15.0)
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
    st.floats(0, 5),
    st.floats(0, 5),
    st.none() | st.floats(1, 40),
)
def test_a_cut_is_within_the_reply(
    text: str, marks: list[int], played_s: float, audio_s: float, rate: float | None
) -> None:
    ends = sorted(min(mark, len(text)) for mark in marks)
    cut = heard(text, ends, played_s, audio_s, rate)
    assert 0 <= cut.num_tokens <= len(ends)
    assert 0 <= cut.num_chars <= len(text)
    later = heard(text, ends, played_s + 0.1, audio_s, rate)
    assert later.num_tokens >= cut.num_tokens


@pytest.mark.parametrize(
    ("played_s", "kept"),
    [(0.0, ""), (0.39, ""), (0.4, "Well,"), (1.99, "Well, hello there my"), (None, TEXT)],
)
def test_a_voice_that_knows_its_words_is_cut_behind_the_last_that_had_ended(
    played_s: float | None, kept: str
) -> None:
    words = [(0.4, 2), (0.9, 3), (1.2, 4), (1.5, 5), (2.0, 6)]
    cut = heard_words(ENDS, words, played_s)
    assert TEXT[: cut.num_chars] == kept
    assert cut.num_tokens == (ENDS.index(len(kept)) + 1 if kept else 0)


def test_words_that_are_not_written_yet_are_not_heard() -> None:
    """The text may come behind its sound: what there is of it is kept."""
    assert heard_words([4, 5], [(0.4, 2), (0.9, 3)], 5.0) == Cut(2, 5)
    assert heard_words([], [(0.4, 2)], 5.0) == heard_words([], [], None) == Cut(0, 0)
