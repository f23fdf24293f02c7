"""From misaki's alphabet, a character a sound, to the IPA that espeak prints and Piper's voices learnt
from."""

from __future__ import annotations

import re

STRESSES = "ˈˌ"
VOWELS = frozenset("AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻɐ")

_ALWAYS = {
    "A": "eɪ",
    "I": "aɪ",
    "O": "oʊ",
    "W": "aʊ",
    "Y": "ɔɪ",
    "ʤ": "dʒ",
    "ʧ": "tʃ",
    "T": "ɾ",
    "ʔ": "t",
    "ᵊ": "ə",
    "u": "uː",
    "ɑ": "ɑː",
    "ɔ": "ɔː",
    "ɜ": "ɜː",
    '"': "",
    "“": "",
    "”": "",
    "‘": "",
    "’": "",
}
PAUSES = ",;:.!?"
"""The only signs beside sounds that espeak prints: what a voice was taught. Any other is noise to it."""
_UNLESS_A_VOWEL_FOLLOWS = {"ɜɹ": "ɜː", "əɹ": "ɚ"}
_TRAILING = ".,;:!?\")'”’—…"


def to_ipa(phonemes: str) -> str:
    """misaki's phonemes in espeak's IPA; words stay apart, and of punctuation what is a pause: dashes and
    dots too, and brackets around words."""
    words = re.sub(" {2,}", " ", " ".join(_word(word) for word in phonemes.split(" "))).strip()
    words = re.sub(r"(?<=\w)[()]+(?=\w)", "", words)
    words = re.sub(r"[()]+", ",", words)
    words = re.sub(r"[—–…]+(?=\w)", "; ", words)
    words = re.sub(r"[—–…]+", ";", words)
    return re.sub(rf"[{PAUSES}]{{2,}}", _strongest, words)


def _strongest(pauses: re.Match[str]) -> str:
    return next((pause for pause in pauses.group() if pause in ".!?"), pauses.group()[0])


def _word(word: str) -> str:
    pieces: list[str] = []
    index = 0
    while index < len(word):
        pair = _UNLESS_A_VOWEL_FOLLOWS.get(word[index : index + 2])
        if pair is not None and word[index + 2 : index + 3] not in VOWELS:
            pieces.append(pair)
            index += 2
            continue
        letter = word[index]
        if letter == "i" and _is_long(word, index):
            letter = "iː"
        pieces.append(_ALWAYS.get(letter, letter))
        index += 1
    return "".join(pieces)


def _is_long(word: str, index: int) -> bool:
    """Is this `i` that of `see`, and not that of `happy`?

    Long in the stressed syllable, before the only stress, and as the only vowel of a word without stress;
    never before `ə`.
    """
    if word[index + 1 : index + 2] == "ə":
        return False
    stressed = max((i for i in range(index) if word[i] in STRESSES), default=None)
    if stressed is not None:
        return not any(letter in VOWELS for letter in word[stressed + 1 : index])
    if any(letter in STRESSES for letter in word[index + 1 :]):
        return True
    core = word.rstrip(_TRAILING)
    return not any(letter in VOWELS for i, letter in enumerate(core) if i != index)
