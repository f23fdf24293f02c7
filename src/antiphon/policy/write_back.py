"""Baseline: nothing is written down before it has to leave the device."""

from __future__ import annotations

from antiphon.policy.memory import NOTHING, KvView, Selection


class WriteBack:
    """What leaves the device is copied then, if the host has no copy yet."""

    name = "write-back"

    def decide(self, view: KvView, now: float) -> Selection:
        return NOTHING
