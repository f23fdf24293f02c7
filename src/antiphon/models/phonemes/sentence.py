"""A text's tokens, pronounced from the last to the first: how `the` sounds depends on what comes after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from antiphon.models.phonemes.lexicon import CURRENCIES, PRIMARY, VOWELS, Following, Lexicon, stressed
from antiphon.models.phonemes.tokens import PUNCTUATION, Token, is_digits, is_number, tokenise
from antiphon.models.phonemes.written import in_words

_DIPHTHONGS = frozenset("AIOQWYʤʧ")
_CONSONANTS = frozenset("bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ")
_PAUSES = PUNCTUATION - frozenset('"“”')
_SILENT = frozenset("',-._‘’/()")
_PUNCTUATION_TAGS = frozenset((".", ",", "-LRB-", "-RRB-", "``", '""', "''", ":", "$", "#", "NFP"))
_SAID_FOR_TAG = {"-LRB-": "(", "-RRB-": ")", "``": "“", '""': "”", "''": "”"}
MOST_PARTS = 12
"""Of a word that is looked up as a whole, or by runs of its parts."""
_LETTER = r"[^\W\d_]"
_QUOTES = "'‘’"
_SUBTOKEN = re.compile(
    rf"^[{_QUOTES}]+"
    rf"|[A-Z](?=[A-Z][a-z])"
    rf"|(?:^-)?(?:\d?[,.]?\d)+"
    rf"|[-_]+"
    rf"|[{_QUOTES}]{{2,}}"
    rf"|{_LETTER}*?(?:[{_QUOTES}]{_LETTER})*?[a-z](?=[A-Z])"
    rf"|{_LETTER}+(?:[{_QUOTES}]{_LETTER})*"
    rf"|[^\w{_QUOTES}-]"
    rf"|[{_QUOTES}]+$"
)
"""A token's parts: `GPUs`, `iPhone` and `B52` are two, `don't` is one."""

Word = list[Token]
"""Tokens that are one word in the text. A word of one token is pronounced alone."""


class Pronouncer:
    """lexicon   words that are known
    unknown   phonemes of any others
    """

    def __init__(self, lexicon: Lexicon, unknown: Callable[[str], str]) -> None:
        self._lexicon = lexicon
        self._unknown = unknown

    def pronounce(self, text: str) -> Iterator[tuple[int, int, str]]:
        """(start, end, phonemes) of the runs without white space, phonemes in misaki's alphabet."""
        runs = list(in_words(text))
        readings = [(i, part) for i, (*_, reading) in enumerate(runs) for part in reading.split()]
        chunks, tokens = tokenise(" ".join(part for _, part in readings))
        words = _words(tokens)
        following = Following()
        for word in reversed(words):
            following = self._one(word[0], following) if len(word) == 1 else self._many(word, following)
        said = [""] * len(chunks)
        for word in words:
            said[word[0].chunk] += _joined(word)
        spoken: list[list[str]] = [[] for _ in runs]
        for (i, _), phonemes in zip(readings, said, strict=True):
            if phonemes:
                spoken[i].append(phonemes)
        return ((start, end, " ".join(parts)) for (start, end, _), parts in zip(runs, spoken, strict=True))

    def _one(self, token: Token, following: Following) -> Following:
        if token.phonemes is None:
            token.phonemes = self._lexicon.pronounce(token, token.text, following)
        if token.phonemes is None:
            token.phonemes = self._unknown(token.text)
        return _following(following, token.phonemes, token.text, token.tag)

    def _many(self, word: Word, following: Following) -> Following:
        """The longest run of parts that the lexicon knows, from the end; if a part is unknown, all is, unless
        there are digits in the word, which only the lexicon says. A word of more parts than words have is
        read part by part: to try all its runs takes the cube of them."""
        has_digits = any(is_number(token.text, token.is_head) for token in word)
        if len(word) > MOST_PARTS:
            for token in reversed(word):
                following = self._one(token, following)
            return following
        left, right = 0, len(word)
        while left < right:
            run = word[left:right]
            whole = None if any(token.phonemes is not None for token in run) else _merged(run)
            phonemes = None if whole is None else self._lexicon.pronounce(whole, whole.text, following)
            if whole is not None and phonemes is not None:
                _say(run, phonemes)
                following = _following(following, phonemes, whole.text, whole.tag)
                left, right = 0, left
            elif left + 1 < right:
                left += 1
            else:
                right -= 1
                left = 0
                if word[right].phonemes is None:
                    if has_digits:
                        following = self._one(word[right], following)
                        continue
                    if not set(word[right].text) <= _SILENT:
                        _say(word, self._unknown(_merged(word).text))
                        return following
                    word[right].phonemes = ""
        _settle(word)
        return following


def _say(tokens: Word, phonemes: str) -> None:
    for token in tokens:
        token.phonemes = ""
    tokens[0].phonemes = phonemes


def _words(tokens: list[Token]) -> list[Word]:
    """Tokens split into parts, with punctuation pronounced, and parts of one word together."""
    words: list[Word] = []
    is_open = False
    currency: str | None = None
    for i, token in enumerate(tokens):
        texts = _SUBTOKEN.findall(token.text) or [token.text]
        parts = [replace(token, text=text, ends_chunk=False) for text in texts]
        parts[-1].ends_chunk = token.ends_chunk
        for j, part in enumerate(parts):
            part.phonemes = _punctuation(part)
            if part.phonemes is not None:
                currency = part.text if part.tag == "$" and part.text in CURRENCIES else currency
                words.append([part])
                is_open = False
                continue
            is_last = j + 1 == len(parts)
            if currency is not None:
                if part.tag != "CD":
                    currency = None
                elif is_last and (i + 1 == len(tokens) or tokens[i + 1].tag != "CD"):
                    part.currency, currency = currency, None
            elif (
                part.text == "2" and j > 0 and not is_last and (texts[j - 1][-1] + texts[j + 1][0]).isalpha()
            ):
                words.append([replace(part, text="to")])
                is_open = False
                continue
            if is_open and not words[-1][-1].ends_chunk:
                part.is_head = False
                words[-1].append(part)
            else:
                words.append([part])
                is_open = not part.ends_chunk
    return words


def _punctuation(part: Token) -> str | None:
    """Phonemes of a part that is no word."""
    if part.tag == "$" and part.text in CURRENCIES:
        return ""
    if part.tag == ":" and set(part.text) <= {"-", "–"}:
        return "—"
    if part.tag in _PUNCTUATION_TAGS and not all("a" <= letter.lower() <= "z" for letter in part.text):
        return _SAID_FOR_TAG.get(part.tag, "".join(letter for letter in part.text if letter in PUNCTUATION))
    return None


def _merged(tokens: Word) -> Token:
    """The parts as one token, with the tag of the part that has most letters and capitals."""
    weightiest = max(tokens, key=lambda token: sum(1 if c == c.lower() else 2 for c in token.text))
    currencies = [token.currency for token in tokens if token.currency is not None]
    currency = max(currencies, default=None)
    text = "".join(token.text for token in tokens)
    return replace(tokens[0], text=text, tag=weightiest.tag, currency=currency, phonemes=None)


def _joined(word: Word) -> str:
    phonemes = ""
    for token in word:
        if token.apart and phonemes and not phonemes[-1].isspace() and token.phonemes:
            phonemes += " "
        phonemes += token.phonemes or ""
    return phonemes


def _following(before: Following, phonemes: str | None, text: str, tag: str) -> Following:
    vowel = before.vowel
    for letter in phonemes or "":
        if letter in _PAUSES:
            vowel = None
            break
        if letter in VOWELS or letter in _CONSONANTS:
            vowel = letter in VOWELS
            break
    return Following(vowel, text in ("to", "To") or (text == "TO" and tag in ("TO", "IN")))


def _settle(word: Word) -> None:
    """Parts that stand apart (`B52`, `and/or`), or else one stress for the word."""
    text = "".join(token.text for token in word)
    kinds = {0 if c.isalpha() else 1 if is_digits(c) else 2 for c in text if c not in _SILENT}
    apart = "/" in text or len(kinds) > 1
    for i, token in enumerate(word):
        if token.phonemes is None:
            if i == len(word) - 1 and token.text in _PAUSES:
                token.phonemes = token.text
            elif set(token.text) <= _SILENT:
                token.phonemes = ""
        elif i > 0:
            token.apart = apart
    if apart:
        return
    heard = [
        (PRIMARY in token.phonemes, _weight(token.phonemes), i)
        for i, token in enumerate(word)
        if token.phonemes
    ]
    if len(heard) == 2 and len(word[heard[0][2]].text) == 1:
        _weaken(word[heard[1][2]])
    elif len(heard) > 1 and sum(is_primary for is_primary, _, _ in heard) > (len(heard) + 1) // 2:
        for _, _, i in sorted(heard)[: len(heard) // 2]:
            _weaken(word[i])


def _weaken(token: Token) -> None:
    token.phonemes = stressed(token.phonemes, -0.5)


def _weight(phonemes: str) -> int:
    return sum(2 if letter in _DIPHTHONGS else 1 for letter in phonemes)
