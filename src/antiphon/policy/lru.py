"""Baseline: what was used longest ago leaves first, as under vLLM's KV offloading (LiveServe §7.1)."""

from __future__ import annotations

from antiphon.policy.memory import NOTHING, KvView, Selection, num_short

AHEAD = 1 / 16
"""Share of a tier that is kept free while the tier below has room, so that a request need not wait for
copies."""


class Lru:
    """Frees what is waited for, and a little ahead where nothing is lost by it."""

    name = "lru"

    def decide(self, view: KvView, now: float) -> Selection:
        count = num_short(view, AHEAD)
        return Selection(view.oldest(), count, "used longest ago") if count else NOTHING
