"""The noise is the hash that it is said to be, even, and unlike its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.nn import noise

SEEDS = st.integers(-(1 << 63), (1 << 63) - 1)
KEY = 88661940
VALUES = [0.8951949897455052, 0.426724566728808, 0.8053631136426702]


def mix32(value: int) -> int:
    """`noise.mix32` in plain integers."""
    value &= noise.MASK
    value ^= value >> 16
    value = (value * noise.MUL_A) & noise.MASK
    value ^= value >> 15
    value = (value * noise.MUL_B) & noise.MASK
    return value ^ (value >> 16)


def counter_key(seed: int, stage: int, position: int, codebook: int) -> int:
    key = mix32(seed ^ mix32(seed >> 32))
    for part in (stage, position, codebook):
        key = mix32(key ^ ((part * noise.GOLDEN) & noise.MASK))
    return key


def keys_of(seed: int, stage: int, position: int, codebook: int) -> torch.Tensor:
    return noise.counter_keys(torch.tensor([seed]), stage, torch.tensor([position]), codebook)


def test_known_values() -> None:
    """These may never change: a seed that gives one reply today gives it tomorrow."""
    assert noise.mix32(torch.arange(3)).tolist() == [0, 1753845952, 3507691905]
    assert keys_of(7, 1, 2, 3).tolist() == [KEY]
    np.testing.assert_allclose(noise.uniforms(keys_of(7, 1, 2, 3), 3)[0], VALUES, rtol=0, atol=1e-12)


@given(SEEDS, st.integers(0, 5), st.integers(0, 1 << 20), st.integers(0, 31))
def test_bit_for_bit_as_plain_integers(seed: int, stage: int, position: int, codebook: int) -> None:
    key = counter_key(seed, stage, position, codebook)
    assert 0 <= key < 1 << 32
    keys = keys_of(seed, stage, position, codebook)
    assert keys.tolist() == [key]
    lanes = [mix32(column * noise.GOLDEN + key) for column in range(300)]
    assert noise.uniforms(keys, 300)[0].tolist() == [(lane + 0.5) / 2**32 for lane in lanes]


@pytest.mark.parametrize("change", range(4))
def test_every_integer_counts(change: int) -> None:
    base = [5, 1, 100, 2]
    keys = set()
    for value in (0, 1, 2, 1 << 31, (1 << 32) - 1):
        parts = list(base)
        parts[change] = value
        keys.add(keys_of(*parts).item())
    assert len(keys) == 5


def test_neighbouring_positions_are_uncorrelated() -> None:
    keys = noise.counter_keys(torch.full((2000,), 11), 0, torch.arange(2000), 0)
    draws = noise.uniforms(keys, 64).numpy()
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.02


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
