"""Baseline: a turn goes where its conversation's KV is."""

from __future__ import annotations

from antiphon.policy.base import ReplicaView, least_loaded


class Sticky:
    """The replica that served the conversation before; a new one goes to the least loaded."""

    name = "sticky"

    def decide(self, view: ReplicaView, now: float) -> int:
        return least_loaded(view) if view.home is None else view.home
