"""What is written in digits and signs, as a person reads it: times, dates, money, quantities, sums, ranges.

Plain numbers, years, ordinals and amounts such as `$5.20` stay as they are: the lexicon says them as misaki
does. American: `3/4` is no date, a date is said month first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
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
_SCALE = re.compile(
    rf"-?(?P<scale>{'|'.join(sorted([*SCALES, *_SCALE_WORDS], key=len, reverse=True))})(?![^\W_])"
)
_NOON = re.compile(r"[ap]\.?m(?![^\W_])", re.IGNORECASE)
_CLOCK = re.compile(r"\d+:\d\d(?:[ap]m)?|\d*[ap]m", re.IGNORECASE)
_HOUR = re.compile(r"(?:.*[-–:/])?(?:0?[1-9]|1[0-2])(?::[0-5]\d)?")
_TAG = re.compile(r"</?[A-Za-z]+>")
_SIGN_BEHIND_MONEY = re.compile(rf"([{''.join(CURRENCIES)}])([-−])(?=\d)")
_UNDER_THOUSANDS = re.compile(r"\D?[1-9]\d{0,2}(?:,000){0,3}")
_THOUSANDS = re.compile(r"000(?![\d.,])")
_FEET, _INCHES = re.compile(r"\d['’′]"), re.compile(r"1?\d[\"”″]")
_DECIMAL_COMMA = re.compile(r"\d+,\d\d?")
_GROUPS = re.compile(r"\d+(?:-\d+){1,2}")
"""Such as 555-0123. Four groups are said as misaki says them."""
_NO_RANGE = re.compile(r"[79]-11|7\d7-\d+")
_MODEL = re.compile(r"-\d+(?!\w)")
"""Behind a letter that else is a unit: the oil 5W-30."""
_IN_MILLIONS = frozenset(("people", "users", "customers", "viewers", "views", "jobs", "homes"))
"""Behind `5m` that are no meters."""
_MOST_DIGITS = 18
_COUNTED = ("number", "quantity", "money", "percent", "time", "date", "fraction", "vulgar", "power")


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
        if is_next and _DECIMAL_COMMA.fullmatch(last.core) and find_unit_alone(chunk.core):
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
        self._before = chunks[index - 2].core if index > 1 else ""
        self._is_sum = any(
            chunk.core in _ALWAYS_A_SUM - {"*"} for chunk in chunks[max(index - 3, 0) : index + 4]
        )

    def read(self) -> str | None:
        """None: as it is written."""
        chunk = self._chunk
        core = chunk.core
        said = None if self._previous is None else self._behind_a_number(self._previous.core, core)
        if said is None and (core in _BETWEEN or core in ("-", "–", "/", "x")):
            said = self._sign_alone(core)
        if said is None and any(letter.isnumeric() for letter in core):
            said = self._figures(core)
        if said is None:
            return None
        return f"{chunk.before}{said}{chunk.after}"

    def _behind_a_number(self, number: str, core: str) -> str | None:
        """A unit, a sign of money, or the million that stands between an amount and its currency."""
        if core.lower() in _SCALE_WORDS:
            money = _MONEY.search(number)
            return f"{core} {CURRENCIES[money['sign']][1]}" if money else None
        if core in ("am", "AM"):
            return _noon(core) if _HOUR.fullmatch(number) else None
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
            return _BETWEEN[core]
        if right is None or self._chunk.before:
            return None
        begins = right.core.strip(_AROUND_AMOUNTS)
        is_first = left is None or (core == "~" and not left.core[-1:].isnumeric())
        if core in ("<", ">", "~") and begins[:1].isnumeric() and is_first:
            return _BEFORE[core]
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
            if self._is_sum or _ascends(begins, ends):
                return "minus"
            return "to" if _ascends(ends, begins) else None
        if core in ("/", "x"):
            is_said = is_number and (self._is_sum or core == "x")
            return ("divided by" if core == "/" else "times" if self._is_sum else "by") if is_said else None
        are_letters = len(ends) == 1 and len(begins) == 1 and ends.isalpha() and begins.isalpha()
        is_compared = core in ("<", ">") and begins[:1].isnumeric()
        return _BETWEEN[core] if is_number or are_letters or is_compared else None

    # -- figures ------------------------------------------------------------------------------------------

    def _figures(self, core: str) -> str | None:
        if _GROUPS.fullmatch(core) and re.search(r"\b0\d\d", core):
            return ", ".join(" ".join(group) for group in core.split("-"))
        elements = self._elements(core)
        self._join(elements)
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
                    element = self._fraction(text, is_rest=end == len(core) and self._has_whole(core, at))
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
        noon = _NOON.match(core, end)
        if noon and _HOUR.fullmatch(text):
            letters = _noon(noon.group())
            is_plain = letters != "a.m"
            said = f"{text}{noon.group()}" if is_plain else f"{text} {letters}"
            return _Element("time", text, said, is_plain), noon.end()
        is_by = len(before) > 1 and before[-1].text == "x" and before[-2].kind in _COUNTED
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
                return _Element("quantity", bare, f"{_counted(bare)} {name}", False), unit.end()
        has_unit = (
            end == len(core) and self._next is not None and find_unit_alone(self._next.core) is not None
        )
        if has_unit and not is_named and _counted(bare) != text:
            return _Element("number", text, _counted(bare), False), end
        is_alone = end == len(core) and all(element.text in _BEFORE for element in before)
        is_name = self._previous is not None and self._previous.core.istitle()
        said = _digit_by_digit(text, is_name=is_name) if is_alone else text
        return _Element("number", text, said, said == text), end

    def _money(self, core: str, text: str, end: int, before: list[_Element]) -> tuple[_Element, int]:
        sign = before.pop().text
        scale = _SCALE.match(core, end)
        if scale is not None:
            name = scale["scale"]
            said = _amount(sign, text, SCALES.get(name, name))
            return _Element("money", text, said, False), scale.end()
        if self._next is not None and self._next.core.lower() in _SCALE_WORDS and _MONEY.search(core):
            return _Element("money", text, text, False), end
        said = _amount(sign, text, "")
        return _Element("money", text, said, said == f"{sign}{text}" and not before), end

    def _time(self, text: str, noon: re.Match[str] | None, is_last: bool) -> str:
        """`3:45`; `12:00` is twelve o'clock, `15:00` fifteen hundred."""
        hour, minute, *seconds = (int(part) for part in text.split(":"))
        suffix = f" {_noon(noon.group())}" if noon else ""
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

    def _has_whole(self, core: str, at: int) -> bool:
        """A whole number stands before the fraction here, behind a space or a hyphen."""
        if not at:
            return self._previous is not None and self._previous.core.isdecimal()
        return core[at - 1] == "-" and core[: at - 1].isdecimal() and not self._is_sum

    def _fraction(self, text: str, *, is_rest: bool) -> _Element:
        """is_rest: of a number before it, as in `1 1/2` and `1-1/2`."""
        if len(text) > _MOST_DIGITS:
            return _Element("fraction", text, text.replace("/", " "))
        above, below = (int(part) for part in text.split("/"))
        if text[0] != "0" and 0 < above < below <= _MOST_PARTS:
            said = _part_of_a_whole(above, below)
            return _Element("fraction", text, f"and {_article(said)}" if is_rest else said, False)
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
        is_verse = hyphens > 0 or (self._previous is not None and _is_name(self._previous.core))
        is_range = hyphens == 1 and not _NO_RANGE.fullmatch(self._chunk.core)
        for i, element in enumerate(elements):
            left = elements[i - 1] if i else None
            right = elements[i + 1] if i + 1 < len(elements) else None
            if element.text == "%" and left is not None and left.kind == "number":
                element.kind, element.said = "percent", "percent"
            elif element.kind == "sign":
                is_named = i > 1 and elements[i - 2].kind == "letters"
                if element.text != ":" or not is_verse:
                    self._say_sign(element, left, right, is_sum=is_sum, is_range=is_range and not is_named)
            elif element.kind == "fraction" and is_sum and element.is_plain:
                element.said, element.is_plain = element.text.replace("/", " divided by "), False
            elif element.text == "x" and _are_counted(left, right) and left is not None and left.text != "0":
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
    if left.kind != "number" or right.kind == "time":
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


