"""A write policy that copies KV to the host at once, a few blocks a call."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from antiphon.policy.memory import KvView, Selection
from antiphon.stage.ar import ArScheduler
from antiphon.stage.tier_views import View


def owners_of(view: KvView) -> list[str]:
    """All that have KV here, wherever it lies."""
    seen = cast(View, view)
    here = (seen.kv.resting.owners, seen.kv.resting.away, seen.host.owners, seen.known.running)
    return list(dict.fromkeys(owner for owners in here for owner in owners))


def has_dirty(view: View, owner: str) -> bool:
    """Has any full block of it no copy on the host, and has no copy of it failed? By a look at each."""
    sequence = view.known.running.get(owner) or view.kv.resting.get(owner)
    return (
        sequence is not None
        and owner not in view.known.refused
        and any(map(view.host.lacks, sequence.filled))
    )


class WriteEarly:
    """As write-through would, without asking what it costs."""

    name = "write-early"

    def decide(self, view: KvView, now: float) -> Selection:
        owners = owners_of(view)
        assert all(map(view.has, owners))
        dirty = {owner for owner in owners if has_dirty(cast(View, view), owner)}
        assert dirty == {*view.dirty()}, dirty.symmetric_difference(view.dirty())
        return Selection(view.dirty(), 3, "as early as can be")

    @classmethod
    def take_over(cls, scheduler: ArScheduler) -> None:
        """The stage writes early from now on."""
        tiers = scheduler.tiers
        tiers.asks.policies = replace(tiers.asks.policies, write=cls())
        scheduler.reopen()
