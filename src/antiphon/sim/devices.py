"""Devices on virtual time: each runs one step at a time, in the order given; copies go beside the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.core.config import Unit
from antiphon.core.plans import ArStep, CopyBlocks, Handoff, MoveBlocks, SendMedia, Step
from antiphon.sim.costs import CostModel

Place = tuple[str, str]
"""A process and a device of it."""


class Devices:
    """Owner of when each device is free again, and of how long it was busy."""

    def __init__(
        self,
        costs: CostModel,
        units: Iterable[Unit],
        block_bytes: Mapping[tuple[str, str], int],
        position_bytes: int = 0,
    ) -> None:
        """block_bytes: of a block, per (stage, KV group); position_bytes: of one position, or of one medium's
        token, that goes from unit to unit."""
        self._costs = costs
        self._units = {unit.name: unit for unit in units}
        self._block_bytes = block_bytes
        self._position_bytes = position_bytes
        self._free_at: dict[Place, float] = {}
        self._copied_at: dict[tuple[str, int], float] = {}
        self._handed_at: dict[tuple[str, int], float] = {}
        self.busy_s = dict.fromkeys(self._units, 0.0)
        """Per unit, seconds in steps."""

    def are_apart(self, source: str, target: str) -> bool:
        """Do the units live in two processes?"""
        return self._units[source].process != self._units[target].process

    def run(self, step: Step, now: float) -> float:
        """Begin it as soon as the device is free and what it needs is there; returns when it ends.

        A step that waits for copies overlaps with them, layer by layer, and ends no sooner than they do.
        """
        place, stage = self._place(step.stage), self._units[step.stage].stage
        begin_s = max(now, self._free_at.get(place, 0.0), self._payloads_at(step))
        end_s = max(begin_s + self._costs.step_s(step, stage), self._copies_at(step))
        self._free_at[place] = end_s
        self.busy_s[step.stage] += end_s - begin_s
        return end_s

    def copy(self, order: CopyBlocks, now: float) -> float:
        """Copies of one device and direction go one after the other; returns when this one ends."""
        process, device = self._place(order.stage)
        lane = process, f"{device}>{order.to}"
        stage = self._units[order.stage].stage
        num_bytes = len(order.sources) * self._block_bytes.get((stage, order.group), 0)
        end_s = max(now, self._free_at.get(lane, 0.0)) + self._costs.copy_s(order, num_bytes)
        self._free_at[lane] = self._copied_at[order.stage, order.ticket] = end_s
        return end_s

    def move(self, order: MoveBlocks, now: float) -> float:
        """From device to device, one after the other in each direction; returns when this one ends."""
        (_, source), (process, target) = self._place(order.source), self._place(order.target)
        lane = process, f"{source}>{target}"
        stage = self._units[order.target].stage
        num_bytes = len(order.sources) * self._block_bytes.get((stage, order.group), 0)
        end_s = max(now, self._free_at.get(lane, 0.0)) + self._costs.send_s(num_bytes)
        self._free_at[lane] = self._copied_at[order.target, order.ticket] = end_s
        return end_s

    def hand_over(self, order: Handoff, now: float) -> float:
        """Returns when it is there: within one device at once. Within one process nobody reports it, and
        steps of its request wait."""
        if self._place(order.source) == self._place(order.target):
            return now
        there_s = now + self._costs.send_s(len(order.positions) * self._position_bytes)
        if not self.are_apart(order.source, order.target):
            self._handed_at[order.target, order.request] = there_s
        return there_s

    def send(self, order: SendMedia, num_tokens: int, now: float) -> float:
        """Media of so many tokens; returns when they are there."""
        return now + self._costs.send_s(num_tokens * self._position_bytes)

    def forget(self, unit: str, request: int) -> None:
        """What was handed over for a request is needed no more."""
        self._handed_at.pop((unit, request), None)

    def forget_copy(self, unit: str, ticket: int) -> None:
        """It was reported: no step planned later needs to wait."""
        self._copied_at.pop((unit, ticket), None)

    def _place(self, unit: str) -> Place:
        found = self._units[unit]
        return found.process, found.device

    def _payloads_at(self, step: Step) -> float:
        joins = step.joins if isinstance(step, ArStep) else ()
        return max((self._handed_at.get((step.stage, join.request), 0.0) for join in joins), default=0.0)

    def _copies_at(self, step: Step) -> float:
        waits = step.waits if isinstance(step, ArStep) else ()
        return max((self._copied_at.get((step.stage, ticket), 0.0) for ticket in waits), default=0.0)
