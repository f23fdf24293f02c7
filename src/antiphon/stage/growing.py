"""A column of integers that is only ever appended to."""

from __future__ import annotations

import numpy as np

from antiphon.core.facts import Ints


class GrowingInts:
    """int64 [n]. Appending costs amortised constant time, and what was viewed before stays as it was."""

    __slots__ = ("_buffer", "_size")

    def __init__(self, first: Ints) -> None:
        self._buffer = first
        self._size = len(first)

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> Ints:
        return self._buffer[: self._size]

    def extend(self, values: list[int]) -> None:
        if not values:
            return
        end = self._size + len(values)
        if end > len(self._buffer):
            buffer = np.empty(end + end // 2, np.int64)
            buffer[: self._size] = self.view
            self._buffer = buffer
        self._buffer[self._size : end] = values
        self._size = end
