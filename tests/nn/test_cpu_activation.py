"""The compiled activation against fp64, in front of what it remembers and in place."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.nn.cpu.compiler import has_compiler

if not has_compiler():
    pytest.skip("no compiler for loops is installed", allow_module_level=True)

from antiphon.nn.cpu.activation import snake, snake_in_place

CHANNELS = 24


def exact(x: np.ndarray, frequency: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    angle = (x * frequency).astype(np.float64)
    return x + magnitude * np.sin(angle) ** 2


@pytest.fixture
def constants() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    frequency, magnitude = rng.uniform(0.3, 3, (2, CHANNELS)).astype(np.float32)
    return frequency, magnitude


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0, 1e4])
def test_it_is_right_to_the_last_bits(scale: float, constants: tuple[np.ndarray, np.ndarray]) -> None:
    x = (np.random.default_rng(1).standard_normal((3, 50, CHANNELS)) * scale).astype(np.float32)
    expected = exact(x, *constants)
    repeated = [np.tile(c, 3) for c in constants]
    snake_in_place(x, *repeated)
    # half a unit in the last place of the result, and the angle's own beside it
    assert np.all(np.abs(x - expected) <= 5e-7 + 2e-7 * np.abs(expected))


@pytest.mark.parametrize("before", [0, 6, 54])
@pytest.mark.parametrize("repeats", [1, 4, 100])
def test_what_is_remembered_stands_before_it(
    before: int, repeats: int, constants: tuple[np.ndarray, np.ndarray]
) -> None:
    rng = np.random.default_rng(2)
    old = rng.standard_normal((2, before, CHANNELS)).astype(np.float32)
    x = rng.standard_normal((2, 11, CHANNELS)).astype(np.float32)
    out, kept = np.empty((2, before + 11, CHANNELS), np.float32), np.empty((2, 7, CHANNELS), np.float32)
    untouched = x.copy()
    snake(old, x, *(np.tile(c, repeats) for c in constants), out, kept)
    np.testing.assert_array_equal(out[:, :before], old)
    np.testing.assert_allclose(out[:, before:], exact(x, *constants), rtol=2e-7, atol=5e-7)
    np.testing.assert_array_equal(kept, out[:, -7:])
    np.testing.assert_array_equal(x, untouched)
