"""When a process that has died is started again, and when it is not any more."""

from __future__ import annotations

from collections import deque

FIRST_WAIT_S = 0.2
MOST_DEATHS = 5
WITHIN_S = 60.0


class Restarts:
    """One process's deaths. Each within the last minute doubles the wait; MOST_DEATHS of them end it."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def wait_s(self, now: float) -> float | None:
        """It has died: seconds until it is started again, or None if it stays away."""
        self._deaths.append(now)
        while now - self._deaths[0] > WITHIN_S:
            self._deaths.popleft()
        count = len(self._deaths)
        return None if count >= MOST_DEATHS else FIRST_WAIT_S * 2 ** (count - 1)
