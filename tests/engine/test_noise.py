"""The noise on the device is `core.rng`'s bit for bit, and even."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import rng
from antiphon.engine import noise

SEEDS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(SEEDS, st.integers(0, 5), st.integers(0, 1 << 20), st.integers(0, 31))
def test_twin_bit_for_bit(seed: int, stage: int, position: int, codebook: int) -> None:
    key = rng.counter_key(seed, stage, position, codebook)
    keys = noise.counter_keys(torch.tensor([seed]), stage, torch.tensor([position]), codebook)
    assert keys.tolist() == [key]
    assert noise.uniforms(keys, 300)[0].tolist() == rng.uniforms(key, 300).tolist()


def test_even_over_columns_and_over_positions() -> None:
    """Chi-square over 100 bins: mean 99, standard deviation 14."""
    keys = noise.counter_keys(torch.full((2000,), 17), 1, torch.arange(2000), 3)
    table = noise.uniforms(keys, 500).numpy()
    assert 0 < table.min() < table.max() < 1
    for sample in (table[0:40].ravel(), table[:, :10].ravel(), table[:, 499]):
        counts, _ = np.histogram(sample, 100, (0, 1))
        expected = len(sample) / 100
        assert ((counts - expected) ** 2 / expected).sum() < 99 + 5 * 14


def test_neighbours_have_nothing_in_common() -> None:
    """Next position, next codebook, next seed: no correlation beyond chance (1 / sqrt(n) = 0.01)."""
    base = {"seeds": torch.tensor([5]), "stage": 0, "positions": torch.tensor([9]), "codebook": 2}
    first = noise.uniforms(noise.counter_keys(**base), 10_000)[0].numpy()
    for change in (
        {"positions": torch.tensor([10])},
        {"codebook": 3},
        {"seeds": torch.tensor([6])},
        {"stage": 1},
    ):
        other = noise.uniforms(noise.counter_keys(**{**base, **change}), 10_000)[0].numpy()
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


def test_gumbel_draws_in_proportion() -> None:
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    keys = noise.counter_keys(torch.full((20_000,), 3), 0, torch.arange(20_000), 0)
    drawn = (weights.log() + noise.gumbel(keys, 4)).argmax(-1)
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    assert (shares - weights).abs().max() < 0.015
