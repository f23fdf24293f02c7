"""What is written in digits and signs, as a person reads it: times, dates, money, quantities, sums, ranges.

Plain numbers, years, ordinals and amounts such as `$5.20` stay as they are: the lexicon says them as misaki
does. American: `3/4` is no date, a date is said month first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from antiphon.models.phonemes.amounts import (
    SUPERSCRIPTS,
    am_or_pm,
    amount,
    article,
    counted,
    currency,
    date,
    date_with_slashes,
    digit_by_digit,
    duration,
    in_points,
    part_of_a_whole,
    power,
    telephone,
    time_of_day,
)
from antiphon.models.phonemes.shortenings import Beside, abbreviation, address, roman_number
from antiphon.models.phonemes.signs import ALWAYS_A_SUM, BEFORE, BETWEEN, COUNTED, Element, ascends, say_signs
from antiphon.models.phonemes.units import CURRENCIES, DOLLARS, SCALES, find_unit, find_unit_alone, unit_name

_SCALE_WORDS = ("hundred", "thousand", "million", "billion", "trillion")
_SUM_ALONE = frozenset("=×÷±≈≠≤≥")
_AS_MISAKI = frozenset("-_'’‘.,/&@%+")
_MOST_PARTS = 9
_OUT_OF = (10, 100)
_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_ALIKE = str.maketrans(
    {"º": "°", "∗": "*", "⋅": "×", "⁄": "/", "∕": "/", "µ": "μ", "℃": "°C", "℉": "°F", "‒": "–"}
)
_INDIAN = r"\d{1,2}(?:,\d\d){1,4},\d{3}(?![\d,])(?:\.\d+)?"
_NUMBER = rf"{_INDIAN}|\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)*|\.\d+"
_TYPED = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "=", "->": "→", "+/-": "±"}
_OPENING, _CLOSING = "\"'“‘([{*_`«¿¡", ".,;:!?\"'”’)]}*_`»…"
_QUANTITY = re.compile(
    rf"[~≈<>≤≥±+\-−]?(?:\d+/\d+|\d*[{_VULGAR}]|(?:{_NUMBER})(?:[-–~x×](?:{_NUMBER})){{0,2}})"
)
_ONE = re.compile(rf"1|\d+/\d+|[{_VULGAR}]")
_DOLLARS = "|".join(DOLLARS)
_MONEY = re.compile(
    rf"(?:(?<![^\W_])(?P<country>{_DOLLARS})(?=\$))?(?P<sign>[{''.join(CURRENCIES)}])(?:{_NUMBER})(?:[-–](?:{_NUMBER}))?$"
)
_ELEMENT = re.compile(
    rf"(?P<date>(?<!\d)\d{{4}}-(?:0?[1-9]|1[0-2])-(?:0?[1-9]|[12]\d|3[01])(?!\d|-\d))"
    rf"|(?P<time>(?<![\d.,:])[0-5]?\d:[0-5]\d(?::[0-5]\d)?(?![\d:]|[.,]\d))"
    rf"|(?P<height>(?<![\d.,])\d+['’′]\d+(?:[\"″]|(?!\w)))"
    rf"|(?P<duration>(?<![\d.,])(?:\d+h\d+(?:m(?:in)?(?:\d+s)?)?|\d+m(?:in)?\d+s)(?![^\W_]))"
    rf"|(?P<fraction>(?<![\d./])\d+/\d+(?![\d/.]))"
    rf"|(?P<number>(?:{_NUMBER})(?:(?:st|nd|rd|th|['’]?s)(?![^\W_]))?)"
    rf"|(?P<vulgar>[{_VULGAR}])"
    rf"|(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    rf"|(?P<letters>(?:[^\W\d_{_VULGAR}⁰¹²³⁴⁵⁶⁷⁸⁹])+(?:['’][^\W\d_{_VULGAR}⁰¹²³⁴⁵⁶⁷⁸⁹]+)*)"
    rf"|(?P<sign>.)",
    re.DOTALL,
)
_AROUND_AMOUNTS = "".join(CURRENCIES) + "%"
_SCALE = re.compile(
    rf"-?(?P<scale>{'|'.join(sorted([*SCALES, *_SCALE_WORDS], key=len, reverse=True))})(?![^\W_])"
)
_NOON = re.compile(r"[ap]\.?m(?![^\W_])", re.IGNORECASE)
_CLOCK = re.compile(r"\d+:\d\d(?:[ap]m)?|\d*[ap]m", re.IGNORECASE)
_HOUR = re.compile(r"(?:.*[-–:/])?(?:0?[1-9]|1[0-2])(?::[0-5]\d)?")
_TAG = re.compile(r"</?[A-Za-z]+/?>|\]\((?:https?://|www\.|[./#])\S*")
"""Of HTML, and where a link in Markdown leads to."""
_SIGN_BEHIND_MONEY = re.compile(rf"([{''.join(CURRENCIES)}])([-−])(?=\d)")
_UNDER_THOUSANDS = re.compile(r"\D?[1-9]\d{0,2}(?:,000){0,3}")
_THOUSANDS = re.compile(r"000(?![\d.,])")
_FEET, _INCHES = re.compile(r"\d['’′]"), re.compile(r"1?\d[\"”″]")
_DECIMAL_COMMA = re.compile(r"\d+,\d\d?")
_GROUPS = re.compile(r"\d+(?:-\d+){1,2}")
"""Such as 555-0123, where one begins with a zero."""
_TELEPHONE = re.compile(r"(?:\+?1-\d{3}-|\d{3}-)\d{3}-\d{4}|\d{3}\.\d{3}\.\d{4}|\d{3}-\d{2}(?!00)\d{2}")
"""100-1000 is none."""
_AREA_CODE = re.compile(r"\(\d{3}\)")
_SLASHED_DATE = re.compile(r"\d{1,2}/\d{1,2}/(?:\d{4}|\d\d)")
_POINTED_DATE = re.compile(r"\d\d?\.\d\d?\.\d{4}")
"""Such as 27.11.2026, which is said as misaki says it."""
_POINTED_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3}){2}")
_MODEL = re.compile(r"-\d+(?!\w)")
"""Behind a letter that else is a unit: the oil 5W-30."""
_IN_MILLIONS = frozenset(("people", "users", "customers", "viewers", "views", "jobs", "homes"))
"""Behind `5m` that are no meters."""
_MOST_DIGITS = 18


@dataclass(slots=True)
class _Chunk:
    """A run of text without white space: punctuation around what is written.

    spans     where it is: `10 000` are two runs
    is_usual  `core` is as it is written, and not only alike
    """

    spans: list[tuple[int, int]]
    before: str
    core: str
    after: str
    is_usual: bool


def in_words(text: str) -> Iterator[tuple[int, int, str]]:
    """[start, end) of each run without white space, and what is to be read in its place."""
    chunks = _joined(_parsed(found) for found in re.finditer(r"\S+", text))
    for i, chunk in enumerate(chunks):
        read = _Reading(chunks, i).read()
        *silent, (start, end) = chunk.spans
        yield from ((*span, "") for span in silent)
        yield start, end, text[start:end] if read is None else read


def _joined(parsed: Iterable[_Chunk]) -> list[_Chunk]:
    """Runs that are one number: `10 000`, `5' 10"`; and `2,5 kg` with a point."""
    chunks: list[_Chunk] = []
    for chunk in parsed:
        last = chunks[-1] if chunks and not chunk.before else None
        if last is None:
            chunks.append(chunk)
            continue
        is_next = not last.after
        is_number = is_next and _THOUSANDS.match(chunk.core) and _UNDER_THOUSANDS.fullmatch(last.core)
        is_height = _FEET.fullmatch(last.core + last.after) and _INCHES.match(chunk.core + chunk.after)
        if is_number or is_height:
            last.core += f"{',' if is_number else last.after}{chunk.core}"
            last.after, last.is_usual = chunk.after, False
            last.spans += chunk.spans
            continue
        is_unit = chunk.core in CURRENCIES or find_unit_alone(chunk.core)
        if is_next and _DECIMAL_COMMA.fullmatch(last.core) and is_unit:
            last.core, last.is_usual = last.core.replace(",", "."), False
        chunks.append(chunk)
    return chunks


def _parsed(found: re.Match[str]) -> _Chunk:
    written = found.group()
    behind = written.lstrip(_OPENING)
    inside = behind.rstrip(_CLOSING) or written
    before, after = ("", "") if inside is written else (written[: -len(behind)], behind[len(inside) :])
    core = "".join(_usual(letter) for letter in inside.translate(_ALIKE))
    for typed, sign in _TYPED.items():
        core = core.replace(typed, sign)
    core = _SIGN_BEHIND_MONEY.sub(r"\2\1", _TAG.sub("", core))
    return _Chunk([found.span()], before, core, after, core == inside)


def _usual(letter: str) -> str:
    """ASCII for other digits, for letters and signs of another width and for units in one, such as `㎏`;
    nothing for what only shapes."""
    if letter.isascii() or letter in _VULGAR or letter.translate(SUPERSCRIPTS) != letter:
        return letter
    kind = unicodedata.category(letter)
    if kind == "Nd":
        return str(unicodedata.decimal(letter))
    if kind in ("Nl", "No"):
        plain = unicodedata.normalize("NFKC", letter)
        value = unicodedata.numeric(letter)
        return plain if plain.isascii() else str(int(value)) if value == int(value) else letter
    if kind in ("Cf", "Mn", "Me") and unicodedata.normalize("NFC", f"a{letter}") == f"a{letter}":
        return "" if letter in "\ufe0e\ufe0f\u20e3\u200b\u200c\u200d\u2060" else letter
    is_alike = "\uff01" <= letter <= "\uff5e" or "㍱" <= letter <= "㏟"
    return unicodedata.normalize("NFKC", letter) if is_alike else letter


class _Reading:
    """Of one run of a text, which may depend on those beside it."""

    def __init__(self, chunks: Sequence[_Chunk], index: int) -> None:
        self._chunk = chunks[index]
        self._previous = chunks[index - 1] if index and not chunks[index - 1].after else None
        has_next = index + 1 < len(chunks) and not self._chunk.after and not chunks[index + 1].before
        self._next = chunks[index + 1] if has_next else None
        self._before = chunks[index - 2].core if index > 1 else ""
        chunk, following = chunks[index], chunks[index + 1].core if index + 1 < len(chunks) else ""
        last = chunks[index - 1] if index else None
        self._beside = Beside(
            last.core if last is not None and last.after in ("", ",") else "",
            following if chunk.after in ("", ".") else "",
        )
        is_area = _AREA_CODE.fullmatch(f"{chunk.before}{chunk.core}{chunk.after}")
        self._is_area_code = is_area is not None and _TELEPHONE.fullmatch(following) is not None
        self._is_sum = any(
            chunk.core in ALWAYS_A_SUM - {"*"} for chunk in chunks[max(index - 3, 0) : index + 4]
        )

    def read(self) -> str | None:
        """None: as it is written."""
        chunk = self._chunk
        core = chunk.core
        short = self._written_short()
        if short is not None:
            return short
        said = None if self._previous is None else self._behind_a_number(self._previous.core, core)
        if said is None and (core in BETWEEN or core in ("-", "–", "/", "x")):
            said = self._sign_alone(core)
        if said is None and any(letter.isnumeric() for letter in core):
            said = self._figures(core)
        if said is None:
            return None if chunk.is_usual else f"{chunk.before}{core}{chunk.after}"
        return f"{chunk.before}{said}{chunk.after}"

    def _written_short(self) -> str | None:
        chunk, beside = self._chunk, self._beside
        said = address(chunk.core) or (self._previous and roman_number(chunk.core, self._previous.core))
        if said is not None:
            return f"{chunk.before}{said}{chunk.after}"
        has_point = chunk.after.startswith(".")
        said = abbreviation(chunk.core, beside, has_point=has_point)
        if said is None:
            return None
        ends = chunk.after == "." and not beside.following  # else the point is no pause
        after = chunk.after if ends else chunk.after.removeprefix(".")
        return f"{chunk.before}{said}{after}"

    def _behind_a_number(self, number: str, core: str) -> str | None:
        """A unit, a sign of money, or the million that stands between an amount and its currency."""
        if core.lower() in _SCALE_WORDS:
            money = _MONEY.search(number)
            return f"{core} {currency(money['sign'], money['country'] or '')}" if money else None
        if core in ("am", "AM"):
            return am_or_pm(core) if _HOUR.fullmatch(number) else None
        if _QUANTITY.fullmatch(number) is None:
            return None
        if core in CURRENCIES:
            return ""  # the number has it
        is_inches = core == "in" and self._before in ("ft", "feet")
        unit = find_unit(core, 0) if is_inches else find_unit_alone(core)
        return None if unit is None else unit_name(unit, is_one=_ONE.fullmatch(number) is not None)

    def _sign_alone(self, core: str) -> str | None:
        """Between spaces."""
        left, right = self._previous, self._next
        if core in _SUM_ALONE:
            return BETWEEN[core]
        if right is None or self._chunk.before:
            return None
        begins = right.core.strip(_AROUND_AMOUNTS)
        is_first = left is None or (core == "~" and not left.core[-1:].isnumeric())
        if core in ("<", ">", "~") and begins[:1].isnumeric() and is_first:
            return BEFORE[core]
        if left is None:
            return None
        ends = left.core.strip(_AROUND_AMOUNTS)
        is_number = ends[-1:].isnumeric() and begins[:1].isnumeric()
        if core in ("-", "–"):
            is_time = _CLOCK.fullmatch(ends) and begins[:1].isnumeric()
            if is_time and (ends[0].isnumeric() or _HOUR.fullmatch(self._before)):
                return "to"
            if not is_number:
                return None
            if self._is_sum or ascends(begins, ends):
                return "minus"
            return "to" if ascends(ends, begins) else None
        if core in ("/", "x"):
            is_said = is_number and (self._is_sum or core == "x")
            return ("divided by" if core == "/" else "times" if self._is_sum else "by") if is_said else None
        are_letters = len(ends) == 1 and len(begins) == 1 and ends.isalpha() and begins.isalpha()
        is_compared = core in ("<", ">", "*") and begins[:1].isnumeric()
        return BETWEEN[core] if is_number or are_letters or is_compared else None

    # -- figures ------------------------------------------------------------------------------------------

    def _figures(self, core: str) -> str | None:
        if _TELEPHONE.fullmatch(core) or (_GROUPS.fullmatch(core) and re.search(r"\b0\d\d", core)):
            return telephone(core)
        if self._is_area_code:
            return " ".join(core)
        if _SLASHED_DATE.fullmatch(core) and (day := date_with_slashes(core)) is not None:
            return day
        if _POINTED_THOUSANDS.fullmatch(core):
            return core.replace(".", ",")
        elements = self._elements(core)
        behind = self._previous.core if self._previous is not None else ""
        say_signs(elements, core, behind, is_in_a_sum=self._is_sum)
        is_price = elements[0].kind == "money" and len(elements) > 1  # misaki has no money within a word
        if all(element.is_plain for element in elements) and not is_price:
            return None if self._chunk.is_usual else core
        said: list[str] = []
        for element in elements:
            if element.kind == "comma" and said:
                said[-1] += ","
            elif element.said:
                said.append(element.said)
        return " ".join(said)

    def _elements(self, core: str) -> list[Element]:
        elements: list[Element] = []
        at = 0
        while at < len(core):
            found = _ELEMENT.match(core, at)
            assert found is not None
            end = found.end()
            kind, text = found.lastgroup or "", found.group()
            match kind:
                case "date":
                    element = Element(kind, text, date(text), False)
                case "time":
                    noon = _NOON.match(core, end)
                    end = noon.end() if noon else end
                    letters = am_or_pm(noon.group()) if noon else ""
                    is_before_noon = end == len(core) and self._is_before_noon()
                    said = time_of_day(text, letters, has_noon=noon is not None or is_before_noon)
                    element = Element(kind, text, said, False)
                case "height":
                    feet, inches = re.findall(r"\d+", text)
                    name = "foot" if feet == "1" else "feet"
                    element = Element("quantity", text, f"{feet} {name} {inches}", False)
                case "duration":
                    element = Element("quantity", text, duration(text), False)
                case "fraction":
                    element = self._fraction(text, is_rest=end == len(core) and self._has_whole(core, at))
                case "number":
                    element, end = self._number(core, text, end, elements)
                case "vulgar":
                    above, below = unicodedata.normalize("NFKC", text).split("⁄")
                    said = part_of_a_whole(int(above), int(below))
                    is_rest = bool(elements) and elements[-1].kind == "number"
                    said = f"and {article(said)}" if is_rest else said
                    unit = find_unit(core, end)
                    if unit is not None:
                        said, end = f"{said} {unit_name(unit, is_one=not is_rest)}", unit.end()
                    element = Element(kind, text, said, False)
                case "power":
                    element = Element(kind, text, power(text), False)
                case "letters":
                    element = Element(kind, text, text)
                case _:
                    element = Element("sign", text, "", text in _AS_MISAKI)
            elements.append(element)
            at = end
        return elements

    def _number(self, core: str, text: str, end: int, before: list[Element]) -> tuple[Element, int]:
        """A number with the unit or the sign of money that belongs to it, and where it ends."""
        currency = before[-1] if before and before[-1].text in CURRENCIES else None
        bare = re.sub(r"['’]?[a-z]+$", "", text)
        if currency is not None:
            return self._money(core, text, end, before)
        behind = core[end : end + 1]
        if behind in CURRENCIES and not core[end + 1 : end + 2].isnumeric():
            return Element("money", text, amount(behind, bare, ""), False), end + 1
        if end == len(core) and self._next is not None and self._next.core in CURRENCIES:
            return Element("money", text, amount(self._next.core, bare, ""), False), end
        noon = _NOON.match(core, end)
        if noon and _HOUR.fullmatch(text):
            letters = am_or_pm(noon.group())
            is_plain = letters != "a.m"
            said = f"{text}{noon.group()}" if is_plain else f"{text} {letters}"
            return Element("time", text, said, is_plain), noon.end()
        if text.count(".") > 1 and not _POINTED_DATE.fullmatch(text):
            return Element("number", text, in_points(text), False), end
        is_by = len(before) > 1 and before[-1].text == "x" and before[-2].kind in COUNTED
        is_named = bool(before) and (
            (before[-1].kind == "letters" and not is_by)
            or (before[-1].text in ("-", "_", ".") and len(before) > 1 and before[-2].kind == "letters")
        )
        if not is_named:
            start = end - (len(text) - len(bare))
            hyphen = core[start : start + 1] == "-"
            unit = find_unit(core, start + hyphen)
            is_model = unit is not None and _MODEL.match(core, unit.end()) is not None
            is_many = self._next is not None and self._next.core in _IN_MILLIONS
            if unit is not None and _is_a_unit(
                unit.group(), bare, hyphen=hyphen, is_model=is_model, is_many=is_many
            ):
                name = unit_name(unit, is_one=hyphen or bare == "1")
                return Element("quantity", bare, f"{counted(bare)} {name}", False), unit.end()
        has_unit = (
            end == len(core) and self._next is not None and find_unit_alone(self._next.core) is not None
        )
        if has_unit and not is_named:
            return Element("number", text, counted(bare), counted(bare) == text), end
        is_alone = end == len(core) and all(element.text in BEFORE for element in before)
        is_name = self._previous is not None and self._previous.core.istitle()
        said = digit_by_digit(text, is_name=is_name) if is_alone else text
        return Element("number", text, said, said == text), end

    def _money(self, core: str, text: str, end: int, before: list[Element]) -> tuple[Element, int]:
        sign = before.pop().text
        is_of = sign == "$" and before and before[-1].text in DOLLARS
        country = before.pop().text if is_of else ""
        scale = _SCALE.match(core, end)
        if scale is not None:
            name = scale["scale"]
            said = amount(sign, text, SCALES.get(name, name), country)
            return Element("money", text, said, False), scale.end()
        if self._next is not None and self._next.core.lower() in _SCALE_WORDS and _MONEY.search(core):
            return Element("money", text, text, False), end
        said = amount(sign, text, "", country)
        return Element("money", text, said, said == f"{sign}{text}" and not before), end

    def _is_before_noon(self) -> bool:
        """`am` or `pm` is the next run."""
        return self._next is not None and _NOON.fullmatch(self._next.core) is not None

    def _has_whole(self, core: str, at: int) -> bool:
        """A whole number stands before the fraction here, behind a space or a hyphen."""
        if not at:
            return self._previous is not None and self._previous.core.isdecimal()
        return core[at - 1] == "-" and core[: at - 1].isdecimal() and not self._is_sum

    def _fraction(self, text: str, *, is_rest: bool) -> Element:
        """is_rest: of a number before it, as in `1 1/2` and `1-1/2`."""
        if len(text) > _MOST_DIGITS:
            return Element("fraction", text, text.replace("/", " "))
        above, below = (int(part) for part in text.split("/"))
        if text[0] != "0" and 0 < above < below <= _MOST_PARTS:
            said = part_of_a_whole(above, below)
            return Element("fraction", text, f"and {article(said)}" if is_rest else said, False)
        if below in _OUT_OF and above <= below:
            return Element("fraction", text, f"{above} out of {below}", False)
        return Element("fraction", text, text.replace("/", " "))


def _is_a_unit(unit: str, number: str, *, hyphen: bool, is_model: bool, is_many: bool) -> bool:
    """`90s` and `737s` are plurals, `12A` is a seat, and `10-in-1` is no length."""
    if hyphen:
        return unit not in ("s", "in", "A", "V", "W", "J")
    if unit in ("V", "W"):
        return not is_model
    if unit == "m":
        return not is_many
    return unit not in ("s", "A", "J", "L") or "." in number
