"""Tokens to text as they come, on the checkpoint's own tokenizer. Knows nothing of events or sockets."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from antiphon.core.errors import CheckpointError
from antiphon.wire.ports import DetokeniserFactory

MOST_HELD = 16
"""Tokens that wait for more of a character."""
BYTE_NAME = re.compile("<0x[0-9A-F]{2}>")


class StreamingDetokeniser:
    """One reply's text. Special tokens are left out; half a character waits for its other half, and of bytes
    that never become one at most `MOST_HELD` tokens do."""

    def __init__(self, tokenizer: Tokenizer, spelling: Spelling) -> None:
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._stream = DecodeStream(skip_special_tokens=True) if spelling.is_byte_level else None
        """Quicker, as long as no more than `MOST_HELD` are held: it decodes all of them for each. Where bytes
        are a fallback it breaks off at some that are no characters."""
        self._shown: list[int] = []
        """The last tokens that were shown: how the next begins may depend on them."""
        self._shown_text = ""
        self._held: list[int] = []

    def push(self, token_ids: list[int]) -> str:
        return "".join([self._step(token) for token in token_ids if token not in self._spelling.unshown])

    def flush(self) -> str:
        """What is held back: bytes that never became a character show as U+FFFD."""
        if self._stream is not None:
            self._stream, self._shown_text = None, self._decoded(self._shown)
        return self._show(len(self._held)) if self._held else ""

    def _step(self, token: int) -> str:
        self._held.append(token)
        if self._stream is not None:
            text = self._stream.step(self._tokenizer, token)
            if text is not None:
                self._shown, self._held = self._held, []
            if len(self._held) < MOST_HELD:
                return text or ""
            self._stream, self._shown_text = None, self._decoded(self._shown)
        text = self._decoded([*self._shown, *self._held])
        if len(text) > len(self._shown_text) and not text.endswith("\ufffd"):
            return self._show(len(self._held), text)
        return "" if len(self._held) < MOST_HELD else self._show(self._certain())

    def _certain(self) -> int:
        """Of what is held, so many tokens that no later byte changes: those before the last one that begins a
        character. A character has four bytes at most."""
        for at in range(len(self._held) - 1, len(self._held) - 4, -1):
            first = self._spelling.of(self._held[at])[:1]
            if first and first[0] & 0xC0 != 0x80:
                return at
        return len(self._held)

    def _show(self, count: int, text: str | None = None) -> str:
        """The first ones of what is held; `text`: of them and those shown before, if that is known."""
        text = self._decoded([*self._shown, *self._held[:count]]) if text is None else text
        fresh = text[len(self._shown_text) :]
        self._shown, self._held = self._held[:count], self._held[count:]
        self._shown_text = self._decoded(self._shown)
        return fresh

    def _decoded(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

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
        self.is_byte_level = "ByteLevel" in json.dumps(content["decoder"])
        self._bytes = byte_letters() if self.is_byte_level else None

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
