"""LiveServe's choice among stages that share a device: the most urgent work first (§4.1, across engines)."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.policy.base import DeviceChoice, Head


class MostUrgent:
    """The stage whose choice begins with the most urgent class; well-buffered work yields. Equals take turns,
    in pipeline order."""

    name = "most-urgent"

    def decide(self, heads: Sequence[Head], last: int | None, now: float) -> DeviceChoice:
        after = -1 if last is None else last
        return DeviceChoice(
            min(range(len(heads)), key=lambda at: (heads[at].urgency, heads[at].place <= after, at))
        )
