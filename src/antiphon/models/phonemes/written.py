"""What is written in digits and signs, as a person reads it: times, dates, money, quantities, sums, ranges.

Plain numbers, years, ordinals and amounts such as `$5.20` stay as they are: the lexicon says them as misaki
does. American: `3/4` is no date, a date is said month first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from antiphon.models.phonemes.lexicon import CURRENCIES as KNOWN_CURRENCIES
from antiphon.models.phonemes.numbers import ordinal
from antiphon.models.phonemes.units import CURRENCIES, SCALES, find_unit, find_unit_alone, unit_name

_NAMES_OF_MONTHS = "January February March April May June July August September October November December"
_MONTHS = _NAMES_OF_MONTHS.split()
_SCALE_WORDS = ("hundred", "thousand", "million", "billion", "trillion")
_BETWEEN = {
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
_BEFORE = {
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
_ALWAYS_A_SUM = frozenset("=×÷^*−")
_SUM_ALONE = frozenset("=×÷±≈≠≤≥")
_AS_MISAKI = frozenset("-_'’‘.,/&@%+")
_BEGINS_A_NUMBER = frozenset("-−+±√(")
_PARTS_OF_A_WHOLE = {2: "half", 3: "third", 4: "quarter"}
_MOST_PARTS = 9
_OUT_OF = (10, 100)
_LONG = 7
"""Digits in a row without commas that name no amount but a telephone or an account."""

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_ALIKE = str.maketrans(
    {"\u2212": "−", "∗": "*", "⋅": "×", "⁄": "/", "∕": "/", "µ": "μ", "℃": "°C", "℉": "°F", "‒": "–"}
)
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)*|\.\d+"
_TYPED = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "=", "->": "→", "+/-": "±"}
_OPENING, _CLOSING = "\"'“‘([{*_`«¿¡", ".,;:!?\"'”’)]}*_`»…"
_QUANTITY = re.compile(rf"[~≈<>≤≥±+\-−]?(?:\d+/\d+|\d*[{_VULGAR}]|(?:{_NUMBER})(?:[-–~](?:{_NUMBER}))?)")
_ONE = re.compile(rf"1|\d+/\d+|[{_VULGAR}]")
_MONEY = re.compile(rf"(?P<sign>[{''.join(CURRENCIES)}])(?:{_NUMBER})(?:[-–](?:{_NUMBER}))?$")
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
_SCALE = re.compile(rf"(?:{'|'.join(sorted(SCALES, key=len, reverse=True))})(?![^\W_])")
_NOON = re.compile(r"[ap]\.?m(?![^\W_])", re.IGNORECASE)
_DECADE = re.compile(r"\d*0|\d{4}")
_COUNTED = ("number", "quantity", "money", "percent", "time", "date", "fraction", "vulgar", "power")


@dataclass(slots=True)
class _Chunk:
    """A run of text without white space: punctuation around what is written.

    is_usual  `core` is as it is written, and not only alike
    """

    start: int
    end: int
    before: str
    core: str
    after: str
    is_usual: bool


@dataclass(slots=True)
class _Element:
    """kind      a group of `_ELEMENT`, "money", "quantity" or "percent"
    text      as it is written
    said      in words; "" if it is silent
    is_plain  the lexicon says it as well in its place
    """

    kind: str
    text: str
    said: str
    is_plain: bool = True


def in_words(text: str) -> Iterator[tuple[int, int, str]]:
    """[start, end) of each run without white space, and what is to be read in its place."""
    chunks = [_parsed(found) for found in re.finditer(r"\S+", text)]
    for i, chunk in enumerate(chunks):
        read = _Reading(chunks, i).read()
        yield chunk.start, chunk.end, text[chunk.start : chunk.end] if read is None else read


def _parsed(found: re.Match[str]) -> _Chunk:
    written = found.group()
    behind = written.lstrip(_OPENING)
    inside = behind.rstrip(_CLOSING) or written
    before, after = ("", "") if inside is written else (written[: -len(behind)], behind[len(inside) :])
    core = "".join(_usual(letter) for letter in inside.translate(_ALIKE))
    for typed, sign in _TYPED.items():
        core = core.replace(typed, sign)
    return _Chunk(*found.span(), before, core, after, core == inside)


def _usual(letter: str) -> str:
    """ASCII for other digits, and for letters and signs of another width; nothing for what only shapes."""
    if letter.isascii() or letter in _VULGAR or letter.translate(_SUPERSCRIPTS) != letter:
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
    return unicodedata.normalize("NFKC", letter) if "\uff01" <= letter <= "\uff5e" else letter


class _Reading:
    """Of one run of a text, which may depend on those beside it."""

    def __init__(self, chunks: Sequence[_Chunk], index: int) -> None:
        self._chunk = chunks[index]
        self._previous = chunks[index - 1] if index and not chunks[index - 1].after else None
        has_next = index + 1 < len(chunks) and not self._chunk.after and not chunks[index + 1].before
        self._next = chunks[index + 1] if has_next else None
        self._is_sum = any(
            chunk.core in _ALWAYS_A_SUM - {"*"} for chunk in chunks[max(index - 3, 0) : index + 4]
        )

    def read(self) -> str | None:
        """None: as it is written."""
        chunk = self._chunk
        core = chunk.core
        said = None if self._previous is None else self._behind_a_number(self._previous.core, core)
        if said is None and (core in _BETWEEN or core in ("-", "–", "/")):
            said = self._sign_alone(core)
        if said is None and any(letter.isnumeric() for letter in core):
            said = self._figures(core)
        if said is None:
            return None
        return f"{chunk.before}{said}{chunk.after}"

    def _behind_a_number(self, number: str, core: str) -> str | None:
        """A unit, a sign of money, or the million that stands between an amount and its currency."""
        if core in _SCALE_WORDS:
            money = _MONEY.search(number)
            return f"{core} {CURRENCIES[money['sign']][1]}" if money else None
        if _QUANTITY.fullmatch(number) is None:
            return None
        if core in CURRENCIES:
            return ""  # the number has it
        unit = find_unit_alone(core)
        return None if unit is None else unit_name(unit, is_one=_ONE.fullmatch(number) is not None)

    def _sign_alone(self, core: str) -> str | None:
        """Between spaces."""
        left, right = self._previous, self._next
        if core in _SUM_ALONE:
            return _BETWEEN[core]
        if left is None or right is None or self._chunk.before:
            return None
        bare = [chunk.core.strip(_AROUND_AMOUNTS) for chunk in (left, right)]
        if not (bare[0][-1:].isnumeric() and bare[1][:1].isnumeric()):
            return None
        if core in ("-", "–"):
            if self._is_sum:
                return "minus"
            return "to" if _ascends(*bare) else None
        if core == "/":
            return "divided by" if self._is_sum else None
        return _BETWEEN[core]

    # -- figures ------------------------------------------------------------------------------------------

    def _figures(self, core: str) -> str | None:
        elements = self._elements(core)
        self._join(elements)
        if all(element.is_plain for element in elements):
            return None if self._chunk.is_usual else core
        said: list[str] = []
        for element in elements:
            if element.kind == "comma" and said:
                said[-1] += ","
            elif element.said:
                said.append(element.said)
        return " ".join(said)

    def _elements(self, core: str) -> list[_Element]:
        elements: list[_Element] = []
        at = 0
        while at < len(core):
            found = _ELEMENT.match(core, at)
            assert found is not None
            end = found.end()
            kind, text = found.lastgroup or "", found.group()
            match kind:
                case "date":
                    element = _Element(kind, text, _date(text), False)
                case "time":
                    noon = _NOON.match(core, end)
                    element = _Element(kind, text, self._time(text, noon, end == len(core)), False)
                    end = noon.end() if noon else end
                case "height":
                    feet, inches = re.findall(r"\d+", text)
                    name = "foot" if feet == "1" else "feet"
                    element = _Element("quantity", text, f"{feet} {name} {inches}", False)
                case "duration":
                    element = _Element("quantity", text, _duration(text), False)
                case "fraction":
                    element = self._fraction(text, is_whole=found.start() == 0 and end == len(core))
                case "number":
                    element, end = self._number(core, text, end, elements)
                case "vulgar":
                    above, below = unicodedata.normalize("NFKC", text).split("⁄")
                    said = _part_of_a_whole(int(above), int(below))
                    is_rest = bool(elements) and elements[-1].kind == "number"
                    said = f"and {_article(said)}" if is_rest else said
                    unit = find_unit(core, end)
                    if unit is not None:
                        said, end = f"{said} {unit_name(unit, is_one=not is_rest)}", unit.end()
                    element = _Element(kind, text, said, False)
                case "power":
                    element = _Element(kind, text, _power(text), False)
                case "letters":
                    element = _Element(kind, text, text)
                case _:
                    element = _Element("sign", text, "", text in _AS_MISAKI)
            elements.append(element)
            at = end
        return elements

    def _number(self, core: str, text: str, end: int, before: list[_Element]) -> tuple[_Element, int]:
        """A number with the unit or the sign of money that belongs to it, and where it ends."""
        currency = before[-1] if before and before[-1].text in CURRENCIES else None
        bare = re.sub(r"['’]?[a-z]+$", "", text)
        if currency is not None:
            return self._money(core, text, end, before)
        behind = core[end : end + 1]
        if behind in CURRENCIES and not core[end + 1 : end + 2].isnumeric():
            return _Element("money", text, _amount(behind, bare, ""), False), end + 1
        if end == len(core) and self._next is not None and self._next.core in CURRENCIES:
            return _Element("money", text, _amount(self._next.core, bare, ""), False), end
        is_named = bool(before) and (
            before[-1].kind == "letters"
            or (before[-1].text in ("-", "_", ".") and len(before) > 1 and before[-2].kind == "letters")
        )
        if not is_named:
            start = end - (len(text) - len(bare))
            hyphen = core[start : start + 1] == "-"
            unit = find_unit(core, start + hyphen)
            if unit is not None and _is_a_unit(unit.group(), bare, hyphen=hyphen):
                name = unit_name(unit, is_one=hyphen or bare == "1")
                return _Element("quantity", bare, f"{_counted(bare)} {name}", False), unit.end()
        has_unit = (
            end == len(core) and self._next is not None and find_unit_alone(self._next.core) is not None
        )
        if has_unit and not is_named and _counted(bare) != text:
            return _Element("number", text, _counted(bare), False), end
        is_alone = end == len(core) and all(element.text in _BEFORE for element in before)
        said = _digit_by_digit(text) if is_alone else text
        return _Element("number", text, said, said == text), end

    def _money(self, core: str, text: str, end: int, before: list[_Element]) -> tuple[_Element, int]:
        sign = before.pop().text
        scale = _SCALE.match(core, end)
        if scale is not None:
            said = _amount(sign, text, SCALES[scale.group()])
            return _Element("money", text, said, False), scale.end()
        if self._next is not None and self._next.core in _SCALE_WORDS and _MONEY.search(core):
            return _Element("money", text, text, False), end
        said = _amount(sign, text, "")
        return _Element("money", text, said, said == f"{sign}{text}" and not before), end

    def _time(self, text: str, noon: re.Match[str] | None, is_last: bool) -> str:
        """`3:45`; `12:00` is twelve o'clock, `15:00` fifteen hundred."""
        hour, minute, *seconds = (int(part) for part in text.split(":"))
        suffix = f" {noon.group().replace('.', '')}" if noon else ""
        has_noon = bool(noon) or (
            is_last and self._next is not None and _NOON.fullmatch(self._next.core) is not None
        )
        if seconds:
            unit = "second" if seconds[0] == 1 else "seconds"
            return f"{hour} {_two_digits(minute)} and {seconds[0]} {unit}{suffix}"
        if minute or hour > 24:
            return f"{hour} {_two_digits(minute)}{suffix}"
        if has_noon:
            return f"{hour}{suffix}"
        return f"{hour} o'clock" if 1 <= hour <= 12 else f"{hour} hundred"

    def _fraction(self, text: str, *, is_whole: bool) -> _Element:
        above, below = (int(part) for part in text.split("/"))
        if text[0] != "0" and 0 < above < below <= _MOST_PARTS:
            said = _part_of_a_whole(above, below)
            whole = self._previous is not None and self._previous.core.isdecimal() and is_whole
            return _Element("fraction", text, f"and {_article(said)}" if whole else said, False)
        if below in _OUT_OF and above <= below:
            return _Element("fraction", text, f"{above} out of {below}", False)
        return _Element("fraction", text, text.replace("/", " "))

    # -- signs --------------------------------------------------------------------------------------------

    def _join(self, elements: list[_Element]) -> None:
        """What the signs between the elements are said as."""
        is_sum = self._is_sum or any(
            element.text in _ALWAYS_A_SUM and 0 < i < len(elements) - 1 for i, element in enumerate(elements)
        )
        hyphens = sum(element.text in ("-", "–") for element in elements)
        for i, element in enumerate(elements):
            left = elements[i - 1] if i else None
            right = elements[i + 1] if i + 1 < len(elements) else None
            if element.text == "%" and left is not None and left.kind == "number":
                element.kind, element.said = "percent", "percent"
            elif element.kind == "sign":
                is_named = i > 1 and elements[i - 2].kind == "letters"
                self._say_sign(element, left, right, is_sum=is_sum, is_range=hyphens == 1 and not is_named)
            elif element.kind == "fraction" and is_sum and element.is_plain:
                element.said, element.is_plain = element.text.replace("/", " divided by "), False
            elif element.text == "x" and _are_counted(left, right):
                element.said, element.is_plain = "by", False

    def _say_sign(
        self, sign: _Element, left: _Element | None, right: _Element | None, *, is_sum: bool, is_range: bool
    ) -> None:
        text = sign.text
        is_between = left is not None and right is not None
        counted = _are_counted(left, right)
        follows = right is not None and right.kind in _COUNTED
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
                said = "per" if left.kind in ("money", "quantity", "percent") else None
            elif counted and is_sum:
                said = "divided by"
        elif text == ":":
            is_ratio = counted and left is not None and right is not None
            said = "to" if is_ratio and _is_short(left) and _is_short(right) else None
        elif text == ",":
            if counted:
                sign.kind, sign.is_plain = "comma", False
        elif text in _BETWEEN and _can_be_reckoned(left) and _can_be_reckoned(right, is_right=True):
            said = _BETWEEN[text]
        elif text in _BEFORE and follows:
            said = _BEFORE[text]
        else:
            sign.said = _ANYWHERE.get(text, "")
        if said is not None:
            sign.said = said
            sign.is_plain = sign.is_plain and text == "+"


