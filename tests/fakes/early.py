"""A write policy that copies KV to the host at once, a few blocks a call."""

from __future__ import annotations

from dataclasses import replace

from antiphon.policy.memory import KvView, Selection
from antiphon.stage.ar import ArScheduler


class WriteEarly:
    """As write-through would, without asking what it costs."""

    name = "write-early"

    def decide(self, view: KvView, now: float) -> Selection:
        columns = view.columns
        assert len(view.owners) == len(columns.used_s) == len(columns.device) == len(columns.dirty)
        dirty = {owner for owner in view.owners if view.find(owner).dirty}
        assert dirty == {*view.dirty()}, dirty.symmetric_difference(view.dirty())
        return Selection(view.dirty(), 3, "as early as can be")

    @classmethod
    def take_over(cls, scheduler: ArScheduler) -> None:
        """The stage writes early from now on."""
        tiers = scheduler.tiers
        tiers.asks.policies = replace(tiers.asks.policies, write=cls())
        scheduler.reopen()
