"""Devices on virtual time: each runs one step at a time, in the order given; copies go beside the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from antiphon.core.config import Unit
from antiphon.core.errors import ConfigError
from antiphon.core.plans import ArStep, CopyBlocks, Handoff, MoveBlocks, Step
from antiphon.latency.features import SpeechFeatures
from antiphon.sim.costs import CostModel

Place = tuple[str, str]
"""A process and a device of it."""


class BusySpan(NamedTuple):
    """When a step or a copy is reported, and how long its device or its link was busy with it."""

    end_s: float
    seconds: float


class Devices:
    """Owner of when each device and each of its links is free again, and of how long it was busy.

    A device has a lane to the host and one back, which all units on it share, in whatever process they are.
    What crosses them is read from or written to the host's memory, which all devices share.
    """

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
        self._lane_free_at: dict[tuple[str, str], float] = {}
        self._host_free_at = 0.0
        self._copied_at: dict[tuple[str, int], float] = {}
        self._reported_at: dict[str, float] = {}
        self._handed_at: dict[tuple[str, int], float] = {}
        self.busy_s = dict.fromkeys(self._units, 0.0)
        """Per unit, seconds in steps."""

    def are_apart(self, source: str, target: str) -> bool:
        """Do the units live in two processes?"""
        return self._units[source].process != self._units[target].process

    def run(self, step: Step, now: float, speech: SpeechFeatures | None = None) -> BusySpan:
        """Begin it as soon as the device is free and what it needs is there.

        A step that waits for copies overlaps with them, layer by layer, and ends no sooner than they do.
        `speech`: what is said in a step of a codec that reads text.
        """
        place, stage = self._place(step.stage), self._units[step.stage].stage
        begin_s = max(now, self._free_at.get(place, 0.0), self._payloads_at(step))
        costs = self._costs
        taken_s = costs.step_s(step, stage) if speech is None else costs.spoken_s(speech, stage)
        end_s = max(begin_s + taken_s, self._copies_at(step))
        self._free_at[place] = end_s
        self.busy_s[step.stage] += end_s - begin_s
        return BusySpan(end_s, end_s - begin_s)

    def copy(self, order: CopyBlocks, now: float) -> BusySpan:
        """Copies of one direction go one after the other. The host's memory serves all devices in the order
        of their orders, so what they copy together takes no less than its bandwidth allows. Raises
        ConfigError for a KV group whose size nobody knows.
        """
        unit = self._units[order.stage]
        num_bytes = self._num_bytes(unit.stage, order.group, len(order.sources))
        self._host_free_at = max(now, self._host_free_at) + self._costs.host_s(num_bytes)
        taken_s = self._costs.copy_s(order, num_bytes)
        crossed_s = self._cross((unit.device, order.to), taken_s, now)
        end_s = max(crossed_s, self._host_free_at)
        return BusySpan(self._reported(order.stage, order.ticket, end_s), end_s - crossed_s + taken_s)

    def move(self, order: MoveBlocks, now: float) -> BusySpan:
        """From device to device, one after the other in each direction. Raises ConfigError for a KV group
        whose size nobody knows."""
        source, target = self._units[order.source], self._units[order.target]
        num_bytes = self._num_bytes(target.stage, order.group, len(order.sources))
        lane = f"{target.process}/{source.device}", target.device
        taken_s = self._costs.send_s(num_bytes)
        end_s = self._cross(lane, taken_s, now)
        return BusySpan(self._reported(order.target, order.ticket, end_s), taken_s)

    def hand_over(self, order: Handoff, now: float) -> float:
        """Returns when it is there: within one device at once. Within one process it is not reported, and
        steps of its request wait."""
        if self._place(order.source) == self._place(order.target):
            return now
        there_s = now + self._costs.send_s(len(order.positions) * self._position_bytes)
        if not self.are_apart(order.source, order.target):
            self._handed_at[order.target, order.request] = there_s
        return there_s

    def send(self, num_tokens: int, now: float) -> float:
        """Media of so many tokens; returns when they are there."""
        return now + self._costs.send_s(num_tokens * self._position_bytes)

    def forget(self, unit: str, request: int) -> None:
        """What was handed over for a request is needed no more."""
        self._handed_at.pop((unit, request), None)

    def forget_copy(self, unit: str, ticket: int) -> None:
        """It was reported: no step planned later needs to wait."""
        self._copied_at.pop((unit, ticket), None)

    def _cross(self, lane: tuple[str, str], taken_s: float, now: float) -> float:
        """Take the lane as soon as it is free; returns when all is over."""
        self._lane_free_at[lane] = max(now, self._lane_free_at.get(lane, 0.0)) + taken_s
        return self._lane_free_at[lane]

    def _reported(self, unit: str, ticket: int, end_s: float) -> float:
        """Steps go on as soon as a copy is over; those of a unit are reported in the order given."""
        self._copied_at[unit, ticket] = end_s
        self._reported_at[unit] = max(end_s, self._reported_at.get(unit, 0.0))
        return self._reported_at[unit]

    def _num_bytes(self, stage: str, group: str, num_blocks: int) -> int:
        if (stage, group) not in self._block_bytes:
            known = ", ".join("/".join(key) for key in self._block_bytes) or "none"
            raise ConfigError(
                f"the size of a block of the {stage}'s KV group {group!r} is not known (known are: {known}); "
                "profile the engine with these groups: antiphon profile"
            )
        return num_blocks * self._block_bytes[stage, group]

    def _place(self, unit: str) -> Place:
        found = self._units[unit]
        return found.process, found.device

    def _payloads_at(self, step: Step) -> float:
        joins = step.joins if isinstance(step, ArStep) else ()
        return max((self._handed_at.get((step.stage, join.request), 0.0) for join in joins), default=0.0)

    def _copies_at(self, step: Step) -> float:
        waits = step.tickets if isinstance(step, ArStep) else ()
        return max((self._copied_at.get((step.stage, ticket), 0.0) for ticket in waits), default=0.0)
