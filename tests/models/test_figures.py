"""Figures as words: numbers, times, sums, units and what stands for them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.models.phonemes import Phonemiser
from antiphon.models.phonemes.numbers import cardinal, decimal, ordinal, year
from antiphon.models.phonemes.written import in_words
from models.spelling_voice import spelling_voice


@pytest.fixture(scope="module")
def phonemiser(tmp_path_factory: pytest.TempPathFactory) -> Phonemiser:
    return Phonemiser.load(spelling_voice(tmp_path_factory.mktemp("voice")))


READ_AS = [
    ("St. Dog of Main St. in 5th Ave., Mt. Two", "Saint Dog of Main Street in fifth Avenue, Mount Two"),
    ("Lt. Col. Dog, Jr. and Apple Ltd. Lt.", "Lieutenant Colonel Dog, Junior and Apple Limited Lt."),
    ("Jan. 5, 6 Dec 2020, I am Jan.", "January five, six December twenty twenty, I am Jan."),
    ("on Main St. He is in Sr. Dog", "on Main Street He is in Sr. Dog"),
    ("No. 5 (p. 6). No. Two", "number five (page six). No. Two"),
    ("World War II, World War I", "World War two, World War one"),
    ("Henry VIII, Louis XIV; The IV, II", "Henry the eighth, Louis the fourteenth; The IV, II"),
    ("Go to https://www.dog.com/two/?a=b#c.", "Go to dog dot com slash two."),
    ("a.dog@two.org, (dog.com) dog.two", "a dot dog at two dot org, (dog dot com) dog.two"),
    ("[a dog](https://two.com) <b>dog</b>", "[a dog) dog"),
    ("3:45", "three forty five"),
    ("The train leaves at 3:45 pm.", "The train leaves at three forty five pm."),
    ("(3:45pm)", "(three forty five pm)"),
    ("12:00, 9:05 or 15:00", "twelve o'clock, nine oh five or fifteen hundred"),
    ("3:00 p.m. 3:45:20", "three p.m. three forty five and twenty seconds"),
    ("10:30-11:30", "ten thirty to eleven thirty"),
    ("2:1 16:9 60:40", "two to one sixteen to nine sixty to forty"),
    ("20°C, -5 °F, 90°", "twenty degrees Celsius, minus five degrees Fahrenheit, ninety degrees"),
    ("10kg 1kg 5 km. 1 km", "ten kilograms one kilogram five kilometers. one kilometer"),
    (
        "100km/h, 60 mph, 9.8 m/s²",
        "one hundred kilometers per hour, sixty miles per hour, 9.8 meters per second squared",
    ),
    ("16 GB 2.4GHz 10m² 5-kg", "sixteen gigabytes 2.4 gigahertz ten square meters five kilogram"),
    ("2h30m 2.5s 5s 30s", "two hours thirty minutes 2.5 seconds fives thirties"),
    ("5 in the box", "five in the box"),
    ("2000 km", "two thousand kilometers"),
    ("5㎏ 10 ㎡", "five kilograms ten square meters"),
    ("km 5", "km five"),
    ("50€ 5 € $5.2 £3, ¥500", "fifty euros five euros $5.20 three pounds, five hundred yen"),
    ("-$5 $5-$10 $5/month", "minus five dollars five dollars to ten dollars five dollars per month"),
    ("$1.5 million, $20M", "1.5 million dollars, twenty million dollars"),
    ("1+1=2", "one plus one equals two"),
    ("5-3=2, 6 / 3 = 2", "five minus three equals two, six divided by three equals two"),
    (
        "5×6 5*6 6÷2 2^10 −5",
        "five times six five times six six divided by two two to the power of ten minus five",
    ),
    ("x=5 5<6 n >= 3", "x equals five five is less than six n is at least three"),
    ("10² x³ 10⁻³", "ten squared x cubed ten to the power of minus three"),
    ("3-5 10–20 1990 - 1995", "three to five ten to twenty 1990 to 1995"),
    ("1914-18", "nineteen fourteen to eighteen"),
    ("10.5-12 km, 98.6 - 99", "10.5 to twelve kilometers, 98.6 to ninety nine"),
    ("2026-11-27", "November twenty seventh, twenty twenty six"),
    ("1/2 3/4 8/10 1 1/2", "one half three quarters eight out of ten one and a half"),
    ("½ 2½ ½kg", "one half two and a half one half kilogram"),
    ("5551234567 0800", "five five five one two three four five six seven zero eight zero zero"),
    ("1000000", "one million"),
    ("1,2,3", "one, two, three"),
    ("#5 ~5 <5", "number five about five less than five"),
    ("٣ ３ ③ 3️⃣", "three three three three"),
    ("zq12:qx", "zq twelve qx"),
    ("7:30am, 7:30 am, 8:00 AM", "seven thirty a.m, seven thirty a.m, eight a.m"),
    ("8 AM. 10 am. to 3am", "eight a.m. ten a.m. to three a.m"),
    ("9am–5pm, 10am-5pm, 9-10am", "nine a.m to five pm, ten a.m to five pm, nine to ten a.m"),
    ("10:30 - 11:30, 9 am - 5 pm", "ten thirty to eleven thirty, nine a.m to five pm"),
    ("1,00,000, 10,00,000 ₹1,00,000", "one hundred thousand, one million one hundred thousand rupees"),
    ("10 000 1 000 000 km, 10 200", "ten thousand one million kilometers, ten two hundred"),
    ("12V 60W 12.5A 12V-24V", "twelve volts sixty watts 12.5 amps twelve volts to twenty four volts"),
    ("The Dog 007, (020)", "The Dog zero zero seven, (zero two zero)"),
    ("555-0123", "five five five, zero one two three"),
    ("020-7946-0958", "zero two zero, seven nine four six, zero nine five eight"),
    ("$-5 -$5", "minus five dollars minus five dollars"),
    ("$5+ $50+ $5-a-day", "five dollars plus fifty dollars plus five dollars a day"),
    ("$5-million $5 Million", "five million dollars five million dollars"),
    ("Matt 5:3–12, John 3:6", "Matt five three to twelve, John three six"),
    ("5x3 cm 4x100m", "five by three centimeters four by one hundred meters"),
    ("5 x 3 cm, 1920 x 1080", "five by three centimeters, nineteen twenty by ten eighty"),
    ("6 ft 2 in, 5 ft. 10 in.", "six feet two inches, five feet. ten inches."),
    ("5' 10\"", 'five feet ten"'),
    ("x > 5, a > b", "x is greater than five, a is greater than b"),
    ("> 5, 5 - 2, <b>5</b>", "more than five, five minus two, five"),
    ("25ºC 20º", "twenty five degrees Celsius twenty degrees"),
    ("5/hr $20/hr $5/kg", "five per hour twenty dollars per hour five dollars per kilogram"),
    (
        "US$5 and A$3.50, C$1",
        "five U.S. dollars and three Australian dollars and fifty cents, one Canadian dollar",
    ),
    ("HK$20M, US$5 million", "twenty million Hong Kong dollars, five million U.S. dollars"),
    ("3/14/2026 25/12/24", "March fourteenth, 2026 December twenty fifth, 2024"),
    ("3.11.7 v1.2.3", "3 point 11 point 7 v 1 point 2 point 3"),
    ("v2.1.3-rc1 2.0.1+5", "v 2 point 1 point 3 rc 1 2 point 0 point 1 plus 5"),
    ("10.0.0.1:8080 10.0.0.0/8", "10 dot 0 dot 0 dot 1 8080 10 dot 0 dot 0 dot 0 8"),
    ("1.000.000", "1,000,000"),
    ("10.0.0.1 192.168.100.200", "10 dot 0 dot 0 dot 1 192 dot 168 dot 100 dot 200"),
    ("1-800-555-0199", "1, 8 hundred, 5 5 5, 0 1 9 9"),
    ("555-1234 212-555-1234", "5 5 5, 1 2 3 4 2 1 2, 5 5 5, 1 2 3 4"),
    ("2,5 kg 1-1/2 2-1/2", "2.5 kilograms one and a half two and a half"),
    ("60 MPH, 10 LBS, 5FT", "sixty miles per hour, ten pounds, five feet"),
    ("US$5.00, ¥1.00 A$.50", "five U.S. dollars, one yen zero Australian dollars and fifty cents"),
    ("5,50 €", "five euros and fifty cents"),
    ("+1-555-123-4567", "plus 1, 5 5 5, 1 2 3, 4 5 6 7"),
    ("(555) 123-4567 (555) 5", "(5 5 5) 1 2 3, 4 5 6 7 (555) 5"),
    ("555.123.4567", "5 5 5, 1 2 3, 4 5 6 7"),
    ("1234567 km, 1234567", "1,234,567 kilometers, 1 2 3 4 5 6 7"),
]
"""A text, and words that are read alike."""


@pytest.mark.parametrize(("text", "words"), READ_AS)
def test_figures_are_read_as_words(phonemiser: Phonemiser, text: str, words: str) -> None:
    read, spelt = (" ".join(word.symbols for word in phonemiser.words(words)) for words in (text, words))
    assert read == spelt


@pytest.mark.parametrize(
    "text",
    [
        "24/7 9/11",
        "F-16 GPT-4 B52",
        "5-3 100-1000 27.11.2026",
        "1999 1990s 3rd 7pm 10%",
        "seat 12A 27L 5W-30 0x1F",
        "737s 5s 1s and 0s, 1,000s",
        "737-800 7-11 9-11",
        "5m people and 007",
    ],
)
def test_what_misaki_says_of_figures_is_not_read_anew(text: str) -> None:
    assert [reading for *_, reading in in_words(text)] == text.split()


def test_a_word_that_is_read_as_more_is_over_with_the_last_of_them(phonemiser: Phonemiser) -> None:
    text = "At  3:45 we walk 5 km, or 5 €."
    words = phonemiser.words(text)
    assert [text[word.start : word.end] for word in words] == [*text.split()[:-2], "5 €."]
    ids, ends = phonemiser.read(text)
    assert [end for end, _ in ends] == [word.end for word in words]
    assert ends[1][1] - ends[0][1] == 2 * 3 + 2 * sum(
        len(word.symbols) for word in phonemiser.words("three forty five")
    )
    assert ends[-1][1] == len(ids) - 1


FIGURES = st.lists(
    st.sampled_from(
        [*"0123456789" * 3, *":-–/.,+=×°%$€#*^~<>()'\" ½²é日\u0663", "km", "kg", "C", "pm", "s", "th"]
    ),
    min_size=1,
    max_size=10,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(before=FIGURES, after=FIGURES, digits=st.permutations("123456789"))
def test_no_digit_is_silent(phonemiser: Phonemiser, before: str, after: str, digits: list[str]) -> None:
    """With another digit in its place a text sounds another way."""
    one, other = (
        [word.symbols for word in phonemiser.words(f"{before}{digit}{after}")] for digit in digits[:2]
    )
    assert one != other


SHAPES = [
    "5",
    "05",
    "12",
    "123",
    "1234",
    "1.5",
    "12.5",
    "123.45",
    ".5",
    "1,234",
    "12:30",
    "1/2",
    "$5",
    "$1.50",
    "5%",
    "5km",
    "½",
    "1,5",
    "1.2.3",
]


def test_any_two_numbers_are_read() -> None:
    for left, sign, right, space in product(SHAPES, "-–:/x=~^", SHAPES, ["", " "]):
        text = f"{left}{space}{sign}{space}{right}"
        assert len(list(in_words(text))) == len(text.split())


@pytest.mark.parametrize("text", ["{}", "${}", "{}/2", "{}th", "{}kg", "{}-{}", "{}.5", "-{}", "x{}"])
def test_a_number_of_thousands_of_digits_is_said(phonemiser: Phonemiser, text: str) -> None:
    """Python refuses to read more than 4300 at once."""
    assert len(phonemiser.words(text.replace("{}", "7" * 5000))[0].symbols) > 5000


def test_numbers_as_words() -> None:
    spelt = {0: "zero", 21: "twenty-one", 110: "one hundred and ten", 1_000_001: "one million and one"}
    assert {number: cardinal(number) for number in spelt} == spelt
    assert cardinal(1_234) == "one thousand, two hundred and thirty-four"
    assert cardinal(10**18) == "one " + " ".join(["zero"] * 18)
    ordinals = {1: "first", 12: "twelfth", 20: "twentieth", 101: "one hundred and first"}
    assert {number: ordinal(number) for number in ordinals} == ordinals
    years = {
        1984: "nineteen eighty-four",
        1900: "nineteen hundred",
        1905: "nineteen oh-five",
        2006: "two thousand and six",
    }
    assert {number: year(number) for number in years} == years
    decimals = {"3.14": "three point one four", ".5": "point five", "5.": "five"}
    assert {number: decimal(number) for number in decimals} == decimals
