"""What requests are told of their prompts survives that they lose their rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from antiphon.core.facts import NO_INTS, StagePrompt
from antiphon.core.logprobs import read_logs
from antiphon.core.plans import Join, ints
from antiphon.core.sampling import Sampling
from antiphon.engine import logprobs
from antiphon.engine.logprobs import Logprobs
from antiphon.engine.rows import FlatStep, Piece

CPU, VOCAB, LENGTH = torch.device("cpu"), 11, 6
SCORES = torch.randn(LENGTH, VOCAB, generator=torch.Generator().manual_seed(1))


def join(request: int, row: int = 0) -> Join:
    ids = np.arange(LENGTH)
    sampling = Sampling(logprobs=1, prompt_logprobs=True)
    return Join(row, request, StagePrompt(ids, ids, (), 0, NO_INTS), 0, sampling, np.zeros((0, 1), np.int64))


def read(told: Logprobs, start: int, count: int) -> None:
    """A step with these tokens of the prompt in row 0."""
    piece = Piece(0, start, count, 0)
    tokens = told.prompt_tokens(FlatStep(count, [piece], NO_INTS, NO_INTS, NO_INTS))
    told.read(SCORES[start:][tokens], lambda hidden: hidden)


def draw(told: Logprobs) -> bytes:
    """The token of row 0."""
    scores = told.scores(SCORES[-1:], ints([0]))
    assert scores is not None
    return told.drawn(scores, ints([0]), torch.tensor([3])).landed()[0]


@pytest.fixture
def whole() -> bytes:
    told = Logprobs(CPU)
    told.join(join(1))
    read(told, 0, LENGTH)
    whole = draw(told)
    values = [log.logprob for log in read_logs(whole, 1)]
    assert len(values) == LENGTH + 1
    assert not np.isnan(values[1:]).any()
    return whole


def test_a_request_that_loses_its_row_with_its_first_token_tells_all_again(whole: bytes) -> None:
    """Its KV is still there: only the last token of its prompt is computed again."""
    told = Logprobs(CPU)
    told.join(join(1))
    read(told, 0, LENGTH)
    assert draw(told) == whole
    told.forget([0])
    told.join(join(1))
    read(told, LENGTH - 1, 1)
    assert draw(told) == whole


def test_many_others_that_come_and_go_do_not_make_it_forgotten(whole: bytes) -> None:
    told = Logprobs(CPU)
    told.join(join(1))
    read(told, 0, 4)
    for other in range(2, 200):
        told.join(join(other))
        read(told, 0, LENGTH)
        draw(told)
        told.forget([0])
    told.join(join(1))
    read(told, 4, 2)
    assert draw(told) == whole


def test_what_is_kept_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, whole: bytes) -> None:
    monkeypatch.setattr(logprobs, "MOST_KEPT_BYTES", 250)
    told = Logprobs(CPU)
    for request in range(1, 5):
        told.join(join(request))
        read(told, 0, LENGTH)
        draw(told)
    assert len(told._kept) == 250 // (len(whole) * LENGTH // (LENGTH + 1))
    told.forget([0])
    told.join(join(1))
    read(told, LENGTH - 1, 1)
    assert np.isnan([log.logprob for log in read_logs(draw(told), 1)][1:-1]).all(), "the oldest"
