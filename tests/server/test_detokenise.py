"""Text as it streams is the text of the whole, never half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from antiphon.core.errors import CheckpointError
from antiphon.server.detokenise import Spelling, StreamingDetokeniser, detokenisers_of

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(ALPHABET)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


TOKENIZER = byte_tokenizer()
SPELLING = Spelling(TOKENIZER)


@given(st.text(max_size=30))
def test_text_survives(text: str) -> None:
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    ids = TOKENIZER.encode(text).ids
    pieces = [stream.push([token]) for token in ids] + [stream.flush()]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, len(ALPHABET)), max_size=40), st.integers(1, 5))
def test_any_bytes_stream_to_the_same_as_at_once(ids: list[int], size: int) -> None:
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    pieces = [stream.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert "".join(pieces) + stream.flush() == TOKENIZER.decode(ids, skip_special_tokens=True)
    assert stream.flush() == ""


def test_special_tokens_never_reach_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps, and decodes again at each step, all that has shown nothing."""
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    monkeypatch.setattr(stream, "_stream", None)
    assert stream.push([len(ALPHABET)] * 1000) == ""
    assert stream.flush() == ""


def test_special_tokens_are_silent_and_halves_wait() -> None:
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    ids = TOKENIZER.encode("é<|end|>").ids
    assert [stream.push([token]) for token in ids] == ["", "é", ""]


def test_the_tokenizer_comes_from_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        detokenisers_of(tmp_path)
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    stream = detokenisers_of(tmp_path)()
    assert stream.push(TOKENIZER.encode("hi").ids) == "hi"


def test_the_tokens_of_a_call_are_text(tiny_checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json"))
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    detokeniser = detokenisers_of(tiny_checkpoint)()
    assert detokeniser.push(tokenizer.encode(text).ids) + detokeniser.flush() == text


@given(st.text(max_size=30))
def test_tokens_are_spelled_in_the_bytes_of_the_text(text: str) -> None:
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    assert b"".join(map(stream.spelled, TOKENIZER.encode(text).ids)) == text.encode()
    assert stream.push([]) == "", "and keep no state"


def test_what_is_no_byte_level_token_is_spelled_too() -> None:
    pieces = {"<unk>": 0, "\u2581hi": 1, "<0xE2>": 2, "é": 3}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    spelling = Spelling(tokenizer)
    assert [spelling.of(token) for token in (1, 2, 3, 4)] == [b" hi", b"\xe2", "é".encode(), b"<s>"]
    assert spelling.of(999) == b""
