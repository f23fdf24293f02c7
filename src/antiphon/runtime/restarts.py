"""When a process that has died is started again, and when it is not any more."""

from __future__ import annotations

FIRST_WAIT_S = 0.2
MOST_DEATHS = 5
WELL_S = 60.0


class Restarts:
    """One process's deaths. Each doubles the wait, and MOST_DEATHS of them end it; a life that was ready for
    WELL_S makes up for all before it. How long it takes to start is no part of that.
    """

    def __init__(self) -> None:
        self._num_deaths = 0
        self._ready_at: float | None = None

    def ready(self, now: float) -> None:
        self._ready_at = now

    def wait_s(self, now: float) -> float | None:
        """It has died: seconds until it is started again, or None if it stays away."""
        if self._ready_at is not None and now - self._ready_at >= WELL_S:
            self._num_deaths = 0
        self._ready_at = None
        self._num_deaths += 1
        return None if self._num_deaths >= MOST_DEATHS else FIRST_WAIT_S * 2 ** (self._num_deaths - 1)
