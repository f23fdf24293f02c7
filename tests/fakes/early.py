"""A write policy that copies resting KV to the host at once, a few blocks a step."""

from __future__ import annotations

from dataclasses import replace

from antiphon.policy.memory import Selection, TierView
from antiphon.stage.ar import ArScheduler


class WriteEarly:
    """As write-through would, without asking what it costs."""

    name = "write-early"

    def decide(self, view: TierView, now: float) -> Selection:
        assert len(view.sessions) == len(view.used_s) == len(view.blocks) == len(view.dirty)
        dirty = int(view.dirty.sum())
        return Selection(view.sessions, min(dirty, 3), "as early as can be")

    @classmethod
    def take_over(cls, scheduler: ArScheduler) -> None:
        """The stage writes early from now on."""
        tiers = scheduler.tiers
        tiers._policies = replace(tiers._policies, write=cls())
