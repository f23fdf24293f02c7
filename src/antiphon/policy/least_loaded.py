"""Baseline: a turn goes where the least is to do, wherever its conversation's KV is."""

from __future__ import annotations

from antiphon.policy.base import ReplicaView, least_loaded


class LeastLoaded:
    """Every turn anew; a session that is served elsewhere than before computes its past again."""

    name = "least-loaded"

    def decide(self, view: ReplicaView, now: float) -> int:
        return least_loaded(view)
