"""Text to a voice's symbols: dictionaries, regular forms, numbers, punctuation, unknown words."""

from __future__ import annotations

import re
import shutil
from collections import Counter
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
from antiphon.models.phonemes.written import in_words
from models.spelling_voice import DICTIONARY, VOCABULARY, spelling_voice


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spelling_voice(tmp_path_factory.mktemp("voice"))


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
        ('“dog” ‘cat’ "two"', "dˈɔːɡ kˈæt tˈuː"),
        ("dog (cat) two (dog).", "dˈɔːɡ, kˈæt, tˈuː, dˈɔːɡ."),
        ("(dog) dog(s), two", "dˈɔːɡ, dˈɔːɡˌɛs, tˈuː"),
        ("dog — …two - cat–dog… two... two?!", "dˈɔːɡ; tˈuː; kˈæt; dˈɔːɡ; tˈuː. tˈuː?"),
        ('a dog, the “A”, "a" dog', "ɐ dˈɔːɡ, ðiː ˈeɪ, ˈeɪ dˈɔːɡ"),
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
    assert [text[word.start : word.end] for word in words] == ["The", "dog —", "two!"]
    ids = phonemiser.ids(words)
    names = {number: symbol for symbol, number in VOCABULARY.items()}
    assert "".join(names[number] for number in ids) == "^_ð_ə_ _d_ˈ_ɔ_ː_ɡ_;_ _t_ˈ_u_ː_!_$"
    again, ends = phonemiser.read(text)
    assert again == ids
    assert [(text[:end], "".join(names[number] for number in ids[:over])) for end, over in ends] == [
        ("The", "^_ð_ə_"),
        ("The  dog —", "^_ð_ə_ _d_ˈ_ɔ_ː_ɡ_;_"),
        ("The  dog — two!", "^_ð_ə_ _d_ˈ_ɔ_ː_ɡ_;_ _t_ˈ_u_ː_!_"),
    ]
    assert phonemiser.read(" — ") == ([], [])


def test_a_voice_with_a_dictionary_reads_phonemes(voice: Path, phonemiser: Phonemiser) -> None:
    assert symbols_of(voice).read("The dog") == phonemiser.read("The dog")


def test_an_unknown_word_is_said_as_the_network_has_it(phonemiser: Phonemiser) -> None:
    first, again, accented = (phonemiser.words(text) for text in ("zyxg", "zyxg", "zýxg"))
    assert first == again
    assert first[0].symbols == accented[0].symbols
    assert phonemiser.words("zyxg")[0].symbols != phonemiser.words("qwrt")[0].symbols


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
    assert '"' not in "".join(word.symbols for word in words), "no voice was taught it"


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


@pytest.mark.parametrize(
    ("sounds", "ipa"),
    [
        ("sˈi hˈæpi kɹiˈAt bi", "sˈiː hˈæpi kɹiːˈeɪt biː"),
        ("pˈiəɹ fˈɜɹ fˈɜɹi", "pˈiɚ fˈɜː fˈɜːɹi"),
        ("A I O W Y ʤ ʧ T ᵊ", "eɪ aɪ oʊ aʊ ɔɪ dʒ tʃ ɾ ə"),
        ("“ — ”", ";"),
        ('dˈɔɡ"tˈu "', "dˈɔːɡtˈuː"),
        ("(“dˈɔɡ”), dˈɔɡ(ˈɛs).) dˈɔɡ—dˈɔɡ", ",dˈɔːɡ, dˈɔːɡˈɛs. dˈɔːɡ; dˈɔːɡ"),
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
