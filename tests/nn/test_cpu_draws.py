"""Draws compiled for a CPU are those of the operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.sampling import Sampling
from antiphon.engine.graphs import ColumnDraw, columns
from antiphon.engine.speech import PREDICTOR_STAGE
from antiphon.nn.noise import counter_keys, gumbel

draws = pytest.importorskip("antiphon.nn.cpu.draws")

STAGE = PREDICTOR_STAGE


def drawn(params: list[Sampling], logits: torch.Tensor, position: int, codebook: int) -> torch.Tensor:
    positions = np.arange(len(params)) * 5 + position
    draw = draws.CompiledDraw(
        np.array([one.temperature for one in params], np.float32),
        np.array([one.top_k for one in params], np.int64),
        np.array([one.top_p for one in params], np.float32),
        np.array([one.seed for one in params], np.int64),
        STAGE,
    )
    return draw(positions, logits, codebook)


def by_operators(params: list[Sampling], logits: torch.Tensor, position: int, codebook: int) -> torch.Tensor:
    made = columns(params, np.arange(len(params)) * 5 + position, logits.device)
    return ColumnDraw(*made)(logits, codebook)


@given(st.data())
def test_every_row_draws_what_the_operators_draw(data: st.DataObject) -> None:
    vocab = data.draw(st.sampled_from([1, 2, 7, 50, 300, 2048]), "vocab")
    sampling = st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 3, 50, vocab, vocab + 5]),
        top_p=st.sampled_from([1.0, 0.999, 0.8, 0.1]),
        seed=st.integers(0, 2**63 - 1),
    )
    params = data.draw(st.lists(sampling, min_size=1, max_size=9), "params")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), "logits"))
    spread = data.draw(st.sampled_from([0.1, 1.0, 8.0]), "spread")
    logits = torch.randn(len(params), vocab, generator=generator) * spread
    if data.draw(st.booleans(), "equals"):
        logits = logits.bfloat16().float()
    position, codebook = data.draw(st.integers(0, 10**6)), data.draw(st.integers(0, 15))
    expected = by_operators(params, logits.clone(), position, codebook)
    assert drawn(params, logits, position, codebook).tolist() == expected.tolist()


def test_noise_is_that_of_the_operators() -> None:
    seeds = torch.tensor([0, 1, 2**40 + 3, 2**63 - 1])
    keys = counter_keys(seeds, STAGE, torch.tensor([0, 7, 10**6, 3]), 5)
    for seed, position, key, noise in zip(
        seeds.tolist(), (0, 7, 10**6, 3), keys.tolist(), gumbel(keys, 100), strict=True
    ):
        assert draws.counter_key(seed, STAGE, position, 5) == key
        for column in (0, 1, 99):
            assert draws.gumbel(draws.lane_of(key, column)) == pytest.approx(float(noise[column]), rel=1e-12)


def test_what_is_masked_is_never_drawn() -> None:
    """With fewer columns left than top_k keeps, too."""
    logits = torch.full((1, 100), -torch.inf)
    logits[0, 40:43] = torch.tensor([1.0, 2.0, 3.0])
    for top_k, top_p in ((50, 0.9), (50, 1.0), (0, 1.0), (0, 0.9)):
        params = [Sampling(temperature=1.0, top_k=top_k, top_p=top_p, seed=5)]
        seen = {int(drawn(params, logits, position, 0)) for position in range(60)}
        assert seen <= {40, 41, 42}
        assert len(seen) > 1


def test_equals_of_the_kth_are_kept() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0]])
    params = [Sampling(temperature=1.0, top_k=2, seed=1)]
    assert {int(drawn(params, logits, position, 0)) for position in range(200)} == {0, 2, 3, 4}


@pytest.mark.parametrize("filled", [np.nan, -np.inf])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.5), (5, 0.5)])
def test_a_row_of_nothing_draws_some_column(filled: float, top_k: int, top_p: float) -> None:
    """A model that makes nonsense makes nonsense, and nothing beside it is touched."""
    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    params = [Sampling(temperature=1.0, top_k=top_k, top_p=top_p, seed=n) for n in range(2)]
    expected = int(drawn(params, logits, 0, 0)[1])
    logits[0] = filled
    ids = drawn(params, logits, 0, 0).tolist()
    assert 0 <= ids[0] < 64
    assert ids[1] == expected


def test_rows_shared_out_among_threads_draw_alike() -> None:
    logits = torch.randn(7, 4000, generator=torch.Generator().manual_seed(1))
    params = [Sampling(temperature=0.9, top_k=40, top_p=0.95, seed=n) for n in range(7)]
    together = drawn(params, logits, 3, 1).tolist()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert drawn(params, logits, 3, 1).tolist() == together
    finally:
        torch.set_num_threads(threads)
