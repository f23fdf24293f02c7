"""A baseline of benchmarks/tokenflow.py: quality of experience, greedily, with preemption by recompute.

Andes as TokenFlow tells of it (§1, §6): a scheduler for readers that preempts, and computes again what a
preempted request has lost. What running is worth to a reader, and the bound on preemptions, are our reading.
"""

from __future__ import annotations

import numpy as np

from antiphon.policy.base import Budget, Floats, StepChoice, StepView
from antiphon.policy.prefill_first import PrefillFirst


class Andes:
    """Once an interval, while somebody waits for whom there is no room, the memory goes to those whose
    readers lose most of their experience by waiting, for each block that it takes.

    interval_s      between two rounds
    most_preempted  how often requests are preempted, on average, at most
    """

    name = "andes"

    def __init__(self, interval_s: float = 1.0, most_preempted: float = 1.0) -> None:
        self._interval_s, self._most_preempted = interval_s, most_preempted
        self._next_at = 0.0
        self._num_preempted = 0
        self._seen: set[int] = set()
        self._first = PrefillFirst()

    def decide_step(self, view: StepView, budget: Budget, now: float) -> StepChoice:
        self._seen.update(view.request.tolist())
        choice = self._first.decide(view, budget, now)
        if len(choice.preempt) or now < self._next_at:
            return choice
        has_row, waiting = view.row >= 0, view.ready & (view.row < 0)
        spare = view.num_free + view.num_pending_free + view.num_evictable - view.num_promised
        if not waiting.any() or (view.num_free_rows and view.needs[waiting].sum() <= spare):
            return choice
        self._next_at = now + self._interval_s
        blocks = np.where(has_row, view.held + view.needs, view.needs)
        worth = self._lost_by_waiting(view) / np.maximum(blocks, 1)
        able = (has_row | waiting).nonzero()[0]
        rank = able[np.argsort(-worth[able], kind="stable")]
        chosen = rank[blocks[rank].cumsum() <= view.num_blocks]
        out = np.setdiff1d(has_row.nonzero()[0], chosen)
        out = out[: max(int(self._most_preempted * len(self._seen)) - self._num_preempted, 0)]
        self._num_preempted += len(out)
        rows = np.setdiff1d((view.ready & has_row).nonzero()[0], out)
        joins = chosen[waiting[chosen]]
        order = np.concatenate([joins, rows]) if len(out) else choice.order
        return StepChoice(order, "whose readers lose most", preempt=out, wake_at=self._next_at)

    def _lost_by_waiting(self, view: StepView) -> Floats:
        """Of the time since each was asked for, the share that its reader waits if it does not run for the
        interval."""
        lead_s = np.where(view.begun, np.fmax(view.lead_s, 0.0), 0.0)
        waits_s = np.maximum(self._interval_s - lead_s, 0.0)
        return waits_s / (np.fmax(view.age_s, 0.0) + self._interval_s)
