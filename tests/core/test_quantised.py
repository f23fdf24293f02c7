"""Quantised rows: their numbers, and the same numbers a byte each."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.core.quantised import Groups, eight_bits, joined

RNG = np.random.default_rng(0)


def groups(rows: int, count: int, size: int) -> Groups:
    """Whose products are exact, as those of GGUF are."""
    scales, lowest = RNG.normal(size=(2, rows, count)).astype(np.float16).astype(np.float32)
    return Groups(scales, lowest, RNG.integers(-128, 128, (rows, count, size), dtype=np.int8))


@pytest.mark.parametrize(("size", "most"), [(32, 32), (32, 16), (8, 16)])
def test_eight_bits_keep_every_number(size: int, most: int) -> None:
    found = groups(6, 4, size)
    kept = eight_bits(found, most)
    assert (kept.shape, kept.group) == ((6, 4 * size), min(size, most))
    assert np.array_equal(kept.rows(slice(None)), found.numbers())
    chosen = np.array([5, 0, 5])
    assert np.array_equal(kept.rows(chosen), found.numbers()[chosen])
    assert np.array_equal(kept.reordered(chosen).rows(slice(1, 3)), found.numbers()[chosen][1:])


def test_rows_of_several_encodings_are_joined_in_eight_bits() -> None:
    first, second = eight_bits(groups(3, 2, 32), 32), eight_bits(groups(2, 4, 16), 16)
    for parts in ([first, second], [first, first]):
        whole = joined(parts)
        numbers = np.concatenate([part.rows(slice(None)) for part in parts])
        assert np.array_equal(whole.rows(slice(None)), numbers)
        assert whole.group == parts[1].group


def test_a_damaged_scale_gives_no_warning() -> None:
    found = Groups(
        np.full((1, 1), np.inf, np.float32), np.zeros((1, 1), np.float32), np.zeros((1, 1, 4), np.int8)
    )
    assert np.isnan(found.numbers()).all()
