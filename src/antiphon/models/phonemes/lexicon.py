"""Words of the dictionaries, their regular forms, special cases and numbers, with stress.

Phonemes are in misaki's alphabet, a character a sound. Entries are a pronunciation, or one per part of
speech.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.models.phonemes import numbers
from antiphon.models.phonemes.tokens import SYMBOL_WORDS, Token, is_digits, is_initialism, is_number

PRIMARY, SECONDARY = "ˈ", "ˌ"
STRESSES = (PRIMARY, SECONDARY)
VOWELS = frozenset("AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻ")
_FLAPS_AFTER = frozenset("AIOWYiuæɑəɛɪɹʊʌ")
_MOST_DIGITS = 1000
"""Python reads no number of more than 4300."""
CURRENCIES = {"$": ("dollar", "cent"), "£": ("pound", "pence"), "€": ("euro", "cent")}
ORDINAL_SUFFIXES = ("st", "nd", "rd", "th")
_CAPITALISED, _ALL_CAPITALS = 0.5, 2
_NEVER_LOWERED = 7
"""A name of up to so many letters is not looked up as the common word that it may be."""


@dataclass(frozen=True, slots=True)
class Following:
    """What comes after a word.

    vowel  its first sound is one; None if punctuation or nothing comes
    is_to  it is `to`
    """

    vowel: bool | None = None
    is_to: bool = False


def stressed(phonemes: str | None, stress: float | None) -> str | None:
    """With more stress or less: -2 none, -1 and -0.5 at most secondary, 0 to 1 at least that, 2 primary."""
    if phonemes is None or stress is None:
        return phonemes
    if stress < -1:
        return phonemes.replace(PRIMARY, "").replace(SECONDARY, "")
    if stress == -1 or (stress in (0, -0.5) and PRIMARY in phonemes):
        return phonemes.replace(SECONDARY, "").replace(PRIMARY, SECONDARY)
    has_any = any(mark in phonemes for mark in STRESSES)
    if stress >= 0 and not has_any:
        return _before_first_vowel(phonemes, SECONDARY if stress <= 1 else PRIMARY)
    if stress >= 1 and PRIMARY not in phonemes:
        return phonemes.replace(SECONDARY, PRIMARY)
    return phonemes


def _before_first_vowel(phonemes: str, mark: str) -> str:
    first = next((i for i, letter in enumerate(phonemes) if letter in VOWELS), None)
    return phonemes if first is None else phonemes[:first] + mark + phonemes[first:]


class _Dictionary:
    """A word is found as written, capitalised where the entry is not, and the other way round."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries

    def __contains__(self, word: str) -> bool:
        return self._key(word) in self._entries

    def get(self, word: str) -> Any:
        return self._entries.get(self._key(word))

    def _key(self, word: str) -> str:
        if word in self._entries or len(word) < 2:
            return word
        lower, capitalised = word.lower(), word.capitalize()
        if word == capitalised:
            return lower
        return capitalised if word == lower else word


