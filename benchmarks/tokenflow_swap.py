"""A baseline of benchmarks/tokenflow.py: requests that find no room take turns, whoever reads them."""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import Budget, StepChoice, StepView, is_starved

NONE = np.zeros(0, np.int64)


class RoundRobinSwap:
    """While somebody waits, whoever has had a row for `turn_s` gives it up to whoever has waited longest, as
    many as wait and one step's worth at most; what is given up keeps its KV, to be brought back."""

    name = "round-robin-swap"

    def __init__(self, turn_s: float = 1.0, share: float = 0.25) -> None:
        """share: of the rows that give way at once."""
        self._turn_s, self._share = turn_s, share
        self._since: dict[int, float] = {}
        """When each request got its row, or lost it."""
        self._had_row = frozenset[int]()

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        requests: list[int] = view.request.tolist()
        rows = frozenset(requests[: view.num_rows])
        before = self._since
        self._since = {
            one: before[one] if one in before and (one in rows) == (one in self._had_row) else now
            for one in requests
        }
        self._had_row = rows
        since = np.array([self._since[one] for one in requests])
        ready, has_row = view.ready, view.row >= 0
        waiting = (ready & ~has_row).nonzero()[0]
        waiting = waiting[np.argsort(since[waiting], kind="stable")]
        spare = view.num_free + view.num_pending_free + view.num_evictable - view.num_promised
        preempt = NONE
        if len(waiting) and (view.needs[waiting[0]] > spare or not view.num_free_rows):
            over = (has_row & ~view.reading & (since <= now - self._turn_s)).nonzero()[0]
            most = max(int(self._share * view.num_rows), 1)
            preempt = over[np.argsort(since[over], kind="stable")][: min(most, len(waiting))]
        if not len(preempt) and is_starved(view):
            preempt = np.array([view.num_rows - 1])
        able = ready & has_row
        able[preempt] = False
        order = np.concatenate([able.nonzero()[0], waiting]).astype(np.int64)
        order = order[np.argsort(~view.reading[order], kind="stable")]
        keeps = np.ones(len(preempt), np.bool_)
        return StepChoice(order, "in turn", preempt=preempt, keeps=keeps, wake_at=now + self._turn_s)
