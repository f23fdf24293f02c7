"""Who lives beside a prompt on one device, and how long a step may keep them waiting."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from antiphon.core.facts import Floats, Ints, Mask
from antiphon.policy.base import LATENCY

USUAL_S = 0.2
"""Where a person waits for more of a reply and nothing says how long that may take."""
LEAD_SHARE = 0.25
"""Of what a listener, or a reader, is ahead: the other stages need the rest, and a lead that shrinks makes
steps shorter until it stays."""
LEAST_S = 0.05
"""However short a lead is: shorter steps cost more than they save."""


def patience_s(tier: Ints, tpot_s: Floats, lead_s: Floats, begun: Mask) -> float:
    """The least time that any of these replies can wait for its next token or frame: what its class is
    promised, or a share of its lead. inf: none of them is waited for. All [n]."""
    if not len(tier):
        return inf
    ahead_s = np.where(begun & ~np.isnan(lead_s), np.maximum(LEAD_SHARE * lead_s, LEAST_S), USUAL_S)
    ahead_s[(tier != LATENCY) | (lead_s == inf)] = inf
    return float(np.where(tpot_s < inf, tpot_s, ahead_s).min())


class Beside:
    """How long those can wait whose replies the units of one device make."""

    def __init__(self) -> None:
        self._units: dict[str, Callable[[float], float]] = {}

    def tell(self, unit: str, patience_s: Callable[[float], float]) -> None:
        """A unit begins, or begins anew. `patience_s`: of those in it, at a moment."""
        self._units[unit] = patience_s

    def patience_s(self, now: float) -> float:
        """Of all of them the least; inf: none lives here."""
        return min((patience_s(now) for patience_s in self._units.values()), default=inf)
