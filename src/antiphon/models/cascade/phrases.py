"""Where a text that is still being written is cut for a voice: it speaks a phrase at a time.

A phrase ends where a sentence or a clause does, never within a word. The first one is short, so that sound
starts early, and the second not much longer, since it has to be written while the first one sounds; where no
clause ends in time a phrase ends behind a word that leaves nothing open ("and", "the").
"""

from __future__ import annotations

import re

from antiphon.models.phonemes.shortenings import BEFORE_A_NAME, BEFORE_A_NUMBER, BEHIND_A_NAME, MONTHS

LEAST_WORDS = 3, 4, 6
"""Of the first phrase, the second and all others: fewer make no phrase of their own, unless a sentence
ends."""
MOST_WORDS = 6, 10, 18
"""A phrase that no clause ends is cut after so many; after twice as many where each leaves something open.
Every word of the first delays the first sound, and a long one takes a long step of the voice."""

_WORD = re.compile(r"(?<!\S)\S++\s+")
_SENTENCE_END = re.compile(r"""[.!?…]["'”’)\]]*\s+$|\n\s*$""")
_CLAUSE_END = re.compile(r"""[,;:–—]["'”’)\]]*\s+$|\s[-–—]\s+$""")
_NUMBER = re.compile(r"[^\w.,]*[\d.,]*\d\s+")
_TITLES = "|".join(("Mr", "Mrs", "Ms", "Dr", *BEFORE_A_NAME, *BEFORE_A_NUMBER))
_GOES_ON = re.compile(
    rf"""(?:^|\s)["'“‘(\[]*(?:[A-Z]|{_TITLES}|vs|e\.g|i\.e|approx)\.\s+$|(?:^|\n)\d{{1,2}}\.\s+$"""
)
"""A point that ends no sentence: behind an abbreviation, or the number of a list's entry."""
_MAY_GO_ON = re.compile(
    rf"""(?:^|\s)["'“‘(\[]*(?:[A-Za-z](?:\.[A-Za-z])+|etc|{"|".join((*BEHIND_A_NAME, *MONTHS))})\.\s+$"""
)
"""One that ends a sentence only where a capital begins the next."""
_DANGLING = frozenset(
    re.findall(
        r"\w+",
        """a an the and or but nor so if as at by for from in into of on onto to with than that which who
        whose when while because my your his her its our their is are was were be been am has have had do does
        did will would can could shall should may might must not no very more most every each some any this
        these those i you he she we they""",
    )
)


def next_phrase(text: str, *, num_before: int, is_over: bool) -> int | None:
    """How many characters of a text that is yet to be spoken are its next phrase, behind so many; None: not
    known before more is written, or nothing is left. `is_over`: no more will be."""
    num_words, open_end = 0, None
    least, most = LEAST_WORDS[min(num_before, 2)], MOST_WORDS[min(num_before, 2)]
    for word in _WORD.finditer(text):
        end = word.end()
        if end == len(text) and not is_over:
            break  # what follows may belong to it: a quotation mark, a number's decimals
        num_words += any(map(str.isalnum, word[0]))
        if not num_words:
            continue
        # a clause's dash, and an abbreviation, have a space before them
        start = max(word.start() - 1, 0)
        if _ends_sentence(text, start, end):
            return end
        if num_words >= least and _CLAUSE_END.search(text, start, end):
            return end
        if not _is_dangling(word[0]) and not _is_counting(word[0], text[end : end + 1]):
            open_end = end
        if num_words >= most and open_end is not None:
            return open_end
        if num_words >= 2 * most:
            return end
    return len(text) or None if is_over else None


def shortened(text: str, end: int, most: int) -> int:
    """The end of a phrase of at most so many characters: behind a word, or within the only one."""
    if end <= most:
        return end
    behind = max((word.end() for word in _WORD.finditer(text, 0, most)), default=0)
    return behind or most


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Does the word at [start, end) end one, as far as what is behind it tells?"""
    if not _SENTENCE_END.search(text, start, end) or _GOES_ON.search(text, start, end):
        return False
    return text[end : end + 1].isupper() or not _MAY_GO_ON.search(text, start, end)


def _is_dangling(word: str) -> bool:
    return word.strip().lower() in _DANGLING


def _is_counting(word: str, following: str) -> bool:
    """A number before what it counts: `5 km` is said as one."""
    return _NUMBER.fullmatch(word) is not None and not following.isdecimal()
