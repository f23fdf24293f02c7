"""Noise is a function of integers: known values, uniform, unlike its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.core.rng import counter_key, mix32, stream, uniforms

KEY = 88661940
VALUES = [0.8951949897455052, 0.426724566728808, 0.8053631136426702]


def test_known_values() -> None:
    """These may never change: a seed that gives one reply today gives it tomorrow."""
    assert [mix32(0), mix32(1), mix32(2)] == [0, 1753845952, 3507691905]
    assert counter_key(7, 1, 2, 3) == KEY
    np.testing.assert_allclose(uniforms(KEY, 3), VALUES, rtol=0, atol=1e-12)


def test_vector_and_scalar_mixing_agree() -> None:
    lanes = [mix32((i * 0x9E3779B9 + KEY) & 0xFFFFFFFF) for i in range(1000)]
    assert ((uniforms(KEY, 1000) * 2**32).astype(np.int64) == lanes).all()


@pytest.mark.parametrize("change", range(4))
def test_every_integer_counts(change: int) -> None:
    base = [5, 1, 100, 2]
    keys = set()
    for value in (0, 1, 2, 1 << 31, (1 << 32) - 1):
        parts = list(base)
        parts[change] = value
        keys.add(counter_key(*parts))
    assert len(keys) == 5


@pytest.mark.parametrize("seed", [-1, -(1 << 63), 1 << 62, (1 << 63) - 1])
def test_any_seed_of_64_bits_has_a_key(seed: int) -> None:
    assert 0 <= counter_key(seed, 0, 0, 0) < 1 << 32


def test_uniform_within_a_draw_and_across_positions() -> None:
    """Chi-squared over 64 bins, 63 degrees of freedom: 120 is beyond one in a hundred thousand."""
    within = uniforms(KEY, 100_000)
    across = np.array([uniforms(counter_key(3, 0, position, 0), 1)[0] for position in range(20_000)])
    for sample in (within, across):
        assert (sample > 0).all()
        assert (sample < 1).all()
        counts = np.histogram(sample, 64, (0, 1))[0]
        expected = len(sample) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 120


def test_neighbouring_positions_are_uncorrelated() -> None:
    draws = np.array([uniforms(counter_key(11, 0, position, 0), 64) for position in range(2000)])
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.02


def test_streams_are_named() -> None:
    first = stream(7, "arrivals").random(4)
    assert (stream(7, "arrivals").random(4) == first).all()
    for other in (stream(8, "arrivals"), stream(7, "lengths"), stream(7, "arrivals", "a")):
        assert not (other.random(4) == first).any()
