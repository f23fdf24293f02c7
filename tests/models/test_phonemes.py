"""Text to a voice's symbols: dictionaries, regular forms, numbers, punctuation, unknown words."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from antiphon.core.errors import CheckpointError
from antiphon.core.latin import has_words
from antiphon.models.cascade.symbols import symbols_of
from antiphon.models.phonemes import Phonemiser
from antiphon.models.phonemes.ipa import to_ipa
from antiphon.models.phonemes.lexicon import Lexicon
from antiphon.models.phonemes.network import MOST_LETTERS, WordNetwork
from antiphon.models.phonemes.numbers import cardinal, decimal, ordinal, year
from antiphon.models.phonemes.written import in_words
from fakes.model_files import word_network

NUMBER_WORDS = {
    "about": "əbˈWt",
    "at": "æt",
    "billionth": "bˈɪljənθ",
    "Celsius": "sˈɛlsiəs",
    "celsius": "sˈɛlsiəs",
    "cubed": "kjˈubd",
    "degree": "dəɡɹˈi",
    "divided": "dəvˈIdᵻd",
    "dollars": "dˈɑləɹz",
    "eighteenth": "ˌAttˈinθ",
    "eighth": "ˈAθ",
    "eightieth": "ˈAɾiəθ",
    "eleventh": "əlˈɛvənθ",
    "equals": "ˈikwᵊlz",
    "euro": "jˈʊɹO",
    "Fahrenheit": "fˈɛɹənhˌIt",
    "fifteenth": "fˌɪftˈinθ",
    "fifth": "fˈɪfθ",
    "fiftieth": "fˈɪftiəθ",
    "fortieth": "fˈɔɹɾiəθ",
    "fourteenth": "fˌɔɹtˈinθ",
    "fourth": "fˈɔɹθ",
    "gigabyte": "ɡˈɪɡəbˌIt",
    "gigabytes": "ɡˈɪɡəbˌIts",
    "half": "hˈæf",
    "hour": "ˈWəɹ",
    "hours": "ˈWəɹz",
    "hundredth": "hˈʌndɹədθ",
    "in": "ɪn",
    "is": "ɪz",
    "kilogram": "kˈɪləɡɹˌæm",
    "kilograms": "kˈɪləɡɹˌæmz",
    "kilometer": "kəlˈɑməɾəɹ",
    "least": "lˈist",
    "leaves": "lˈivz",
    "less": "lˈɛs",
    "meter": "mˈiɾəɹ",
    "meters": "mˈiɾəɹz",
    "mile": "mˈIl",
    "miles": "mˈIlz",
    "millionth": "mˈɪljənθ",
    "month": "mˈʌnθ",
    "nineteenth": "nˌIntˈinθ",
    "ninetieth": "nˈIndiəθ",
    "ninth": "nˈInθ",
    "November": "nOvˈɛmbəɹ",
    "number": "nˈʌmbəɹ",
    "o'clock": "əklˈɑk",
    "of": "ʌv",
    "oh": "ˈO",
    "or": "ɔɹ",
    "out": "ˈWt",
    "p": "pˈi",
    "per": "pɜɹ",
    "pm": "pˌiˈɛm",
    "pound": "pˈWnd",
    "pounds": "pˈWndz",
    "power": "pˈWəɹ",
    "quarters": "kwˈɔɹɾəɹz",
    "seconds": "sˈɛkəndz",
    "section": "sˈɛkʃən",
    "seventeenth": "sˌɛvəntˈinθ",
    "seventh": "sˈɛvənθ",
    "seventieth": "sˈɛvəntiəθ",
    "sixteenth": "sˌɪkstˈinθ",
    "sixth": "sˈɪksθ",
    "sixtieth": "sˈɪkstiəθ",
    "square": "skwˈɛɹ",
    "squared": "skwˈɛɹd",
    "tenth": "tˈɛnθ",
    "than": "ðən",
    "thirteenth": "θˌɜɹtˈinθ",
    "thirtieth": "θˈɜɹɾiəθ",
    "thousandth": "θˈWzᵊnθ",
    "times": "tˈImz",
    "train": "tɹˈAn",
    "trillionth": "tɹˈɪljənθ",
    "twelfth": "twˈɛlfθ",
    "twentieth": "twˈɛntiəθ",
    "yen": "jˈɛn",
    "gigahertz": "ɡˈɪɡəhˌɜɹts",
    "kilohertz": "kˈɪləhˌɜɹts",
    "zero": "zˈɪɹO",
    "three": "θɹˈi",
    "four": "fˈɔɹ",
    "six": "sˈɪks",
    "seven": "sˈɛvən",
    "eight": "ˈAt",
    "nine": "nˈIn",
    "ten": "tˈɛn",
    "eleven": "əlˈɛvᵊn",
    "twelve": "twˈɛlv",
    "thirteen": "θˌɜɹtˈin",
    "fourteen": "fˌɔɹtˈin",
    "fifteen": "fˌɪftˈin",
    "sixteen": "sˌɪkstˈin",
    "seventeen": "sˌɛvəntˈin",
    "eighteen": "ˌAtˈin",
    "nineteen": "nˌIntˈin",
    "thirty": "θˈɜɹɾi",
    "forty": "fˈɔɹɾi",
    "fifty": "fˈɪfti",
    "sixty": "sˈɪksti",
    "seventy": "sˈɛvənti",
    "eighty": "ˈAɾi",
    "ninety": "nˈIndi",
    "hundred": "hˈʌndɹəd",
    "thousand": "θˈWzᵊnd",
    "million": "mˈɪljᵊn",
    "billion": "bˈɪljən",
    "trillion": "tɹˈɪljən",
    "second": "sˈɛkənd",
    "third": "θˈɜɹd",
    "quarter": "kwˈɔɹɾəɹ",
    "minus": "mˈInəs",
    "plus": "plˈʌs",
}
DICTIONARY: dict[str, Any] = {
    **NUMBER_WORDS,
    "A": "ˈA",
    "am": "ˈæm",
    "and": "ænd",
    "apple": "ˈæpᵊl",
    "bat": "bˈæt",
    "box": "bˈɑks",
    "cat": "kˈæt",
    "cent": "sˈɛnt",
    "doctor": "dˈɑktəɹ",
    "dog": "dˈɔɡ",
    "dollar": "dˈɑləɹ",
    "first": "fˈɜɹst",
    "five": "fˈIv",
    "hope": "hˈOp",
    "M": "ˈɛm",
    "Mr.": "mˈɪstəɹ",
    "one": "wˈʌn",
    "percent": "pəɹsˈɛnt",
    "point": "pˈYnt",
    "read": {"DEFAULT": "ɹˈid", "VBN": "ɹˈɛd"},
    "S": "ˈɛs",
    "that": {"DEFAULT": "ðæt", "DT": "ðˈæt"},
    "to": "tu",
    "twenty": "twˈɛnti",
    "two": "tˈu",
    "U": "jˈu",
    "us": "ˌʌs",
    "used": {"DEFAULT": "jˈuzd", "VBD": "jˈust"},
    "walk": "wˈɔk",
    "want": "wˈɑnt",
    "was": "wʌz",
}
LETTERS = "_^$ !'(),-.:;?\"abcdefhijklmnopstuvwxzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒˈˌːθᵻ"
VOCABULARY = {symbol: number for number, symbol in enumerate(LETTERS)}


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("voice")
    sizes, weights = word_network()
    data = {"dictionary": DICTIONARY, "second_dictionary": {"hello": "həlˈO"}, "network": sizes}
    (directory / "phonemes.json").write_text(json.dumps(data), encoding="utf-8")
    (directory / "vocab.json").write_text(json.dumps(VOCABULARY), encoding="utf-8")
    save_file(weights, directory / "phonemes.safetensors")
    return directory


@pytest.fixture(scope="module")
def phonemiser(voice: Path) -> Phonemiser:
    return Phonemiser.load(voice)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the dog, the apple.", "ðə dˈɔːɡ, ðiː ˈæpəl."),
        ("Hello Dog DOG", "həlˈoʊ dˈɔːɡ dˈɔːɡ"),
        ("dogs cats boxes", "dˈɔːɡz kˈæts bˈɑːksᵻz"),
        ("wanted walked hoping batting", "wˈɑːntᵻd wˈɔːkt hˈoʊpɪŋ bˈæɾɪŋ"),
        ("dog's the dogs' cat", "dˈɔːɡz ðə dˈɔːɡz kˈæt"),
        ("I used to walk, I used two", "ˌaɪ jˈuːzd tə wˈɔːk, ˌaɪ jˈuːzd tˈuː"),
        ("was read read", "wʌz ɹˈɛd ɹˈiːd"),
        ("that cat was that", "ðˈæt kˈæt wʌz ðæt"),
        ("Mr. Dog. The U.S.", "mˈɪstɚ dˈɔːɡ. ðə jˌuːˈɛs"),
        ("$5.20, $1, 5% 1.2", "fˈaɪv dˈɑːlɚz ænd twˈɛnti sˈɛnts, wˈʌn dˈɑːlɚ, fˈaɪv pɚsˈɛnt wˈʌn pɔɪnt tˈuː"),
        ("1st", "fˈɜːst"),
        ("“dog” (cat) — …two", '"dˈɔːɡ" (kˈæt) tˈuː'),
        ("**dog** `two` dog/two", "dˈɔːɡ tˈuː dˈɔːɡ tˈuː"),
        ("apple to dog to apple", "ˈæpəl tə dˈɔːɡ tʊ ˈæpəl"),
        ("", ""),
        (" *** ``` — ", ""),
    ],
)
def test_what_is_said(phonemiser: Phonemiser, text: str, said: str) -> None:
    assert " ".join(word.symbols for word in phonemiser.words(text)) == said


def test_ids_and_where_each_word_is(phonemiser: Phonemiser) -> None:
    text = "The  dog — two!\n"
    words = phonemiser.words(text)
    assert [text[word.start : word.end] for word in words] == ["The", "dog", "two!"]
    ids = phonemiser.ids(words)
    names = {number: symbol for symbol, number in VOCABULARY.items()}
    assert "".join(names[number] for number in ids) == "^_ð_ə_ _d_ˈ_ɔ_ː_ɡ_ _t_ˈ_u_ː_!_$"
    again, ends = phonemiser.read(text)
    assert again == ids
    assert [(text[:end], "".join(names[number] for number in ids[:over])) for end, over in ends] == [
        ("The", "^_ð_ə_"),
        ("The  dog", "^_ð_ə_ _d_ˈ_ɔ_ː_ɡ_"),
        ("The  dog — two!", "^_ð_ə_ _d_ˈ_ɔ_ː_ɡ_ _t_ˈ_u_ː_!_"),
    ]
    assert phonemiser.read(" — ") == ([], [])


def test_a_voice_with_a_dictionary_reads_phonemes(voice: Path, phonemiser: Phonemiser) -> None:
    assert symbols_of(voice).read("The dog") == phonemiser.read("The dog")


def test_an_unknown_word_is_said_as_the_network_has_it(phonemiser: Phonemiser) -> None:
    first, again, accented = (phonemiser.words(text) for text in ("zyxg", "zyxg", "zýxg"))
    assert first == again
    assert first[0].symbols == accented[0].symbols
    assert phonemiser.words("zyxg")[0].symbols != phonemiser.words("qwrt")[0].symbols


READ_AS = [
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
    assert [text[word.start : word.end] for word in words] == text.split()
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


@pytest.mark.parametrize("text", ["こんにちは 你好", "Привет", "🎉", "日本-日本"])
def test_letters_of_another_script_are_silent(phonemiser: Phonemiser, text: str) -> None:
    assert phonemiser.read(text) == ([], [])
    assert not has_words(text, latin_only=True)
    mixed = f"The dog {text} 2"
    assert [mixed[word.start : word.end] for word in phonemiser.words(mixed)] == ["The", "dog", "2"]
    assert has_words(mixed, latin_only=True)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40))
def test_a_text_is_a_chunk_after_another(text: str) -> None:
    assert [text[start:end] for start, end, _ in in_words(text)] == re.findall(r"\S+", text)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(max_size=40)
    | st.lists(st.sampled_from([*"0129,.-$£%'\"’(/ aAsZ²½é日", *DICTIONARY, "th", "ing"]), max_size=12).map(
        "".join
    )
)
def test_any_text_is_said_or_silent(phonemiser: Phonemiser, text: str) -> None:
    words = phonemiser.words(text)
    ends = [0] + [word.end for word in words]
    assert all(before <= word.start < word.end for before, word in zip(ends, words, strict=False))
    assert ends[-1] <= len(text)
    ids = phonemiser.ids(words)
    assert len(ids) == 3 + 2 * sum(len(word.symbols) + 1 for word in words) - 2 * bool(words)
    assert set(ids) <= set(VOCABULARY.values())


def test_a_word_of_many_parts_costs_no_more_than_its_parts(
    phonemiser: Phonemiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the network read a word of many letters at once."""
    looked = Counter[str]()
    pronounce, word = Lexicon.pronounce, WordNetwork._word

    def counted(self: Lexicon, *asked: Any) -> Any:
        looked["lexicon"] += 1
        return pronounce(self, *asked)

    def read(self: WordNetwork, letters: str) -> str:
        looked["longest"] = max(looked["longest"], len(letters))
        return word(self, letters)

    monkeypatch.setattr(Lexicon, "pronounce", counted)
    monkeypatch.setattr(WordNetwork, "_word", read)
    phonemiser.read("-".join(["ab"] * 100))
    assert looked["lexicon"] <= 400
    phonemiser.read("x" * 200)
    assert 0 < looked["longest"] <= MOST_LETTERS


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