class Lexicon:
    """American English.

    checked   entries that people have looked at
    guessed   the second choice
    """

    def __init__(self, checked: Mapping[str, Any], guessed: Mapping[str, Any]) -> None:
        self._checked, self._guessed = _Dictionary(dict(checked)), _Dictionary(dict(guessed))
        lacking = [word for word in ("am", "to", "used") if word not in self._checked]
        if lacking:
            raise ValueError(f"dictionary entries {lacking}")

    def pronounce(self, token: Token, text: str, following: Following) -> str | None:
        """Of a token that is written `text`; None if no rule knows it."""
        word = unicodedata.normalize("NFKC", text.replace("‘", "'").replace("’", "'"))
        word = "".join(_ascii_digit(letter) for letter in word)
        stress = None
        if word != word.lower():
            stress = _ALL_CAPITALS if word == word.upper() else _CAPITALISED
        found = self._word(word, token.tag, stress, following)
        if found is not None:
            return self._with_currency(found, token.currency)
        return self._number(word, token.currency, token.is_head) if is_number(word, token.is_head) else None

    def _word(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        special = self._special(word, tag, stress, following)
        if special is not None:
            return special
        if self._is_common_word_in_capitals(word, tag, stress, following):
            word = word.lower()
        for candidate in (word, f"{word[:-2]}'s" if word.endswith("s'") else "", word.removesuffix("'")):
            if candidate and self._is_known(candidate):
                return self._lookup(candidate, tag, stress, following)
        return self._inflected(word, tag, stress, following)

    def _is_common_word_in_capitals(
        self, word: str, tag: str, stress: float | None, following: Following
    ) -> bool:
        lower = word.lower()
        return (
            len(word) > 1
            and word.replace("'", "").isalpha()
            and word != lower
            and (tag != "NNP" or len(word) > _NEVER_LOWERED)
            and word not in self._checked
            and word not in self._guessed
            and (word == word.upper() or word[1:] == word[1:].lower())
            and (
                lower in self._checked
                or lower in self._guessed
                or bool(self._inflected(lower, tag, stress, following, plain_ing=True))
            )
        )

    def _special(self, word: str, tag: str, stress: float | None, following: Following) -> str | None:
        if word in SYMBOL_WORDS:
            return self._lookup(SYMBOL_WORDS[word], None, None, following)
        if is_initialism(word):
            return self._letters(word)
        match word:
            case "a" | "A":
                return "ɐ" if tag == "DT" else f"{PRIMARY}A"
            case "am" | "Am" | "AM":
                if tag.startswith("NN"):
                    return self._letters(word)
                is_weak = following.vowel is not None and word == "am" and not (stress and stress > 0)
                return "ɐm" if is_weak else self._checked.get("am")
            case "an" | "An" | "AN":
                return self._letters(word) if word == "AN" and tag.startswith("NN") else "ɐn"
            case "by" | "By" | "BY" if _coarse(tag) == "ADV":
                return "bˈI"
            case "I" if tag == "PRP":
                return f"{SECONDARY}I"
            case "to" | "To" | "TO" if word != "TO" or tag in ("TO", "IN"):
                return (
                    self._checked.get("to") if following.vowel is None else "tʊ" if following.vowel else "tə"
                )
            case "in" | "In" | "IN" if word != "IN" or tag != "NNP":
                return f"{PRIMARY}ɪn" if following.vowel is None or tag != "IN" else "ɪn"
            case "the" | "The" | "THE" if word != "THE" or tag == "DT":
                return "ði" if following.vowel else "ðə"
            case "used" | "Used" | "USED":
                entry = self._checked.get("used")
                is_habit = tag in ("VBD", "JJ") and following.is_to
                return entry if isinstance(entry, str) else entry["VBD" if is_habit else "DEFAULT"]
        if tag == "IN" and word.lower() in ("vs", "vs."):
            return self._lookup("versus", None, None, following)
        return None

    def _is_known(self, word: str) -> bool:
        if word in self._checked or word in self._guessed or word in SYMBOL_WORDS:
            return True
        if not (word.isalpha() and word.isascii()):
            return False
        in_capitals = word == word.upper() and word.lower() in self._checked
        return len(word) == 1 or in_capitals or word[1:] == word[1:].upper()

    def _lookup(
        self, word: str, tag: str | None, stress: float | None, following: Following | None
    ) -> str | None:
        is_name = False
        if word == word.upper() and word not in self._checked:
            word = word.lower()
            is_name = tag == "NNP"
        entry = self._checked.get(word)
        if entry is None and not is_name:
            entry = self._guessed.get(word)
        if isinstance(entry, dict):
            ends = following is not None and following.vowel is None and "None" in entry
            key = "None" if ends else tag if tag in entry else _coarse(tag)
            entry = entry.get(key, entry.get("DEFAULT"))
        if entry is None or (is_name and PRIMARY not in entry):
            spelt = self._letters(word)
            if spelt is not None:
                return spelt
        return stressed(entry, stress)

    def _letters(self, word: str) -> str | None:
        """Spelt out, with the stress on the last letter."""
        names = [self._checked.get(letter.upper()) for letter in word if letter.isalpha()]
        if not names or not all(isinstance(name, str) for name in names):
            return None
        spelt = stressed("".join(names), 0) or ""
        head, _, tail = spelt.rpartition(SECONDARY)
        return f"{head}{PRIMARY}{tail}" if head else spelt

    def _inflected(
        self, word: str, tag: str | None, stress: float | None, following: Following, plain_ing: bool = False
    ) -> str | None:
        found = self._plural(word, tag, stress, following) or self._past(word, tag, stress, following)
        ing = stress if plain_ing or stress is not None else _CAPITALISED
        return found or self._gerund(word, tag, ing, following)

    def _plural(
        self, word: str, tag: str | None, stress: float | None, following: Following | None
    ) -> str | None:
        if len(word) < 3 or not word.endswith("s"):
            return None
        stem = None
        if not word.endswith("ss") and self._is_known(word[:-1]):
            stem = word[:-1]
        elif (
            word.endswith("'s") or (len(word) > 4 and word.endswith("es") and not word.endswith("ies"))
        ) and self._is_known(word[:-2]):
            stem = word[:-2]
        elif len(word) > 4 and word.endswith("ies") and self._is_known(f"{word[:-3]}y"):
            stem = f"{word[:-3]}y"
        return None if stem is None else _with_s(self._lookup(stem, tag, stress, following))

    def _past(self, word: str, tag: str | None, stress: float | None, following: Following) -> str | None:
        if len(word) < 4 or not word.endswith("d"):
            return None
        stem = None
        if not word.endswith("dd") and self._is_known(word[:-1]):
            stem = word[:-1]
        elif len(word) > 4 and word.endswith("ed") and not word.endswith("eed") and self._is_known(word[:-2]):
            stem = word[:-2]
        return None if stem is None else _with_ed(self._lookup(stem, tag, stress, following))

    def _gerund(self, word: str, tag: str | None, stress: float | None, following: Following) -> str | None:
        if len(word) < 5 or not word.endswith("ing"):
            return None
        stem = None
        doubled = re.search(r"([bcdgklmnprstvxz])\1ing$|cking$", word)
        if len(word) > 5 and self._is_known(word[:-3]):
            stem = word[:-3]
        elif self._is_known(f"{word[:-3]}e"):
            stem = f"{word[:-3]}e"
        elif len(word) > 5 and doubled and self._is_known(word[:-4]):
            stem = word[:-4]
        return None if stem is None else _with_ing(self._lookup(stem, tag, stress, following))

    def _with_currency(self, phonemes: str, currency: str | None) -> str:
        pair = CURRENCIES.get(currency or "")
        unit = self._plural(f"{pair[0]}s", None, None, None) if pair else None
        return f"{phonemes} {unit}" if unit else phonemes

    def _number(self, word: str, currency: str | None, is_head: bool) -> str | None:
        found = re.search(r"[a-z']+$", word)
        suffix = found.group() if found else ""
        word = word.removesuffix(suffix)
        said: list[str | None] = []
        if word.startswith("-"):
            said.append(self._lookup("minus", None, None, None))
            word = word[1:]
        pair = CURRENCIES.get(currency or "")
        is_ordinal = is_digits(word) and suffix in ORDINAL_SUFFIXES
        if pair and is_head and len(word) <= _MOST_DIGITS and _is_amount(word) and not is_ordinal:
            said += self._amount(word, *pair)
            return _suffixed(" ".join(part for part in said if part), suffix)
        for spelt in _spelt(word, suffix, is_head, can_be_year=not said and not pair):
            said += [
                self._lookup(part, None, -2 if part == "point" else None, None)
                for part in re.split(r"[^a-zO]+", spelt)
                if part and part != "and"
            ]
        return _suffixed(" ".join(part for part in said if part), suffix) if said else None

    def _amount(self, word: str, unit: str, part_of_unit: str) -> list[str | None]:
        amounts = [int(number) if number else 0 for number in word.replace(",", "").split(".")]
        pairs = list(zip(amounts, (unit, part_of_unit), strict=False))
        if len(pairs) > 1:
            pairs = pairs[:1] if pairs[1][0] == 0 else pairs[1:] if pairs[0][0] == 0 else pairs
        said: list[str | None] = []
        for index, (amount, name) in enumerate(pairs):
            if index:
                said.append(self._lookup("and", None, None, None))
            words = re.split(r"[^a-z]+", numbers.cardinal(amount))
            said += [self._lookup(part, None, None, None) for part in words if part and part != "and"]
            is_plural = amount != 1 and name != "pence"
            said.append(
                self._plural(f"{name}s", None, None, None)
                if is_plural
                else self._lookup(name, None, None, None)
            )
        return said


def _spelt(word: str, suffix: str, is_head: bool, *, can_be_year: bool) -> list[str]:
    """A number as words, in parts. Within a word (`B52`) it is read as people read a room number."""
    if len(word) > _MOST_DIGITS:
        return [numbers.digits(re.sub(r"\D", "", word))]
    is_ordinal = suffix in ORDINAL_SUFFIXES
    if is_digits(word) and is_ordinal:
        return [numbers.ordinal(int(word))]
    if can_be_year and len(word) == 4 and is_digits(word):
        return [numbers.year(int(word))]
    bare = word.replace(",", "")
    if not is_head and "." not in word:
        if bare[0] == "0" or len(bare) > 3:
            return [numbers.digits(bare)]
        if len(bare) == 3 and not bare.endswith("00"):
            rest = (
                ["O", numbers.cardinal(int(bare[2]))] if bare[1] == "0" else [numbers.cardinal(int(bare[1:]))]
            )
            return [numbers.cardinal(int(bare[0])), *rest]
        return [numbers.cardinal(int(bare))]
    if word.count(".") > 1 or not is_head:
        return [_between_points(part) for part in bare.split(".") if part]
    if is_digits(bare):
        return [numbers.ordinal(int(bare)) if is_ordinal else numbers.cardinal(int(bare))]
    return [numbers.decimal(bare)]


def _between_points(part: str) -> str:
    one_by_one = part[0] == "0" or (len(part) != 2 and any(digit != "0" for digit in part[1:]))
    return numbers.digits(part) if one_by_one else numbers.cardinal(int(part))


def _is_amount(word: str) -> bool:
    """Not one with three digits behind the point, which are no cents."""
    if word.count(".") != 1:
        return "." not in word
    cents = word.split(".")[1]
    return len(cents) < 3 or set(cents) == {"0"}


def _ascii_digit(letter: str) -> str:
    if not letter.isdigit():
        return letter
    value = unicodedata.numeric(letter)
    return str(int(value)) if value == int(value) else letter


def _coarse(tag: str | None) -> str | None:
    for start, coarse in (("VB", "VERB"), ("NN", "NOUN"), ("RB", "ADV"), ("JJ", "ADJ")):
        if tag is not None and tag.startswith(start):
            return coarse
    return tag


def _suffixed(phonemes: str, suffix: str) -> str | None:
    if suffix in ("s", "'s"):
        return _with_s(phonemes)
    if suffix in ("ed", "'d"):
        return _with_ed(phonemes)
    return _with_ing(phonemes) if suffix == "ing" else phonemes


def _with_s(stem: str | None) -> str | None:
    if not stem:
        return None
    return stem + ("s" if stem[-1] in "ptkfθ" else "ᵻz" if stem[-1] in "szʃʒʧʤ" else "z")


def _with_ed(stem: str | None) -> str | None:
    if not stem:
        return None
    if stem[-1] != "t":
        return stem + ("t" if stem[-1] in "pkfθʃsʧ" else "ᵻd" if stem[-1] == "d" else "d")
    if len(stem) < 2:
        return f"{stem}ɪd"
    return f"{stem[:-1]}ɾᵻd" if stem[-2] in _FLAPS_AFTER else f"{stem}ᵻd"


def _with_ing(stem: str | None) -> str | None:
    if not stem:
        return None
    return (
        f"{stem[:-1]}ɾɪŋ" if len(stem) > 1 and stem[-1] == "t" and stem[-2] in _FLAPS_AFTER else f"{stem}ɪŋ"
    )
