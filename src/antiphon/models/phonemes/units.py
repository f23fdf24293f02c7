"""Units and signs of money, as they are written behind or before a number and as they are said."""

from __future__ import annotations

import re

_PLAIN = """
km kilometer|m meter|cm centimeter|mm millimeter|μm micrometer|nm nanometer|mi mile|yd yard|ft foot feet
in inch inches|″ inch inches|′ foot feet
kg kilogram|g gram|mg milligram|μg microgram|mcg microgram|lb pound|lbs pound|oz ounce
l liter|L liter|dl deciliter|dL deciliter|cl centiliter|cL centiliter|ml milliliter|mL milliliter|gal gallon
s second|sec second|secs second|ms millisecond|μs microsecond|ns nanosecond
min minute|mins minute|h hour|hr hour|hrs hour
kB kilobyte|KB kilobyte|MB megabyte|GB gigabyte|TB terabyte|PB petabyte
kb kilobit|Kb kilobit|Mb megabit|Gb gigabit|Mbit megabit|Gbit gigabit
Hz hertz hertz|kHz kilohertz kilohertz|MHz megahertz megahertz|GHz gigahertz gigahertz
V volt|mV millivolt|kV kilovolt|A amp|mA milliamp|W watt|mW milliwatt|kW kilowatt|MW megawatt|GW gigawatt
J joule|kJ kilojoule|cal calorie|kcal kilocalorie|Pa pascal|hPa hectopascal|kPa kilopascal|dB decibel
ha hectare|px pixel|° degree
"""
_PHRASES = """
kWh kilowatt hour|MWh megawatt hour|mAh milliamp hour|mph mile per hour|kph kilometer per hour
kmh kilometer per hour|bpm beat per minute|rpm revolution per minute|fps frame per second
kbps kilobit per second|Mbps megabit per second|Gbps gigabit per second|°C degree Celsius
°F degree Fahrenheit
"""
_CAPITALS = "MPH KPH RPM BPM FPS LB LBS OZ FT KG KM CM MM HR HRS"
"""Units that are also written so."""
_LENGTHS = ("km", "m", "cm", "mm", "mi", "ft", "yd", "in")
_NOT_ALONE = frozenset(("A", "V", "W", "J", "in"))
"""Behind a number and a space they are rather a word or a name: `5 in the morning`, `5 A`."""

CURRENCIES = {
    "$": ("dollar", "dollars"),
    "£": ("pound", "pounds"),
    "€": ("euro", "euros"),
    "¥": ("yen", "yen"),
    "₹": ("rupee", "rupees"),
    "₩": ("won", "won"),
    "₽": ("ruble", "rubles"),
    "₺": ("lira", "lira"),
    "₪": ("shekel", "shekels"),
    "₿": ("bitcoin", "bitcoins"),
    "¢": ("cent", "cents"),
}
DOLLARS = {
    "US": "U.S.",
    "A": "Australian",
    "AU": "Australian",
    "C": "Canadian",
    "CA": "Canadian",
    "HK": "Hong Kong",
    "NZ": "New Zealand",
    "S": "Singapore",
}
"""Their countries, by the letters before the sign."""
SCALES = {
    "k": "thousand",
    "K": "thousand",
    "m": "million",
    "M": "million",
    "mn": "million",
    "b": "billion",
    "B": "billion",
    "bn": "billion",
    "T": "trillion",
    "tn": "trillion",
}


def _table() -> dict[str, tuple[str, str]]:
    """Unit -> what one is called, and more than one."""
    names: dict[str, tuple[str, str]] = {}
    for line in _PLAIN.replace("\n", "|").split("|"):
        if line:
            unit, one, *many = line.split()
            names[unit] = one, many[0] if many else f"{one}s"
    for line in _PHRASES.replace("\n", "|").split("|"):
        if line:
            unit, first, rest = line.split(maxsplit=2)
            many = f"{first} {rest}s" if rest == "hour" else f"{first}s {rest}"
            names[unit] = f"{first} {rest}", many
    names |= {unit: names[unit.lower()] for unit in _CAPITALS.split()}
    for length in _LENGTHS:
        one, many = names[length]
        for power, name in (("²", "square"), ("2", "square"), ("³", "cubic"), ("3", "cubic")):
            if power not in "23" or length in ("km", "m", "cm", "mm", "ft"):
                names[length + power] = f"{name} {one}", f"{name} {many}"
    names["s²"] = names["s2"] = "second squared", "seconds squared"
    return names


_NAMES = _table()
_ANY = "|".join(re.escape(unit) for unit in sorted(_NAMES, key=len, reverse=True))
_COMPOUND = re.compile(rf"(?P<unit>{_ANY})(?:/(?P<per>{_ANY}))?(?![^\W_]|[′″])")


def find_unit(text: str, start: int) -> re.Match[str] | None:
    """The unit that is written from here on, with what it is per: `km/h`."""
    return _COMPOUND.match(text, start)


def unit_name(unit: re.Match[str], *, is_one: bool) -> str:
    name = _NAMES[unit["unit"]][0 if is_one else 1]
    return f"{name} per {_NAMES[unit['per']][0]}" if unit["per"] else name


def find_unit_alone(text: str) -> re.Match[str] | None:
    """A run without white space that is a unit where it follows a number."""
    return None if text in _NOT_ALONE else _COMPOUND.fullmatch(text)