@pytest.mark.parametrize(
    ("sounds", "ipa"),
    [
        ("sˈi hˈæpi kɹiˈAt bi", "sˈiː hˈæpi kɹiːˈeɪt biː"),
        ("pˈiəɹ fˈɜɹ fˈɜɹi", "pˈiɚ fˈɜː fˈɜːɹi"),
        ("A I O W Y ʤ ʧ T ᵊ", "eɪ aɪ oʊ aʊ ɔɪ dʒ tʃ ɾ ə"),
        ("“ — ”", '" "'),
    ],
)
def test_sounds_as_espeak_writes_them(sounds: str, ipa: str) -> None:
    assert to_ipa(sounds) == ipa


@pytest.mark.parametrize("file", ["phonemes.json", "vocab.json", "phonemes.safetensors"])
def test_a_voice_that_lacks_a_file_or_what_is_in_it(voice: Path, file: str, tmp_path: Path) -> None:
    broken = tmp_path / "voice"
    shutil.copytree(voice, broken)
    if file.endswith("json"):
        (broken / file).write_text("{}")
    else:
        save_file({}, broken / file)
    with pytest.raises(CheckpointError, match=r"lack|has no"):
        Phonemiser.load(broken)
    (broken / file).unlink()
    with pytest.raises(CheckpointError, match=r"has no|cannot be read"):
        Phonemiser.load(broken)


def test_a_phoneme_is_read_once(phonemiser: Phonemiser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of the test ends no word: it says all 63 phonemes that there may be."""
    num_rows, linear = 0, WordNetwork._linear

    def counted(self: WordNetwork, name: str, hidden: Any) -> Any:
        nonlocal num_rows
        num_rows += len(hidden)
        return linear(self, name, hidden)

    monkeypatch.setattr(WordNetwork, "_linear", counted)
    phonemiser.words("zyxgzyxg")
    assert num_rows == (63 + 10) * 8, "of every phoneme, and of the letters with a sign on either side"
