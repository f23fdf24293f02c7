"""As many rows and tokens as there is time for."""

from __future__ import annotations

import pytest

from antiphon.latency.default_sizes import (
    MOST_ROWS,
    MOST_TOKENS,
    decode_s,
    prompt_s,
    rows_within,
    tokens_within,
)
from antiphon.latency.roofline import on_cores
from antiphon.latency.shapes import DecoderShape

SMALL = DecoderShape(30, 576, 9, 3, 64, 49152, mlp=1536)
"""SmolLM2-135M."""
LARGE = DecoderShape(36, 4096, 32, 8, 128, 151936, mlp=12288)


def test_32_streams_of_a_small_model_on_two_cores() -> None:
    assert rows_within(on_cores(SMALL, 2), 0.2, 16) == 32


def test_more_cores_have_more() -> None:
    rows = [rows_within(on_cores(SMALL, cores), 0.2, 16) for cores in (1, 2, 8, 64)]
    assert rows == sorted(rows)
    assert rows[-1] > rows[0]
    tokens = [tokens_within(on_cores(SMALL, cores), 1.0, 1024) for cores in (2, 8, 64)]
    assert tokens == sorted(tokens)
    assert tokens[-1] > tokens[0]


@pytest.mark.parametrize("seconds", [0.05, 0.2, 1.0])
def test_the_most_that_is_in_time(seconds: float) -> None:
    model = on_cores(SMALL, 8)
    rows, tokens = rows_within(model, seconds, 1), tokens_within(model, seconds, 1)
    assert decode_s(model, rows) <= seconds
    assert rows == MOST_ROWS or decode_s(model, 2 * rows) > seconds
    assert prompt_s(model, tokens) <= seconds
    assert tokens == MOST_TOKENS or prompt_s(model, 2 * tokens) > seconds


def test_never_fewer_than_asked() -> None:
    model = on_cores(LARGE, 2)
    assert rows_within(model, 0.2, 16) == 16
    assert tokens_within(model, 1.0, 1024) == 1024
