"""Virtual time: what will happen, in the order (time, rank, seq)."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush


class Rank(IntEnum):
    """Who goes first of those at the same time. A decision is made once all facts of its moment are there."""

    DEVICE = 0
    """A step, a copy or a hand-off ends."""
    LINK = 1
    """A message arrives."""
    PERSON = 2
    """Somebody has waited long enough."""
    ORDER = 3
    """What was decided before is carried out."""
    DECIDE = 4
    SAMPLE = 5


class Agenda:
    """Owner of virtual time and of everything that is to happen in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._seq = 0

    def at(self, time_s: float, rank: Rank, action: Callable[[], None]) -> None:
        """Do this then. Of equal time and rank, first come first served."""
        assert time_s >= self.now, f"{time_s} is past: it is {self.now}"
        self._seq += 1
        heappush(self._heap, (time_s, rank, self._seq, action))

    def run(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """Let things happen until `is_over`, nothing is left to happen, or time is up: then it is `until_s`.

        What would happen exactly at `until_s` does not happen any more.
        """
        while self._heap and not is_over():
            time_s = self._heap[0][0]
            if time_s >= until_s:
                self.now = until_s
                return
            self.now = time_s
            heappop(self._heap)[3]()