def _are_counted(left: _Element | None, right: _Element | None) -> bool:
    return left is not None and right is not None and left.kind in _COUNTED and right.kind in _COUNTED


def _can_be_reckoned(element: _Element | None, *, is_right: bool = False) -> bool:
    """A number, a variable, or what begins one."""
    if element is None:
        return False
    is_begun = is_right and element.text in _BEGINS_A_NUMBER
    return element.kind in _COUNTED or (element.kind == "letters" and len(element.text) == 1) or is_begun


def _is_short(element: _Element | None) -> bool:
    return element is not None and len(element.text) <= 3


def _is_range(left: _Element, right: _Element) -> bool:
    """Of two numbers with a hyphen between them: `3-5` and `1914-18`, but not the score 3-1 or the telephone
    555-1234."""
    if left.kind != "number":
        return True
    return _ascends(left.text, right.text)


def _ascends(left: str, right: str) -> bool:
    bare = [number.replace(",", "") for number in (left, right)]
    if not all(re.fullmatch(r"\d+(?:\.\d+)?", number) for number in bare):
        return False
    if any(re.match(r"0\d", number) for number in bare):
        return False
    sizes = tuple(len(number) for number in bare)
    if sizes == (4, 2) and int(bare[0][2:]) < int(bare[1]):
        return True
    is_telephone = sizes == (3, 4) and left.isdecimal() and right.isdecimal()
    return not is_telephone and Decimal(bare[0]) < Decimal(bare[1])


