"""Text as it streams is the text of the whole, never half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from antiphon.core.errors import CheckpointError
from antiphon.models.detokenise import (
    MOST_HELD,
    Spelling,
    StreamingDetokeniser,
    byte_letters,
    detokenisers_of,
)

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


@given(st.lists(st.sampled_from([0x41, 0x80, 0xBF, 0xC3, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF]), max_size=90))
def test_long_runs_of_bytes_that_are_no_characters_stream_to_the_same(content: list[int]) -> None:
    letters = byte_letters()
    of_byte = {value: ALPHABET.index(letter) for letter, value in letters.items()}
    ids = [of_byte[value] for value in content]
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    assert "".join(stream.push([token]) for token in ids) + stream.flush() == TOKENIZER.decode(ids)


def test_a_run_of_bytes_that_are_no_characters_is_shown_and_decoded_in_bounded_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    sizes: list[int] = []
    decoded = stream._decoded

    def counted(token_ids: list[int]) -> str:
        sizes.append(len(token_ids))
        return decoded(token_ids)

    monkeypatch.setattr(stream, "_decoded", counted)
    half = TOKENIZER.encode("é").ids[1]
    shown = [len(stream.push([half])) for _ in range(1000)]
    assert sum(shown) >= 1000 - MOST_HELD
    assert max(sizes) <= 2 * MOST_HELD


@given(st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 256, 257]), max_size=60))
def test_bytes_as_a_fallback_that_are_no_characters_end_no_reply(ids: list[int]) -> None:
    vocab = {f"<0x{value:02X}>": value for value in range(256)} | {"\u2581Hello": 256, "lo": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    stream = StreamingDetokeniser(tokenizer, Spelling(tokenizer))
    text = "".join(stream.push([token]) for token in ids) + stream.flush()
    assert text.count("lo") == ids.count(256) + ids.count(257)


def test_special_tokens_never_reach_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps, and decodes again at each step, all that has shown nothing."""
    stream = StreamingDetokeniser(TOKENIZER, SPELLING)
    monkeypatch.setattr(stream, "_stream", None)
    monkeypatch.setattr(stream, "_tokenizer", None)
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
