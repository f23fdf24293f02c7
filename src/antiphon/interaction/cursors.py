"""Playback cursors of many sessions, in columns: an anchor (value, time) that is read forward at one second
per second. Knows no session by name; `monitor` gives out the slots."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Source(IntEnum):
    """How a cursor is known."""

    UNKNOWN = 0
    """Nothing has been sent that could be heard."""
    ESTIMATED = 1
    """The wall clock since the first audio, as long as there was audio to play."""
    ACKED = 2
    """The client's own reports, and the wall clock since the last one."""


class Cursors:
    """One entry a slot. A cursor runs while there is audio that was generated and not played, until `stop`.

    A listener's loudspeaker is that of `core.playback`: once dry it goes on from where it stopped, so
    silence is not counted as heard.
    """

    def __init__(self, size: int = 16) -> None:
        self._generated_s = np.zeros(size)
        self._anchor_s = np.zeros(size)
        self._anchored_at = np.zeros(size)
        self._rate = np.zeros(size)
        self._acked_s = np.zeros(size)
        self._source = np.zeros(size, np.int8)

    def __len__(self) -> int:
        return len(self._rate)

    def grow(self, size: int) -> None:
        """Room for `size` slots; what is there stays."""
        more = size - len(self)
        for name in ("_generated_s", "_anchor_s", "_anchored_at", "_rate", "_acked_s", "_source"):
            column: NDArray[np.generic] = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, column.dtype)]))

    def reset(self, slot: int) -> None:
        """Nothing to be heard."""
        for column in (self._generated_s, self._anchor_s, self._anchored_at, self._rate, self._acked_s):
            column[slot] = 0.0
        self._source[slot] = Source.UNKNOWN

    def start(self, slot: int, now: float) -> None:
        """A reply begins to be played."""
        self.reset(slot)
        self._anchored_at[slot] = now
        self._rate[slot] = 1.0
        self._source[slot] = Source.ESTIMATED

    def generated(self, slot: int, audio_s: float, now: float) -> None:
        """So much more audio was sent. A cursor that had run dry goes on from where it stood."""
        played_s = self.played_s(slot, now)
        if played_s >= self._generated_s.item(slot):
            self._anchor(slot, played_s, now)
        self._generated_s[slot] += audio_s

    def acked(self, slot: int, played_s: float, now: float) -> None:
        """The client says how far it has played: more than before, at most all that was sent."""
        acked_s = self._acked_s.item(slot)
        if self._source.item(slot) == Source.UNKNOWN or played_s < acked_s:
            return
        self._acked_s[slot] = min(played_s, self._generated_s.item(slot))
        self._source[slot] = Source.ACKED
        self._anchor(slot, self._acked_s.item(slot), now)

    def stop(self, slot: int, now: float) -> None:
        """The listener hears no more of this reply."""
        self._anchor(slot, self.played_s(slot, now), now)
        self._rate[slot] = 0.0

    def source(self, slot: int) -> Source:
        return Source(self._source.item(slot))

    def is_unknown(self, slot: int) -> bool:
        return not self._source.item(slot)

    def generated_s(self, slot: int) -> float:
        return self._generated_s.item(slot)

    def played_s(self, slot: int, now: float) -> float:
        """Seconds heard by `now`."""
        elapsed_s = (now - self._anchored_at.item(slot)) * self._rate.item(slot)
        return min(self._anchor_s.item(slot) + max(elapsed_s, 0.0), self._generated_s.item(slot))

    def buffer_s(self, slot: int, now: float) -> float:
        """Seconds generated and not played yet; 0 once the listener hears no more."""
        rate, left_s = self._rate.item(slot), self._generated_s.item(slot) - self._anchor_s.item(slot)
        elapsed_s = (now - self._anchored_at.item(slot)) * rate
        if elapsed_s > 0.0:
            left_s -= elapsed_s
        return left_s * rate if left_s > 0.0 else 0.0

    def buffers_s(self, slots: NDArray[np.intp], now: float) -> Floats:
        """`buffer_s` of many slots: float64 [n]."""
        elapsed_s = np.maximum((now - self._anchored_at[slots]) * self._rate[slots], 0.0)
        generated_s = self._generated_s[slots]
        return (generated_s - np.minimum(self._anchor_s[slots] + elapsed_s, generated_s)) * self._rate[slots]

    def _anchor(self, slot: int, played_s: float, now: float) -> None:
        self._anchor_s[slot] = played_s
        self._anchored_at[slot] = now
