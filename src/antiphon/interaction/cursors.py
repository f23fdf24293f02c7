"""Playbacks of many replies in a column, so that thousands are read at once. Knows no reply by name:
`monitor` gives out the slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Slots = NDArray[np.intp]

NOWHERE = 0
"""The slot of what has none: nothing ever comes in it."""


class Cursors:
    """A slot for each reply, and in it when the reply's playback is dry (`core.playback`, `dry_at`).

    One that was not set since it was taken reads as nan: nothing has come.
    """

    def __init__(self, size: int = 16) -> None:
        self._dry_at = np.full(size, np.nan)
        self._free = list(range(size - 1, NOWHERE, -1))

    @property
    def num_taken(self) -> int:
        return len(self._dry_at) - 1 - len(self._free)

    def take(self) -> int:
        """A slot that nobody has. Slots that are taken stay what they are while the columns grow."""
        if not self._free:
            size = len(self._dry_at)
            self._dry_at = np.concatenate([self._dry_at, np.full(size, np.nan)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def free(self, slot: int) -> None:
        self._dry_at[slot] = np.nan
        self._free.append(slot)

    def set(self, slot: int, dry_at: float) -> None:
        """The reply's playback has changed."""
        self._dry_at[slot] = dry_at

    def leads_s(self, slots: Slots, now: float) -> Floats:
        """Seconds until each listener runs dry, nan where nothing has come: float64 [n]."""
        return np.maximum(self._dry_at[slots] - now, 0.0)
