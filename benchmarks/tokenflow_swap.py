"""A baseline of benchmarks/tokenflow.py: requests that find no room take turns, whoever reads them."""

from __future__ import annotations

import numpy as np

from antiphon.core.facts import Ints
from antiphon.policy.base import Floats, Hold, Mask, StepView
from antiphon.policy.rounds import Rounds
from antiphon.policy.token_buffer import TokenBuffer
from antiphon.policy.working_set import Gains


class Turns(Rounds):
    """Whoever has had a row for `turn_s` may lose it, and nobody's rate counts.

    for_s  that each has had its row, or has waited: [n] of the view that is looked at
    """

    turn_s = 1.0
    for_s = np.zeros(0)

    def _fixed(self, view: StepView) -> Mask:
        rows = slice(view.num_rows)
        return ~view.begun[rows] | (self.for_s[rows] < self.turn_s)

    def _gains(self, view: StepView, step_s: float) -> Gains:
        """Who waits longest first, then who has had a row the shortest."""
        gains = super()._gains(view, step_s)
        gains.gain = np.where(view.row >= 0, -self.for_s, self.for_s)
        return gains

    def _note_load(self, rates: Floats, most_per_s: float) -> None:
        """Nobody's rate counts."""

    def _admitted(self, view: StepView, new: Mask, in_set: Mask, rates: Floats, most_per_s: float) -> Mask:
        return super()._admitted(view, new, in_set, np.zeros_like(rates), most_per_s)


class RoundRobinSwap(TokenBuffer):
    """While somebody finds no room, whoever has had a row for `turn_s` gives it up to whoever has waited
    longest. KV is written, brought back and looked at as the preset has it, so that what differs is who gives
    way."""

    name = "round-robin-swap"
    rounds_by = Turns

    def __init__(self, turn_s: float = 1.0) -> None:
        super().__init__()
        self._rounds.turn_s = turn_s
        self._since: dict[int, float] = {}
        """When each request got its row, or lost it."""
        self._had_row = frozenset[int]()

    def decide_pace(self, view: StepView, now: float) -> Hold:
        requests: list[int] = view.request.tolist()
        rows = frozenset(requests[: view.num_rows])
        before = self._since
        self._since = {
            one: before[one] if one in before and (one in rows) == (one in self._had_row) else now
            for one in requests
        }
        self._had_row = rows
        self._rounds.for_s = now - np.array([self._since[one] for one in requests])
        return super().decide_pace(view, now)

    def _is_dry(self, view: StepView) -> Mask:
        return np.zeros(view.num_rows, np.bool_)

    def _least_needed(self, view: StepView) -> Ints:
        return np.argsort(self._rounds.for_s[: view.num_rows], kind="stable")[-1:]

    def _lead_s(self, request: int) -> float:
        """What has had its row longest gives way next, and is written first; who gave way last comes last
        and leaves first."""
        since = self._since.get(request, 0.0)
        return -since if request in self._had_row else since
