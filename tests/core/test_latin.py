"""What a voice of Latin letters can say."""

from __future__ import annotations

import pytest

from antiphon.core.latin import has_words, to_ascii


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Café Müller", "Cafe Muller"), ("Straße, Łódź", "Strasse, Lodz"), ("こんにちは", ""), ("x²", "x2")],
)
def test_letters_lose_what_stands_above_them_and_others_are_left_out(text: str, expected: str) -> None:
    assert to_ascii(text) == expected


@pytest.mark.parametrize(
    ("text", "in_any_script", "in_latin"),
    [
        ("hello", True, True),
        ("é", True, True),
        ("42", True, True),
        ("٣", True, True),
        ("½", True, True),
        ("৴", True, False),
        ("Привет", True, False),
        ("你好 hi", True, True),
        ("… !", False, False),
        ("🎉", False, False),
    ],
)
def test_a_text_has_words_if_a_letter_of_the_script_or_a_digit_is_in_it(
    text: str, in_any_script: bool, in_latin: bool
) -> None:
    assert has_words(text, latin_only=False) == in_any_script
    assert has_words(text, latin_only=True) == in_latin