def _is_a_unit(unit: str, number: str, *, hyphen: bool, is_model: bool, is_many: bool) -> bool:
    """`90s` and `737s` are plurals, `12A` is a seat, and `10-in-1` is no length."""
    if hyphen:
        return unit not in ("s", "in", "A", "V", "W", "J")
    if unit in ("V", "W"):
        return not is_model
    if unit == "m":
        return not is_many
    return unit not in ("s", "A", "J", "L") or "." in number


def _is_name(word: str) -> bool:
    """Such as a book's, before a chapter and a verse."""
    return len(word) > 1 and word.isalpha() and word.istitle() and word not in ("The", "An", "Ratio")


def _noon(written: str) -> str:
    """As letters, and not as the word `am`."""
    bare = written.replace(".", "")
    return "a.m" if bare.lower() == "am" else bare


def _counted(number: str) -> str:
    """Four digits before a unit are no year."""
    if len(number) == 4 and number.isdecimal() and number[0] != "0":
        return f"{number[0]},{number[1:]}"
    return number


def _digit_by_digit(text: str, *, is_name: bool) -> str:
    """Long numbers without commas, and codes that begin with zeros; 007 only as part of a name."""
    is_long = len(text) >= _LONG and not text.endswith("000")
    is_code = text[0] == "0" and (len(text) > 3 or (len(text) == 3 and (text[1] != "0" or is_name)))
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
