"""The replies that are drawn beside a prompt on one device, and how long a step may delay them."""

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


class WaitBounds(NamedTuple):
    """The least time that any of some replies can wait for its next token or frame. inf: none of them is
    waited for.

    each_s   in every step: what a class is promised for each token, and what is usual of a reply of which its
             person has nothing yet, for whom each step comes first
    usual_s  of one that its person has begun with, and whose lead is not known
    lead_s   of others a share of the lead, which lasts over a few steps
    """

    each_s: float = inf
    usual_s: float = inf
    lead_s: float = inf


def patience(tier: Ints, tpot_s: Floats, lead_s: Floats, begun: Mask) -> WaitBounds:
    """Of these replies. All [n]."""
    if not len(tier):
        return WaitBounds()
    is_known = ~np.isnan(lead_s)
    is_waited_for = (tier == LATENCY) & (lead_s != inf) & (tpot_s == inf)
    each_s = float(tpot_s.min())
    if (is_waited_for & ~begun).any():
        each_s = min(each_s, USUAL_S)
    usual_s = USUAL_S if (is_waited_for & begun & ~is_known).any() else inf
    leads_s = lead_s[is_waited_for & begun & is_known]
    return WaitBounds(
        each_s, usual_s, max(LEAD_SHARE * float(leads_s.min()), LEAST_S) if len(leads_s) else inf
    )


class Beside:
    """How long the replies that the units of one device make can wait. Owner of when each unit read a prompt
    last."""

    def __init__(self) -> None:
        self._units: dict[str, Callable[[float], WaitBounds]] = {}
        self._read_at: dict[str, float] = {}
        """When each unit read a prompt last: a short one of another pays for no piece that is worth more."""

    def tell(self, unit: str, patience: Callable[[float], WaitBounds]) -> None:
        """A unit begins, or begins anew. `patience`: of the replies in it, at a moment."""
        self._units[unit] = patience

    def patience(self, now: float) -> WaitBounds:
        """The least of all units."""
        found = [patience(now) for patience in self._units.values()]
        return WaitBounds(*map(min, zip(WaitBounds(), *found, strict=True)))

    def bounded(self, unit: str, budget: Budget, now: float) -> Budget:
        """The budget of a step of this unit with prompts: its seconds are what the replies can wait. Only
        leads, where these are the least, last over a few steps."""
        least = self.patience(now)
        has_lead = least.each_s == inf and least.lead_s < least.usual_s
        unread_s = now - self._read_at.get(unit, -inf) if has_lead else None
        return replace(budget, seconds=min(least), unread_s=unread_s)

    def read(self, unit: str, now: float) -> None:
        """A step of it that reads a prompt was planned."""
        self._read_at[unit] = now
