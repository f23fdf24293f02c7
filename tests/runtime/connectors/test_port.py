"""Arrays that cross a connector: what they are of, and what they are not."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.runtime.connectors.port import Array, num_bytes


def test_an_array_is_a_view() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = Array.of(values)
    assert (array.dtype, array.shape, array.num_bytes) == ("float32", (2, 3), 24)
    assert np.shares_memory(array.numpy(), values)
    assert np.array_equal(array.numpy(), values)


def test_strides_and_byte_order_are_made_plain() -> None:
    values = np.arange(12, dtype=">i8").reshape(3, 4)[:, ::2]
    array = Array.of(values)
    assert array.dtype == "int64"
    assert np.array_equal(array.numpy(), values)


def test_bfloat16_comes_as_its_bits() -> None:
    array = Array("bfloat16", (2,), np.array([0x3F80, 0x4000], np.uint16).view(np.uint8).data)
    assert array.numpy().tolist() == [0x3F80, 0x4000]


def test_what_has_no_wire_form() -> None:
    with pytest.raises(ValueError, match="complex128 arrays have no wire form; allowed: bool"):
        Array.of(np.zeros(1, complex))
    for dtype, shape in (("object", (1,)), ("uint8", (1,) * 17), ("uint8", (3, -1))):
        with pytest.raises(ValueError, match="no array has dtype"):
            num_bytes(dtype, shape)
