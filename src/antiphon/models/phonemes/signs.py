"""What the signs between numbers and words are said as: minus, to, times, per."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from antiphon.models.phonemes.units import find_unit_alone, unit_name

BETWEEN = {
    "=": "equals",
    "×": "times",
    "*": "times",
    "÷": "divided by",
    "+": "plus",
    "−": "minus",
    "±": "plus or minus",
    "^": "to the power of",
    "<": "is less than",
    ">": "is greater than",
    "≤": "is at most",
    "≥": "is at least",
    "≈": "is about",
    "≠": "is not",
    "~": "to",
    "→": "to",
}
"""Signs between two things that one can reckon with."""
BEFORE = {
    "−": "minus",
    "+": "plus",
    "±": "plus or minus",
    "~": "about",
    "≈": "about",
    "<": "less than",
    ">": "more than",
    "≤": "at most",
    "≥": "at least",
    "=": "equals",
    "#": "number",
    "§": "section",
    "√": "the square root of",
}
"""Signs before a number that nothing stands before."""
_ANYWHERE = {
    "+": "plus",
    "=": "equals",
    "&": "and",
    "@": "at",
    "%": "percent",
    "‰": "per mille",
    "∞": "infinity",
}
ALWAYS_A_SUM = frozenset("=×÷^*−")
_BEGINS_A_NUMBER = frozenset("-−+±√(")
_NO_RANGE = re.compile(r"[79]-11|7\d7-\d+")
COUNTED = ("number", "quantity", "money", "percent", "time", "date", "fraction", "vulgar", "power")


@dataclass(slots=True)
class Element:
    """kind      a group of `_ELEMENT`, "money", "quantity" or "percent"
    text      as it is written
    said      in words; "" if it is silent
    is_plain  the lexicon says it as well in its place
    """

    kind: str
    text: str
    said: str
    is_plain: bool = True


def say_signs(elements: list[Element], core: str, behind: str, *, is_in_a_sum: bool) -> None:
    """Says what the signs between the elements of `core` are read as. behind: the run before it, "" where
    there is none; is_in_a_sum: signs beside it say so."""
    is_sum = is_in_a_sum or any(
        element.text in ALWAYS_A_SUM and 0 < i < len(elements) - 1 for i, element in enumerate(elements)
    )
    hyphens = sum(element.text in ("-", "–") for element in elements)
    is_verse = hyphens > 0 or _is_name(behind)
    is_range = hyphens == 1 and not _NO_RANGE.fullmatch(core)
    for i, element in enumerate(elements):
        left = elements[i - 1] if i else None
        right = elements[i + 1] if i + 1 < len(elements) else None
        if element.text == "%" and left is not None and left.kind == "number":
            element.kind, element.said = "percent", "percent"
        elif element.kind == "sign":
            is_named = i > 1 and elements[i - 2].kind == "letters"
            if element.text != ":" or not is_verse:
                _say(element, left, right, is_sum=is_sum, is_range=is_range and not is_named)
        elif element.kind == "fraction" and is_sum and element.is_plain:
            element.said, element.is_plain = element.text.replace("/", " divided by "), False
        elif element.text == "x" and _are_counted(left, right) and left is not None and left.text != "0":
            element.said, element.is_plain = "by", False


def _say(sign: Element, left: Element | None, right: Element | None, *, is_sum: bool, is_range: bool) -> None:
    text = sign.text
    is_between = left is not None and right is not None
    counted = _are_counted(left, right)
    follows = right is not None and right.kind in COUNTED
    said: str | None = None
    if text in ("-", "–"):
        if is_sum and is_between and left is not None and left.kind != "sign":
            said = "minus"
        elif counted and left is not None and right is not None:
            is_to = is_range and (text == "–" or _is_range(left, right))
            said = "to" if is_to else None
        elif follows and (left is None or left.kind == "sign"):
            sign.said = "minus"
    elif text == "/":
        if left is not None and right is not None and right.kind == "letters":
            unit = find_unit_alone(right.text)
            is_rate = left.kind in ("money", "quantity", "percent") or (left.kind == "number" and unit)
            said = "per" if is_rate else None
            if said and unit:
                right.said = unit_name(unit, is_one=True)
        elif counted and is_sum:
            said = "divided by"
    elif text == ":":
        is_ratio = counted and left is not None and right is not None
        said = "to" if is_ratio and _is_short(left) and _is_short(right) else None
    elif text == ",":
        if counted:
            sign.kind, sign.is_plain = "comma", False
    elif text in BETWEEN and _can_be_reckoned(left) and _can_be_reckoned(right, is_right=True):
        said = BETWEEN[text]
    elif text in BEFORE and follows:
        said = BEFORE[text]
    else:
        sign.said = _ANYWHERE.get(text, "")
    if said is not None:
        sign.said = said
        sign.is_plain = sign.is_plain and text == "+"


def _are_counted(left: Element | None, right: Element | None) -> bool:
    return left is not None and right is not None and left.kind in COUNTED and right.kind in COUNTED


def _can_be_reckoned(element: Element | None, *, is_right: bool = False) -> bool:
    """A number, a variable, or what begins one."""
    if element is None:
        return False
    is_begun = is_right and element.text in _BEGINS_A_NUMBER
    return element.kind in COUNTED or (element.kind == "letters" and len(element.text) == 1) or is_begun


def _is_short(element: Element | None) -> bool:
    return element is not None and len(element.text) <= 3


def _is_range(left: Element, right: Element) -> bool:
    """Of two numbers with a hyphen between them: `3-5` and `1914-18`, but not the score 3-1 or the telephone
    555-1234."""
    if left.kind != "number" or right.kind == "time":
        return True
    return ascends(left.text, right.text)


def ascends(left: str, right: str) -> bool:
    bare = [number.replace(",", "") for number in (left, right)]
    if not all(re.fullmatch(r"\d+(?:\.\d+)?", number) for number in bare):
        return False
    if any(re.match(r"0\d", number) for number in bare):
        return False
    sizes = tuple(len(number) for number in bare)
    if sizes == (4, 2) and bare[0].isdecimal() and int(bare[0][2:]) < int(bare[1]):
        return True
    is_telephone = sizes == (3, 4) and left.isdecimal() and right.isdecimal()
    return not is_telephone and Decimal(bare[0]) < Decimal(bare[1])


def _is_name(word: str) -> bool:
    """Such as a book's, before a chapter and a verse."""
    return len(word) > 1 and word.isalpha() and word.istitle() and word not in ("The", "An", "Ratio")
