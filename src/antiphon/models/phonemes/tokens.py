"""Text to tokens with a part of speech, as far as pronunciation depends on it.

Tags are Penn's. A wrong one on an ordinary word changes nothing: they tell punctuation, a dozen function
words, and pairs such as the noun and the verb "use" apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

PUNCTUATION = frozenset(';:,.!?—…"“”')
SYMBOL_WORDS = {"%": "percent", "&": "and", "+": "plus", "@": "at"}

_TAGGED = {
    "DT": "a an the this these those every each another any some no both either neither",
    "PDT": "all",
    "JJ": "such",
    "TO": "to",
    "IN": (
        "that of in on at by for with from into about as than if while though although because since "
        "until unless upon over under between among through during without within against toward "
        "towards before after behind beyond near per via despite above below across along around "
        "beside besides beneath throughout"
    ),
    "CC": "and or but nor yet",
    "PRP": (
        "i you he she it we they me him us them myself yourself himself herself itself ourselves themselves"
    ),
    "PRP$": "my your his its our their her",
    "MD": "can could will would shall should may might must",
    "VBP": "am are have do",
    "VBZ": "is has does",
    "VBD": "was were had did",
    "VB": "be",
    "VBN": "been done",
    "VBG": "being having doing",
    "RB": (
        "so not never very too also just only then now again still quite rather almost always often "
        "here well even much"
    ),
    "RBR": "more less",
    "RBS": "most least",
    "EX": "there",
    "WRB": "when where why how",
    "WP": "who whom what",
    "WP$": "whose",
    "WDT": "which",
}
CLOSED_CLASS = {word: tag for tag, words in _TAGGED.items() for word in words.split()}
"""Words that are no names, however they are written."""
_ADVERBS = ("RB", "RBR", "RBS")
_AUXILIARIES = "have has had having is are was were be been being"
_PERFECT = frozenset(_AUXILIARIES.split())

_PUNCTUATION_TAGS = {
    **dict.fromkeys(".!?", "."),
    **dict.fromkeys(";:-–—…", ":"),
    **dict.fromkeys("([{", "-LRB-"),
    **dict.fromkeys(")]}", "-RRB-"),
    **dict.fromkeys("$£€", "$"),
    **dict.fromkeys("“‘", "``"),
    **dict.fromkeys("”’", "''"),
    ",": ",",
    "#": "#",
}
_QUOTES = frozenset('"“”')
_PREFIXES = '"`([{“‘«¿¡$£€#*…'
_SUFFIXES = '.,;:!?")]}”»…%*`'
_DASH = re.compile(r"(?<=\w)(-{2,}|[–—…]|\.{3,})(?=\w)")
"""That no space parts from the words around it."""
_ABBREVIATED = (
    "Mr. Mrs. Ms. Dr. Prof. St. Jr. Sr. Esq. Rev. Gen. Gov. Sen. Rep. Capt. Lt. Col. Sgt. Adm. Mt. Ft. Co. "
    "Corp. Inc. Ltd. Bros. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec. etc. vs. e.g. i.e. "
    "a.m. p.m."
)
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_SHORT_PART = 3
"""Initialisms are written in parts shorter than this: `U.S.`, `e.g.`."""


@dataclass(slots=True)
class Token:
    """chunk      which run of text without white space it is part of
    ends_chunk  white space follows, or the text ends
    is_head     it begins a word; else it goes on with one
    currency    the sign before an amount
    apart       its phonemes stand apart from those before it in its word
    """

    text: str
    tag: str
    chunk: int
    ends_chunk: bool = False
    phonemes: str | None = None
    is_head: bool = True
    currency: str | None = None
    apart: bool = False


def tokenise(text: str) -> tuple[list[tuple[int, int]], list[Token]]:
    """[start, end) of every chunk, and the tokens."""
    chunks = [found.span() for found in re.finditer(r"\S+", text)]
    tokens: list[Token] = []
    is_open, is_first = True, True
    for number, (start, end) in enumerate(chunks):
        pieces = _split(text[start:end])
        for index, (piece, position) in enumerate(pieces):
            tag = _tag(piece, position, is_first, is_open)
            if tag in ("``", "''"):
                is_open = tag == "''"
            is_first = tag == "." or (is_first and tag in ("``", "-LRB-"))
            tokens.append(Token(piece, tag, number, index == len(pieces) - 1))
    _retag_verbs(tokens)
    _retag_that(tokens)
    _retag_letters(tokens)
    return chunks, tokens


def is_digits(text: str) -> bool:
    """ASCII digits, and at least one."""
    return text.isascii() and text.isdecimal()


def is_number(word: str, is_head: bool) -> bool:
    """Digits with commas and points, a sign if it begins a word, and perhaps a suffix such as `th`."""
    if not any(is_digits(letter) for letter in word):
        return False
    for suffix in ("ing", "'d", "ed", "'s", "st", "nd", "rd", "th", "s"):
        if word.endswith(suffix):
            word = word[: -len(suffix)]
            break
    body = word[1:] if is_head and word.startswith("-") else word
    return all(is_digits(letter) or letter in ",." for letter in body)


def is_initialism(word: str) -> bool:
    """`U.S.`, `e.g.`."""
    letters = word.replace(".", "").isalpha()
    return "." in word.strip(".") and letters and len(max(word.split("."), key=len)) < _SHORT_PART


def _split(chunk: str) -> list[tuple[str, str]]:
    """(piece, "prefix", "core" or "suffix"): punctuation around a word, a character a piece."""
    before: list[str] = []
    after: list[str] = []
    core = chunk
    while len(core) > 1:
        if core[0] in _PREFIXES:
            before.append(core[0])
            core = core[1:]
        elif core[-1] in _SUFFIXES and not _keeps_last(core):
            after.append(core[-1])
            core = core[:-1]
        else:
            break
    cores = [part for part in _DASH.split(core) if part]
    return [
        *((piece, "prefix") for piece in before),
        *((piece, "core") for piece in cores),
        *((piece, "suffix") for piece in reversed(after)),
    ]


def _keeps_last(word: str) -> bool:
    """The point of an abbreviation, or the bracket of `dog(s)`."""
    if word.endswith(")"):
        return "(" in word
    known = word in _ABBREVIATIONS or word.lower() in _ABBREVIATIONS
    return word.endswith(".") and (known or is_initialism(word))


def _tag(text: str, position: str, is_first: bool, is_open: bool) -> str:
    if not any(letter.isalnum() for letter in text):
        return _punctuation_tag(text, position, is_open)
    if is_number(text, True):
        return "CD"
    if text == "I":
        return "PRP"
    closed = CLOSED_CLASS.get(text.lower())
    if closed is not None:
        return closed
    return "NNP" if text[:1].isupper() and not is_first else "NN"


def _punctuation_tag(text: str, position: str, is_open: bool) -> str:
    if text in SYMBOL_WORDS:
        return "NN"
    if set(text) <= _QUOTES:
        if text in ("“", "”"):
            return "``" if text == "“" else "''"
        opens = position == "prefix" or (position == "core" and is_open)
        return "``" if opens else "''"
    if set(text) == {"'"}:
        return "''"
    tags = {_PUNCTUATION_TAGS.get(letter, "NFP") for letter in text}
    return tags.pop() if len(tags) == 1 else "NFP"


def _retag_that(tokens: list[Token]) -> None:
    """`that cup` is stressed, `that I saw` is not."""
    for token, following in pairwise(tokens):
        if token.text.lower() == "that" and token.tag == "IN" and following.tag.startswith(("NN", "JJ")):
            token.tag = "DT"


def _retag_letters(tokens: list[Token]) -> None:
    """`"a"` is the letter, in quotes of its own."""
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_quoted = before.tag == "``" and after.chunk == token.chunk and not after.text[0].isalnum()
        if is_quoted and token.text in ("a", "A"):
            token.tag = "NN"


def _retag_verbs(tokens: list[Token]) -> None:
    """What follows `to` or `will` is a verb, what follows `had` or `was` a participle."""
    tag, text = "", ""
    for token in tokens:
        if token.tag in ("NN", "JJ"):
            if tag in ("TO", "MD"):
                token.tag = "VB"
            elif text in _PERFECT:
                token.tag = "VBN"
        if token.tag not in _ADVERBS:
            tag, text = token.tag, token.text.lower()
