"""Which texts a voice can say, of Latin letters or of any."""

from __future__ import annotations

import unicodedata

_SPELT = str.maketrans(
    {
        "ß": "ss",
        "ẞ": "SS",
        "æ": "ae",
        "Æ": "AE",
        "œ": "oe",
        "Œ": "OE",
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "đ": "d",
        "Đ": "D",
        "ð": "d",
        "Ð": "D",
        "þ": "th",
        "Þ": "Th",
        "ı": "i",
    }
)


def to_ascii(text: str) -> str:
    """Letters without what is above or below them; none of another script."""
    return "".join(c for c in unicodedata.normalize("NFKD", text.translate(_SPELT)) if c.isascii())


def has_words(text: str, *, latin_only: bool) -> bool:
    """Is there a letter or a digit in it, a letter of this script where the voice has no other?"""
    if not latin_only:
        return any(map(str.isalnum, text))
    return any(_is_said(c) for c in text)


def _is_said(char: str) -> bool:
    if char.isalpha():
        return any(map(str.isalpha, to_ascii(char)))
    value = unicodedata.numeric(char, None)
    return value is not None and (value.is_integer() or any(map(str.isdecimal, to_ascii(char))))
