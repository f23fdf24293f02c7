"""Baseline: stages that share a device take turns."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.policy.base import DeviceChoice, Head


class RoundRobin:
    """The next stage with work after the one that stepped last, in pipeline order."""

    name = "round-robin"

    def decide(self, heads: Sequence[Head], last: int | None, now: float) -> DeviceChoice:
        after = -1 if last is None else last
        chosen = next((at for at, head in enumerate(heads) if head.place > after), 0)
        return DeviceChoice(chosen, reason="stages take turns")
