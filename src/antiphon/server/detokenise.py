"""Tokens to text as they come, on the checkpoint's own tokenizer. Knows nothing of events or sockets."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from antiphon.core.errors import CheckpointError
from antiphon.wire.ports import DetokeniserFactory


class StreamingDetokeniser:
    """One reply's text. Special tokens are left out; half a character waits for its other half."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._num_chars = 0

    def push(self, token_ids: list[int]) -> str:
        pieces = [self._stream.step(self._tokenizer, token) or "" for token in token_ids]
        self._token_ids += token_ids
        text = "".join(pieces)
        self._num_chars += len(text)
        return text

    def flush(self) -> str:
        """What the stream held back: bytes that never became a character show as U+FFFD."""
        text = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)[self._num_chars :]
        self._num_chars += len(text)
        return text


def detokenisers_of(checkpoint: Path) -> DetokeniserFactory:
    """A factory on `tokenizer.json` of a checkpoint directory, which is read once."""
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; the server needs it to turn tokens into text")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda: StreamingDetokeniser(tokenizer)
