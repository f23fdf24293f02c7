"""What is written short, as a person reads it: abbreviations, Roman numbers behind names, and addresses of
the web and of mail."""

from __future__ import annotations

import re
from dataclasses import dataclass

from antiphon.models.phonemes.numbers import cardinal, ordinal
from antiphon.models.phonemes.tokens import CLOSED_CLASS

BEFORE_A_NAME = {
    "St": "Saint",
    "Mt": "Mount",
    "Ft": "Fort",
    "Prof": "Professor",
    "Gen": "General",
    "Gov": "Governor",
    "Sen": "Senator",
    "Rep": "Representative",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Col": "Colonel",
    "Sgt": "Sergeant",
    "Adm": "Admiral",
    "Rev": "Reverend",
}
BEHIND_A_NAME = {
    "St": "Street",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Rd": "Road",
    "Jr": "Junior",
    "Sr": "Senior",
    "Inc": "Inc",
    "Ltd": "Limited",
    "Corp": "Corporation",
    "Co": "Company",
    "Bros": "Brothers",
}
BEFORE_A_NUMBER = {
    "No": "number",
    "Fig": "figure",
    "fig": "figure",
    "Vol": "volume",
    "p": "page",
    "pp": "pages",
}
MONTHS = {
    "Jan": "January",
    "Feb": "February",
    "Mar": "March",
    "Apr": "April",
    "Jun": "June",
    "Jul": "July",
    "Aug": "August",
    "Sep": "September",
    "Sept": "September",
    "Oct": "October",
    "Nov": "November",
    "Dec": "December",
}
"""Beside a number, with a point or without."""
_WITHOUT_A_POINT = ("St", "Mt", "Jr", "Sr")
_ROMAN = re.compile(r"(?=..)X{0,3}(?:IX|IV|V?I{0,3})")
_VALUES = {"I": 1, "V": 5, "X": 10}
_RULERS = frozenset(
    re.findall(
        r"\w+",
        """Alexander Benedict Catherine Charles Edward Elizabeth Francis Frederick George Gregory Henry
        Innocent James John Leo Louis Mary Napoleon Nicholas Paul Peter Philip Pius Ramses Richard Urban
        Wilhelm William""",
    )
)
_TOP_LEVELS = "com|org|net|edu|gov|info|dev|app|io|ai"
_ADDRESS = re.compile(
    rf"(?:https?://|www\.)\S+|[^\s@/]+@[\w-]+(?:\.[\w-]+)+|[\w-]+(?:\.[\w-]+)*\.(?:{_TOP_LEVELS})(?:/\S*)?"
)
_SIGNS_OF_ADDRESSES = {".": " dot ", "/": " slash ", "@": " at ", ":": " "}


@dataclass(frozen=True, slots=True)
class Beside:
    """The runs before and behind one; "" where there is none, or more than a point behind this one parts
    them."""

    previous: str
    following: str


def address(core: str) -> str | None:
    """`https://www.example.com/a?b=c` without what people leave out; None: it is none."""
    if _ADDRESS.fullmatch(core) is None:
        return None
    bare = re.sub(r"^(?:https?://)?(?:www\.)?", "", re.split(r"[?#]", core)[0]).rstrip("/")
    return re.sub(r"[./@:]", lambda sign: _SIGNS_OF_ADDRESSES[sign[0]], bare)


def abbreviation(core: str, beside: Beside, *, has_point: bool) -> str | None:
    """None: it is none, or stands where it means something else."""
    previous, following = beside.previous, beside.following
    if core in MONTHS and (following[:1].isdecimal() or previous[:1].isdecimal()):
        return MONTHS[core]
    if not has_point and core not in _WITHOUT_A_POINT:
        return None
    if core in BEFORE_A_NAME and following[:1].isupper() and following.lower() not in CLOSED_CLASS:
        return BEFORE_A_NAME[core]
    if core in BEHIND_A_NAME and (previous[:1].isupper() or previous[:1].isdecimal()):
        return BEHIND_A_NAME[core]
    return BEFORE_A_NUMBER.get(core) if following[:1].isdecimal() else None


def roman_number(core: str, previous: str) -> str | None:
    """`World War II`, `Henry VIII`; a single letter is a number only where nothing else can be meant."""
    is_ruler = previous in _RULERS
    is_letter = (core == "I" and previous == "War") or (core in ("V", "X") and is_ruler)
    if not is_letter and _ROMAN.fullmatch(core) is None:
        return None
    if not previous.istitle() or len(previous) < len("Act") or previous.lower() in CLOSED_CLASS:
        return None
    digits = [_VALUES[letter] for letter in core]
    value = sum(-digit if digit < max(digits[i:]) else digit for i, digit in enumerate(digits))
    return f"the {ordinal(value)}" if is_ruler else cardinal(value)
