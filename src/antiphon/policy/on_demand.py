"""Baseline: KV comes back from the host when the request that reads it joins, and not before."""

from __future__ import annotations

from antiphon.policy.memory import FetchView


class OnDemand:
    """All that is there."""

    name = "on-demand"

    def decide(self, view: FetchView, now: float) -> int:
        return view.num_host
