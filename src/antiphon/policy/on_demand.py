"""Baseline: KV comes back from the host when the request that reads it could join, and not before."""

from __future__ import annotations

from antiphon.policy.base import Told
from antiphon.policy.memory import KvView, Selection


class OnDemand:
    """All that is there."""

    name = "on-demand"

    def decide(self, view: KvView, now: float) -> Selection:
        return Selection(view.waiting(), view.num_blocks, "a request waits for it")

    def tell_fetch(self, view: KvView, owner: str, now: float) -> Told:
        """Of one whose turn is coming, or whose request waits for it."""
        return Told("off", "on-demand preloads nothing: it comes when a request waits for it")
