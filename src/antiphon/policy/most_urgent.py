"""LiveServe's choice among stages that share a device: the most urgent work first (§4.1, across engines)."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.policy.base import FIRST_SOUND, DeviceChoice, Head


class MostUrgent:
    """The stage whose choice begins with the most urgent class; well-buffered work yields. Equals take turns,
    in pipeline order."""

    name = "most-urgent"

    def __init__(self) -> None:
        self.events = {"first_sound_waits": 0}
        """Stages that had a first sound to make while another one stepped that would have run dry."""

    def decide(self, heads: Sequence[Head], last: int | None, now: float) -> DeviceChoice:
        after = -1 if last is None else last
        urgencies = [head.urgency for head in heads]
        chosen = min(range(len(heads)), key=lambda at: (urgencies[at], heads[at].place <= after, at))
        if urgencies[chosen] < FIRST_SOUND:
            self.events["first_sound_waits"] += urgencies.count(FIRST_SOUND)
        return DeviceChoice(chosen)
