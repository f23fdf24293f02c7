"""Says once a second how decisions are: the thread that decides cannot say itself that one does not return.

That it is said at all is the sign that the process runs, also in a long step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LOOK_EVERY_S = 1.0


class StuckWatch:
    """A thread that looks once a second whether the driver is stuck in a decision, and says so each time."""

    def __init__(self, why: Callable[[], str], say: Callable[[str], None]) -> None:
        """why: in words; "" where all is well. Both are called from the thread."""
        self._why = why
        self._say = say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> StuckWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._say(self._why())
