"""A cascade's voice: phrases, windows, words, and the wire's rate."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models

from antiphon.models.cascade.phrases import next_phrase, shortened
from antiphon.models.cascade.symbols import Characters
from antiphon.models.cascade.vits import Vits
from antiphon.models.cascade.vits_layout import VitsConfig, voice_layout
from antiphon.models.cascade.voice import WINDOW, VitsVoice
from antiphon.models.layout import Layout

TEXT = "well, it is a fine day. we shall walk by the sea, and then we go home again! yes."


def phrases(text: str) -> list[str]:
    """As they are cut once all of the text is there."""
    found: list[str] = []
    while (end := next_phrase(text, num_before=len(found), is_over=True)) is not None:
        found.append(text[:end])
        text = text[end:]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there, my friend.", ["Hello there, my friend."]),
        ("The sky is blue, as you know. It is.", ["The sky is blue, ", "as you know. ", "It is."]),
        ("Yes. Dr. Smith is in.", ["Yes. ", "Dr. Smith is in."]),
        ("Gen. Lee and Prof. Smith met", ["Gen. Lee and Prof. Smith met"]),
        ("It is 5 p.m. there. Is it 5 p.m. Yes", ["It is 5 p.m. there. ", "Is it 5 p.m. ", "Yes"]),
        ("Apples, pears etc. Then we ate.", ["Apples, pears etc. ", "Then we ate."]),
        ("Two: \n1. A dog.\n2. A cat.", ["Two: \n", "1. A dog.\n", "2. A cat."]),
        ("It costs 3.5 dollars. Really", ["It costs 3.5 dollars. ", "Really"]),
        (
            "one two three four five six or seven eight nine",
            ["one two three four five six ", "or seven eight nine"],
        ),
        (
            " ".join(["la"] * 40),
            ["la " * 6, "la " * 10, "la " * 18, "la " * 5 + "la"],
        ),
        ("", []),
    ],
)
def test_phrases_end_where_a_speaker_would_breathe(text: str, expected: list[str]):
    assert phrases(text) == expected


@pytest.mark.parametrize(
    ("text", "end", "most", "expected"),
    [
        ("one two three ", 14, 20, "one two three "),
        ("one two three ", 14, 9, "one two "),
        ("onetwothree four ", 17, 6, "onetwo"),
    ],
)
def test_a_phrase_that_is_too_long_ends_behind_a_word_if_it_can(
    text: str, end: int, most: int, expected: str
):
    assert text[: shortened(text, end, most)] == expected


def test_a_phrase_is_the_same_however_the_text_comes():
    """What is cut while it is written is cut so whatever follows."""
    text, found, start = TEXT * 3, [], 0
    for end in range(1, len(text) + 1):
        while (
            cut := next_phrase(text[start:end], num_before=len(found), is_over=end == len(text))
        ) is not None:
            found.append(text[start : start + cut])
            start += cut
    assert found == phrases(text)
    assert "".join(found) == text
    assert not any(one.split()[-1] in ("or", "and", "the") for one in found)


def test_no_phrase_is_cut_before_its_end_is_sure():
    assert next_phrase("Good morning", num_before=0, is_over=False) is None
    assert next_phrase("Good morning. ", num_before=0, is_over=False) is None
    assert next_phrase("Good morning. H", num_before=0, is_over=False) == len("Good morning. ")


def test_a_number_stays_with_what_it_counts() -> None:
    text = "From here we walk another 5 kilometers and then rest"
    cut = next_phrase(text, num_before=0, is_over=True)
    assert text[:cut] == "From here we walk another "
    counted = "One two three four five 6 7 8 9 10"
    cut = next_phrase(counted, num_before=0, is_over=True)
    assert counted[:cut] == "One two three four five 6 ", "numbers are cut apart"
    named = "e4 e5 Nf3 Nc6 Bb5 a6 Ba4 Nf6 and more"
    assert named[: next_phrase(named, num_before=0, is_over=True)] == "e4 e5 Nf3 Nc6 Bb5 a6 "


def test_a_phrase_in_which_every_word_leaves_something_open_ends_all_the_same() -> None:
    text = "and the of " * 9
    assert next_phrase(text, num_before=0, is_over=False) == len("and the of " * 4)


def test_a_phrase_of_many_tokens_is_cut_alike_however_many_come_at_once(voice: VitsVoice) -> None:
    """No clause ends it, and no word of it that a phrase may end with."""
    tokens = list(range(200))
    ends = []
    for step in (1, 7, 200):
        stream = voice.open(None)
        for first in range(0, len(tokens), step):
            voice._read(stream, tokens[first : first + step], False)
            if (end := voice._phrase_end(stream)) is not None:
                ends.append(end)
                break
    assert len(set(ends)) == 1


@pytest.mark.parametrize("template", ["{}and so it goes on", "{}"], ids=["behind it", "nothing behind it"])
@pytest.mark.parametrize("char", ["\n", "="])
def test_one_character_again_and_again_takes_time_in_proportion(template: str, char: str):
    def seconds(num_chars: int) -> float:
        text, found = template.format(char * num_chars), []
        for _ in range(5):
            begun = process_time()
            next_phrase(text, num_before=0, is_over=False)
            found.append(process_time() - begun)
        return min(found)

    assert seconds(16_000) < 24 * seconds(2_000), "8 times as long; the square would be 64"


def make(path: Path, **changed: Any) -> VitsVoice:
    config = VitsConfig.from_dict({**json.loads((path / "voice/config.json").read_text()), **changed})
    layout = Layout()
    voice_layout(layout, config)
    params = layout.fill(load_file(path / "voice/model.safetensors"), "cpu", torch.float64)
    tokenizer = Tokenizer.from_file(str(path / "thinker/tokenizer.json"))
    return VitsVoice(Vits(config, params), Characters(path / "voice"), tokenizer)


@pytest.fixture(scope="module")
def voice(cascade_checkpoint: Path) -> VitsVoice:
    return make(cascade_checkpoint)


def ids_of(voice: VitsVoice, text: str) -> list[int]:
    return voice._tokenizer.encode(text, add_special_tokens=False).ids


def speak(voice: VitsVoice, texts: Iterable[str], chunk: int) -> list[SimpleNamespace]:
    """All of them in one batch, so many tokens of each a step."""
    said = [SimpleNamespace(wave=[], words=[], steps=[], ids=ids_of(voice, text)) for text in texts]
    streams = [voice.open(None) for _ in said]
    tokens = [one.ids for one in said]
    while True:
        running = [i for i, one in enumerate(said) if tokens[i] or not one.steps or voice.owes(streams[i])]
        if not running:
            return said
        codes = [np.array(tokens[i][:chunk], np.int64).reshape(-1, 1) for i in running]
        for i in running:
            tokens[i] = tokens[i][chunk:]
        made = voice.decode([streams[i] for i in running], codes, [not tokens[i] for i in running])
        for i, pcm in zip(running, made, strict=True):
            said[i].wave.append(pcm.numpy())
            said[i].steps.append(len(pcm))
            said[i].words += voice.spoken(streams[i])


def whole(voice: VitsVoice, text: str) -> np.ndarray:
    parts = []
    for phrase in phrases(text):
        symbols, _ = voice._symbols.read(phrase.strip())
        parts.append(voice._vits.sound(voice._vits.frames(symbols, 0)[1][None])[0].numpy())
    return np.concatenate(parts)


def test_windows_of_many_sound_as_each_phrase_alone(voice: VitsVoice):
    texts = [TEXT, "good morning to all of you who are here", "..."]
    for chunk in (1, 50):
        said = speak(voice, texts, chunk)
        for one, text in zip(said[:2], texts, strict=False):
            np.testing.assert_allclose(np.concatenate(one.wave), whole(voice, text), atol=1e-9)
            assert max(one.steps) == WINDOW * voice._vits.config.hop
        assert sum(said[2].steps) == 0, "nothing in it can be said"


def in_bytes(voice: VitsVoice, words: list[str]) -> VitsVoice:
    """The same voice for a tokenizer of these words, from 256 on, and of bytes as a fallback."""
    vocab = {f"<0x{value:02X}>": value for value in range(256)} | {
        word: 256 + at for at, word in enumerate(words)
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return VitsVoice(voice._vits, voice._symbols, tokenizer)


def test_bytes_that_are_no_characters_are_passed_over(voice: VitsVoice):
    """As a fallback they may be any; whatever is said around them is spoken, and others sound as ever."""
    other = in_bytes(voice, ["\u2581good", "\u2581morning", "\u2581to", "\u2581you."])
    tokens = [[256, 0x61, 0xC3, 257, 258, 259], [256, 257, 258, 259]]
    streams, waves = [other.open(None) for _ in tokens], [[], []]
    for at in range(max(map(len, tokens)) + 100):
        codes = [np.array(one[at : at + 1], np.int64).reshape(-1, 1) for one in tokens]
        made = other.decode(streams, codes, [at + 1 >= len(one) for one in tokens])
        for wave, pcm in zip(waves, made, strict=True):
            wave.append(pcm.numpy())
    assert not any(map(other.owes, streams))
    np.testing.assert_allclose(np.concatenate(waves[1]), whole(voice, "good morning to you."), atol=1e-9)
    assert sum(map(len, waves[0])) > 0


def test_a_word_that_ends_in_half_a_character_is_over_with_its_last_token(voice: VitsVoice):
    other = in_bytes(voice, ["\u2581good"])
    stream, found = other.open(None), []
    codes = np.array([[256], [0xC3]], np.int64)
    while not found or other.owes(stream):
        other.decode([stream], [codes], [True])
        found += other.spoken(stream)
        codes = codes[:0]
    assert [tokens for tokens, _ in found] == [2]
    assert stream.over == 2


@pytest.mark.parametrize("text", ["a " + "=" * 4094, "a " + "= " * 2047, "=" * 4095 + "b"])
def test_what_nobody_can_say_is_looked_at_in_proportion(
    voice: VitsVoice, text: str, monkeypatch: pytest.MonkeyPatch
):
    num_seen = 0

    def counted(text: str, *, num_before: int, is_over: bool) -> int | None:
        nonlocal num_seen
        num_seen += len(text)
        return next_phrase(text, num_before=num_before, is_over=is_over)

    monkeypatch.setattr("antiphon.models.cascade.voice.next_phrase", counted)
    stream = voice.open(None)
    stream.text, stream.is_over = text, True
    while voice.owes(stream):
        voice.decode([stream], [np.zeros((0, 1), np.int64)], [True])
    assert not stream.text
    assert num_seen < 6 * len(text), "looked at as a whole for each cut: 8 times"


def test_words_end_where_their_durations_do(voice: VitsVoice):
    one = speak(voice, [TEXT], 2)[0]
    tokens = [count for count, _ in one.words]
    assert len(tokens) == len(TEXT.split())
    assert tokens == sorted(tokens)
    said = [voice._tokenizer.decode(one.ids[:count]).split() for count in tokens]
    assert said == [TEXT.split()[: n + 1] for n in range(len(tokens))]
    ends = [end for _, end in one.words]
    assert ends == sorted(ends)
    first = phrases(TEXT)[0].strip()
    symbols, words = voice._symbols.read(first)
    counts, _ = voice._vits.frames(symbols, 0)
    hop = voice._vits.config.hop
    assert ends[: len(words)] == [hop * sum(counts[:n]) for _, n in words]
    assert ends[-1] == sum(one.steps)


def test_sound_at_the_wires_rate(cascade_checkpoint: Path, voice: VitsVoice):
    slow = make(cascade_checkpoint, sampling_rate=22050)
    wave = np.concatenate(speak(slow, [TEXT], 3)[0].wave)
    expected = soxr.resample(whole(voice, TEXT).astype(np.float32), 22050, 24000)
    assert abs(len(wave) - len(expected)) <= 1
    length = min(len(wave), len(expected))
    np.testing.assert_allclose(wave[:length], expected[:length], atol=1e-4)
