"""Numbers as English words."""

from __future__ import annotations

import re

_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_NAMES_OF_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
ONES = tuple(_NAMES.split())
TENS = ("", "", *_NAMES_OF_TENS.split())
SCALES = ("", "thousand", "million", "billion", "trillion", "quadrillion")
IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def cardinal(value: int) -> str:
    """`one thousand, two hundred and three`; digit by digit where there is no name for so large a number."""
    if value < 1000:
        return _under_thousand(value)
    groups: list[int] = []
    rest = value
    while rest:
        rest, group = divmod(rest, 1000)
        groups.append(group)
    if len(groups) > len(SCALES):
        return digits(str(value))
    parts = [
        f"{_under_thousand(group)} {SCALES[power]}".strip()
        for power, group in reversed(list(enumerate(groups)))
        if group
    ]
    if len(parts) > 1 and 0 < groups[0] < 100:
        return f"{', '.join(parts[:-1])} and {parts[-1]}"
    return ", ".join(parts)


def ordinal(value: int) -> str:
    """`twenty-first`."""
    words = cardinal(value)
    last = re.split(r"[^a-z]", words)[-1]
    return words[: len(words) - len(last)] + (
        IRREGULAR_ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    )


def year(value: int) -> str:
    """Of four digits, in pairs: `nineteen eighty-four`, `nineteen hundred`, `two thousand and six`."""
    high, low = divmod(value, 100)
    if high == 0 or (high % 10 == 0 and low < 10):
        return cardinal(value)
    if low == 0:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} oh-{cardinal(low)}" if low < 10 else f"{cardinal(high)} {cardinal(low)}"


def decimal(text: str) -> str:
    """Of digits with a point: `three point one four`."""
    whole, _, fraction = text.partition(".")
    parts = [cardinal(int(whole))] if whole else []
    return " ".join([*parts, "point", digits(fraction)]) if fraction else " ".join(parts)


def digits(text: str) -> str:
    """One by one."""
    return " ".join(ONES[int(digit)] for digit in text)


def _under_hundred(value: int) -> str:
    if value < len(ONES):
        return ONES[value]
    tens, ones = divmod(value, 10)
    return f"{TENS[tens]}-{ONES[ones]}" if ones else TENS[tens]


def _under_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    if not hundreds:
        return _under_hundred(rest)
    return f"{ONES[hundreds]} hundred" + (f" and {_under_hundred(rest)}" if rest else "")
