"""From text to a voice's symbols: phonemes where the voice has a dictionary, or characters as transformers'
VitsTokenizer has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from antiphon.core.errors import CheckpointError
from antiphon.models.phonemes import Phonemiser


class Symbols(Protocol):
    """What a voice reads."""

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a phrase, none where it has nothing that this voice can say; and by word after how many
        characters of the phrase and how many of the ids it is over."""
        ...


def symbols_of(path: Path) -> Symbols:
    """Of the voice in this directory. Raises CheckpointError."""
    return Phonemiser.load(path) if has_phonemes(path) else Characters(path)


def has_phonemes(path: Path) -> bool:
    return (path / "phonemes.json").exists()


class Characters:
    """Each character is a symbol, with a blank around all where the voice has one."""

    def __init__(self, path: Path) -> None:
        """Of a voice whose tokenizer reads characters (`checkpoint.parts`); raises CheckpointError."""
        from transformers import VitsTokenizer

        try:
            self._tokenizer: Any = VitsTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # the library raises errors of many kinds
            raise CheckpointError(f"{path}: no usable tokenizer: {error}") from error

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ends = [word.end() for word in re.finditer(r"\S+", text)]
        return self._ids(text), [(end, len(self._ids(text[:end]))) for end in ends]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text).input_ids
