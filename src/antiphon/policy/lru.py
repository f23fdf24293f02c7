"""Baseline: what was used longest ago leaves first, as under vLLM's KV offloading (LiveServe §7.1)."""

from __future__ import annotations

from antiphon.policy.memory import NOTHING, KvView, Selection

AHEAD = 1 / 16
"""Share of a tier that is kept free while the tier below has room, so that a request need not wait for
copies."""


class Lru:
    """Frees what is waited for, and a little ahead where nothing is lost by it."""

    name = "lru"

    def decide(self, view: KvView, now: float) -> Selection:
        spare = view.num_free - view.num_wanted
        needed = max(-spare, 0)
        ahead = min(max(int(view.num_blocks * AHEAD) - max(spare, 0), 0), view.num_below)
        if not needed + ahead:
            return NOTHING
        return Selection(view.oldest(), needed + ahead, "used longest ago")
