"""Tokens to text as they come, on the checkpoint's own tokenizer. Knows nothing of events or sockets."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from antiphon.core.errors import CheckpointError
from antiphon.wire.ports import DetokeniserFactory

BYTE_NAME = re.compile("<0x[0-9A-F]{2}>")


class StreamingDetokeniser:
    """One reply's text. Special tokens are left out; half a character waits for its other half."""

    def __init__(self, tokenizer: Tokenizer, spelling: Spelling) -> None:
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._num_chars = 0

    def push(self, token_ids: list[int]) -> str:
        shown = (token for token in token_ids if token not in self._spelling.unshown)
        pieces = [self._stream.step(self._tokenizer, token) or "" for token in shown]
        self._token_ids += token_ids
        text = "".join(pieces)
        self._num_chars += len(text)
        return text

    def flush(self) -> str:
        """What the stream held back: bytes that never became a character show as U+FFFD."""
        text = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)[self._num_chars :]
        self._num_chars += len(text)
        return text

    def spelled(self, token_id: int) -> bytes:
        """What a token stands for by itself."""
        return self._spelling.of(token_id)


class Spelling:
    """The bytes of a tokenizer's tokens: half a character has some, and no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = json.loads(tokenizer.to_str())
        self._tokenizer = tokenizer
        self._added = {token["id"]: token["content"].encode() for token in content["added_tokens"]}
        self.unshown = frozenset(token["id"] for token in content["added_tokens"] if token["special"])
        """Left out of texts."""
        self._bytes = byte_letters() if "ByteLevel" in json.dumps(content["decoder"]) else None

    def of(self, token_id: int) -> bytes:
        known = self._added.get(token_id)
        if known is not None:
            return known
        name = self._tokenizer.id_to_token(token_id) or ""
        if self._bytes is not None:
            return bytes(self._bytes[letter] for letter in name if letter in self._bytes)
        if BYTE_NAME.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        return name.replace("\u2581", " ").encode()


def byte_letters() -> dict[str, int]:
    """How byte-level tokenizers write bytes: as printable letters, and others from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in plain]
    return {chr(value): value for value in plain} | {chr(256 + at): value for at, value in enumerate(others)}


def detokenisers_of(checkpoint: Path) -> DetokeniserFactory:
    """A factory on `tokenizer.json` of a checkpoint directory, which is read once."""
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; the server needs it to turn tokens into text")
    tokenizer = Tokenizer.from_file(str(file))
    spelling = Spelling(tokenizer)
    return lambda: StreamingDetokeniser(tokenizer, spelling)