def _is_a_unit(unit: str, number: str, *, hyphen: bool) -> bool:
    """`90s` are a decade, and `10-in-1` is no length."""
    if hyphen:
        return unit not in ("s", "in", "A", "V", "W", "J")
    return unit != "s" or _DECADE.fullmatch(number) is None


def _counted(number: str) -> str:
    """Four digits before a unit are no year."""
    if len(number) == 4 and number.isdecimal() and number[0] != "0":
        return f"{number[0]},{number[1:]}"
    return number


def _digit_by_digit(text: str) -> str:
    """Long numbers without commas, and codes that begin with zeros."""
    is_long = len(text) >= _LONG and not text.endswith("000")
    is_code = len(text) > 3 and text[0] == "0"
    return " ".join(text) if text.isdecimal() and (is_long or is_code) else text


def _two_digits(value: int) -> str:
    return f"oh {value}" if 0 < value < 10 else str(value) if value else "oh oh"


def _duration(text: str) -> str:
    names = {"h": "hour", "m": "minute", "min": "minute", "s": "second", "": ""}
    said: list[str] = []
    for value, unit in re.findall(r"(\d+)([a-z]*)", text):
        name = names[unit] and names[unit] + ("" if value == "1" else "s")
        said.append(f"{value} {name}".strip())
    return " ".join(said)


def _date(text: str) -> str:
    year, month, day = text.split("-")
    return f"{_MONTHS[int(month) - 1]} {ordinal(int(day)).replace('-', ' ')}, {year}"


def _part_of_a_whole(above: int, below: int) -> str:
    if above == 0:
        return f"zero {ordinal(below)}s"
    name = _PARTS_OF_A_WHOLE.get(below) or ordinal(below)
    if above == 1:
        return f"one {name}"
    return f"{above} {'halves' if below == 2 else f'{name}s'}"


def _article(part: str) -> str:
    return part.replace("one ", "a ", 1)


def _power(text: str) -> str:
    power = text.translate(_SUPERSCRIPTS)
    return {"2": "squared", "3": "cubed"}.get(power) or f"to the power of {power.replace('-', 'minus ')}"


def _amount(sign: str, number: str, scale: str) -> str:
    """Of money. `$1.5` are fifty cents more than a dollar."""
    one, many = CURRENCIES[sign]
    if scale:
        return f"{number} {scale} {many}"
    if sign in KNOWN_CURRENCIES:
        return f"{sign}{number}0" if re.fullmatch(r"[\d,]*\.\d", number) else f"{sign}{number}"
    return f"{_counted(number)} {one if number == '1' else many}"
