"""Texts have exactly as many words as asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.rng import stream
from antiphon.workload.words import passage, request


@given(st.integers(1, 80), st.integers(0, 2**32))
def test_requests(words: int, seed: int) -> None:
    text = request(words, stream(seed, "text"))
    assert len(text.split()) == words
    assert not set("{}") & set(text)


@given(st.integers(1, 900), st.integers(0, 2**32))
def test_passages(words: int, seed: int) -> None:
    text = passage(words, stream(seed, "text"))
    assert len(text.split()) == words
    assert text.endswith(".")


def test_requests_differ() -> None:
    assert len({request(6, stream(seed, "text")) for seed in range(50)}) > 10
