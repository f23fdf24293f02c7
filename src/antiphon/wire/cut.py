"""The rule that says how much of a reply was heard, to be replaced as one.

Where the voice says when each word ends, it is the words that had ended. Else of a reply whose audio is
complete: the played share of its characters. Of one that still grows: what is said in the time played at the
session's running rate; text runs ahead of sound, so the played share of the characters written by now bounds
it. Either is cut back to the end of a word, and then to whole tokens.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

CHARS_PER_S = 15.0
"""Unhurried English speech, until a session's own replies tell better."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The tokens of a reply that were heard, and the characters that these are."""

    num_tokens: int
    num_chars: int


def heard(
    text: str, token_ends: list[int], played_s: float, audio_s: float, chars_per_s: float | None
) -> Cut:
    """`token_ends[i]` is how many characters are certain after token i; `chars_per_s` None: the audio is
    complete."""
    if chars_per_s is None and played_s >= audio_s:
        return Cut(len(token_ends), len(text))
    share = min(played_s / audio_s, 1.0) if audio_s else 0.0
    num_chars = share * len(text)
    if chars_per_s is not None:
        num_chars = min(num_chars, chars_per_s * played_s)
    return at_token(token_ends, at_word(text, int(num_chars)))


def heard_words(token_ends: list[int], words: list[tuple[float, int]], played_s: float | None) -> Cut:
    """The words that had ended, of a voice that says when each word ends (seconds, and tokens that are over
    then, in order). `played_s` None: all of it was played."""
    if played_s is None:
        return Cut(len(token_ends), token_ends[-1] if token_ends else 0)
    ended = bisect_right(words, played_s, key=lambda word: word[0])
    num_tokens = min(words[ended - 1][1], len(token_ends)) if ended else 0
    return Cut(num_tokens, token_ends[num_tokens - 1] if num_tokens else 0)


def at_word(text: str, num_chars: int) -> int:
    """The end of the last whole word within so many characters. Ideographs are words of their own."""
    while 0 < num_chars < len(text) and not _ends_word(text[num_chars - 1], text[num_chars]):
        num_chars -= 1
    return min(num_chars, len(text))


def at_token(token_ends: list[int], num_chars: int) -> Cut:
    """The whole tokens within so many characters; one that only began a character is not whole."""
    fitting = bisect_right(token_ends, num_chars)
    if not fitting or not token_ends[fitting - 1]:
        return Cut(0, 0)
    end = token_ends[fitting - 1]
    return Cut(bisect_left(token_ends, end) + 1, end)


def _ends_word(last: str, following: str) -> bool:
    return following.isspace() or _is_wide(last) or _is_wide(following)


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"
