"""Who lives beside a prompt on one device, and how long a step may keep them waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from antiphon.core.facts import Floats, Ints, Mask
from antiphon.policy.base import LATENCY, Budget

USUAL_S = 0.2
"""Where a person waits for more of a reply and nothing says how long that may take."""
LEAD_SHARE = 0.25
"""Of what a listener, or a reader, is ahead: the other stages need the rest, and a lead that shrinks makes
steps shorter until it stays."""
LEAST_S = 0.05
"""However short a lead is: shorter steps cost more than they save."""


class Patience(NamedTuple):
    """The least time that any of some replies can wait for its next token or frame. inf: none of them is
    waited for.

    promised_s  what a class is promised, for each token
    usual_s     of others a share of the lead
    """

    promised_s: float = inf
    usual_s: float = inf


def patience(tier: Ints, tpot_s: Floats, lead_s: Floats, begun: Mask) -> Patience:
    """Of these replies. All [n]."""
    if not len(tier):
        return Patience()
    ahead_s = np.where(begun & ~np.isnan(lead_s), np.maximum(LEAD_SHARE * lead_s, LEAST_S), USUAL_S)
    ahead_s[(tier != LATENCY) | (lead_s == inf) | (tpot_s < inf)] = inf
    return Patience(float(tpot_s.min()), float(ahead_s.min()))


class Beside:
    """How long those can wait whose replies the units of one device make. Owner of when a prompt was read
    there last."""

    def __init__(self) -> None:
        self._units: dict[str, Callable[[float], Patience]] = {}
        self._read_at = -inf
        """When a prompt was read there last."""

    def tell(self, unit: str, patience: Callable[[float], Patience]) -> None:
        """A unit begins, or begins anew. `patience`: of those in it, at a moment."""
        self._units[unit] = patience

    def patience(self, now: float) -> Patience:
        """Of all of them the least."""
        found = [patience(now) for patience in self._units.values()]
        return Patience(*map(min, zip(Patience(), *found, strict=True)))

    def bounded(self, budget: Budget, now: float) -> Budget:
        """The same for a step with prompts, as long as those here can wait. What is promised for each token
        holds for each step; leads of others last over a few."""
        promised_s, usual_s = self.patience(now)
        unread_s = now - self._read_at if promised_s == inf and usual_s < inf else None
        return replace(budget, seconds=min(promised_s, usual_s), unread_s=unread_s)

    def read(self, now: float) -> None:
        """A step that reads a prompt was planned."""
        self._read_at = now

    def read_next(self) -> None:
        """Nothing else runs on the device: a prompt may be read at once."""
        self._read_at = -inf
