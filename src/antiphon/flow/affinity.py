"""Session affinity: which replica served a conversation last, and so has its KV."""

from __future__ import annotations

from collections import Counter


class SessionAffinity:
    """Owner of one unit per session and part of the pipeline, and of how many sessions a unit is home to."""

    def __init__(self) -> None:
        self._units: dict[str, dict[str, str]] = {}
        self._counts: Counter[str] = Counter()

    def find(self, session: str, stage: str) -> str | None:
        return self._units.get(session, {}).get(stage)

    def count(self, unit: str) -> int:
        """Sessions at home there."""
        return self._counts[unit]

    def move(self, session: str, stage: str, unit: str) -> str | None:
        """The session is served there from now on; returns the unit it leaves, if it was elsewhere."""
        units = self._units.setdefault(session, {})
        before = units.get(stage)
        if before == unit:
            return None
        if before is not None:
            self._counts[before] -= 1
        units[stage] = unit
        self._counts[unit] += 1
        return before

    def forget(self, session: str) -> None:
        self._counts.subtract(self._units.pop(session, {}).values())

    def lose(self, unit: str) -> None:
        """The unit is gone: no session is at home there."""
        for units in self._units.values():
            for stage in [stage for stage, home in units.items() if home == unit]:
                del units[stage]
        del self._counts[unit]
