"""Numbers, dates, durations and amounts of money in words."""

from __future__ import annotations

import re

from antiphon.models.phonemes.lexicon import CURRENCIES as KNOWN_CURRENCIES
from antiphon.models.phonemes.numbers import ordinal
from antiphon.models.phonemes.units import CURRENCIES, DOLLARS

_NAMES_OF_MONTHS = "January February March April May June July August September October November December"
_MONTHS = _NAMES_OF_MONTHS.split()
_PARTS_OF_A_WHOLE = {2: "half", 3: "third", 4: "quarter"}
_MONTHS_OF_A_YEAR, _DAYS_OF_A_MONTH = 12, 31
_LAST_CENTURY = 70
_PARTS_OF_AN_ADDRESS = 4
_LONG = 7
"""Digits in a row without commas that name no amount but a telephone or an account."""

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def am_or_pm(written: str) -> str:
    """As letters, and not as the word `am`."""
    bare = written.replace(".", "")
    return "a.m" if bare.lower() == "am" else bare


def counted(number: str) -> str:
    """Four digits before a unit are no year."""
    if len(number) == 4 and number.isdecimal() and number[0] != "0":
        return f"{number[0]},{number[1:]}"
    return number


def digit_by_digit(text: str, *, is_name: bool) -> str:
    """Long numbers without commas, and codes that begin with zeros; 007 only as part of a name."""
    is_long = len(text) >= _LONG and not text.endswith("000")
    is_code = text[0] == "0" and (len(text) > 3 or (len(text) == 3 and (text[1] != "0" or is_name)))
    return " ".join(text) if text.isdecimal() and (is_long or is_code) else text


def _two_digits(value: int) -> str:
    return f"oh {value}" if 0 < value < 10 else str(value) if value else "oh oh"


def time_of_day(text: str, suffix: str, *, has_noon: bool) -> str:
    """`3:45`; `12:00` is twelve o'clock, `15:00` fifteen hundred. suffix: what is said of the half of the
    day, "" for nothing; has_noon: the half stands in it or behind it."""
    hour, minute, *seconds = (int(part) for part in text.split(":"))
    behind = f" {suffix}" if suffix else ""
    if seconds:
        unit = "second" if seconds[0] == 1 else "seconds"
        return f"{hour} {_two_digits(minute)} and {seconds[0]} {unit}{behind}"
    if minute or hour > 24:
        return f"{hour} {_two_digits(minute)}{behind}"
    if has_noon:
        return f"{hour}{behind}"
    return f"{hour} o'clock" if 1 <= hour <= 12 else f"{hour} hundred"


def duration(text: str) -> str:
    names = {"h": "hour", "m": "minute", "min": "minute", "s": "second", "": ""}
    said: list[str] = []
    for value, unit in re.findall(r"(\d+)([a-z]*)", text):
        name = names[unit] and names[unit] + ("" if value == "1" else "s")
        said.append(f"{value} {name}".strip())
    return " ".join(said)


def date(text: str) -> str:
    """`2026-03-14`."""
    year, month, day = text.split("-")
    return f"{_MONTHS[int(month) - 1]} {ordinal(int(day)).replace('-', ' ')}, {year}"


def date_with_slashes(text: str) -> str | None:
    """`3/14/2026` and, since there is no other way to read it, `14/3/2026`; years of two digits are those
    around 2000. None: it is no date."""
    month, day, year = text.split("/")
    if int(month) > _MONTHS_OF_A_YEAR:
        month, day = day, month
    if not (0 < int(month) <= _MONTHS_OF_A_YEAR and 0 < int(day) <= _DAYS_OF_A_MONTH):
        return None
    if len(year) == 2:
        year = f"{'20' if int(year) < _LAST_CENTURY else '19'}{year}"
    return date(f"{year}-{month}-{day}")


def in_points(text: str) -> str:
    """Of a version, `3.11.7`; of four numbers, an address, `dot` is said."""
    parts = text.split(".")
    return (" dot " if len(parts) == _PARTS_OF_AN_ADDRESS else " point ").join(parts)


def telephone(text: str) -> str:
    """Figure by figure, but for `1-800`."""
    groups = re.split(r"[-.]", text)
    return ", ".join(
        f"{group[0]} hundred" if len(group) == 3 and group.endswith("00") and i == 1 else " ".join(group)
        for i, group in enumerate(groups)
    )


def part_of_a_whole(above: int, below: int) -> str:
    if above == 0:
        return f"zero {ordinal(below)}s"
    name = _PARTS_OF_A_WHOLE.get(below) or ordinal(below)
    if above == 1:
        return f"one {name}"
    return f"{above} {'halves' if below == 2 else f'{name}s'}"


def article(part: str) -> str:
    return part.replace("one ", "a ", 1)


def power(text: str) -> str:
    power = text.translate(SUPERSCRIPTS)
    return {"2": "squared", "3": "cubed"}.get(power) or f"to the power of {power.replace('-', 'minus ')}"


def amount(sign: str, number: str, scale: str, country: str = "") -> str:
    """Of money. `$1.5` are fifty cents more than a dollar. country: before the sign (`units.DOLLARS`)."""
    if scale:
        return f"{number} {scale} {currency(sign, country)}"
    if sign in KNOWN_CURRENCIES and not country:
        return f"{sign}{number}0" if re.fullmatch(r"[\d,]*\.\d", number) else f"{sign}{number}"
    whole, _, cents = number.partition(".")
    if cents == "00":
        return amount(sign, whole, "", country)
    if country and re.fullmatch(r"\d\d", cents):
        said = amount(sign, whole or "0", "", country)
        return f"{said} and {int(cents)} {'cent' if cents == '01' else 'cents'}"
    return f"{counted(number)} {currency(sign, country, is_one=number == '1')}"


def currency(sign: str, country: str, *, is_one: bool = False) -> str:
    one, many = CURRENCIES[sign]
    return f"{DOLLARS[country]} {one if is_one else many}" if country else one if is_one else many
