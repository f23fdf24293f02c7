"""Baseline: KV comes back from the host when the request that reads it could join, and not before."""

from __future__ import annotations

from antiphon.policy.memory import KvView, Selection


class OnDemand:
    """All that is there."""

    name = "on-demand"

    def decide(self, view: KvView, now: float) -> Selection:
        return Selection(view.waiting(), view.num_blocks, "a request waits for it")
