"""Baseline: stages that share a device take turns."""

from __future__ import annotations

from collections.abc import Sequence


class RoundRobin:
    """The next stage with work after the one that stepped last, in pipeline order."""

    name = "round-robin"

    def decide(self, ready: Sequence[int], last: int | None, now: float) -> int:
        if last is None:
            return ready[0]
        return next((stage for stage in ready if stage > last), ready[0])
