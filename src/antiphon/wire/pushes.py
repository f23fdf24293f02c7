"""When the engine is told that a client which commits by hand has begun to append audio."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from antiphon.wire.advisories import MIN_GAP_S


@dataclass(slots=True)
class Pushes:
    """Owner of whether the engine was told of the audio that is appended now. After audio that the client
    dropped it is told again MIN_GAP_S after it was told last: a flood of these costs what one of advisories
    costs."""

    _goes_on: bool = False
    _is_told: bool = False
    _next_at: float = -inf

    @property
    def due_at(self) -> float | None:
        """When the engine is to be told of what it was not told of; None: there is nothing."""
        return self._next_at if self._goes_on and not self._is_told else None

    def begin(self) -> None:
        """The first audio was appended."""
        self._goes_on = True

    def tell(self, now: float) -> bool:
        """Is the engine to be told now? It counts as told then."""
        due_at = self.due_at
        if due_at is None or now < due_at:
            return False
        self._is_told, self._next_at = True, now + MIN_GAP_S
        return True

    def end(self) -> bool:
        """It is over. Was the engine told of it?"""
        was_told, self._goes_on, self._is_told = self._is_told, False, False
        return was_told

    def commit(self) -> None:
        """It was a turn: the next one is told at once."""
        self._next_at = -inf
