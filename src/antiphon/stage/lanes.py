"""The links of a device to its host and back: what is on its way, and how long that will take."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from antiphon.core.facts import CopyDone, CopyFact
from antiphon.core.plans import CopyBlocks, MoveBlocks
from antiphon.latency.costs import ProfiledCopies
from antiphon.latency.observed import ObservedCopies


@dataclass(slots=True)
class _Queue:
    """Copies of one direction by ticket, in order. `begun`: when the first of them had the link to itself."""

    orders: dict[int, CopyBlocks]
    begun: float = 0.0


class Lanes:
    """Owner of what is on its way over the links of one device. Copies of a direction go one after the other,
    whatever unit they are for."""

    def __init__(self, cost: ProfiledCopies | ObservedCopies | None = None) -> None:
        """cost: how long copies take; by default as it was observed."""
        self._cost = cost or ObservedCopies()
        self._queues = {to: _Queue({}) for to in ("host", "device")}
        self.num_changes = 0
        """Of what is on its way."""
        self._now = 0.0
        self._pressing = frozenset[str]()
        """Units at which a person's request waits for copies."""

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self._now = now

    def ordered(self, order: CopyBlocks | MoveBlocks) -> None:
        """Moves from other devices take other links."""
        if isinstance(order, MoveBlocks):
            return
        queue = self._queues[order.to]
        if not queue.orders:
            queue.begun = self._now
        queue.orders[order.ticket] = order
        self.num_changes += 1

    def answered(self, fact: CopyFact) -> None:
        for to, queue in self._queues.items():
            order = queue.orders.pop(fact.ticket, None)
            if order is not None:
                self.num_changes += 1
                queue.begun = self._now
                seconds = fact.seconds if isinstance(fact, CopyDone) else nan
                self._cost.reported(order.stage, order.group, to, len(order.sources), seconds)

    def press(self, unit: str, does: bool) -> None:
        """Does a person's request wait at the unit for what has to come over the link?"""
        if does != (unit in self._pressing):
            self._pressing ^= {unit}
            self.num_changes += 1

    def is_pressed(self, unit: str) -> bool:
        """Does one wait at another unit?"""
        return bool(self._pressing - {unit})

    def forget(self, unit: str) -> None:
        """The unit is lost: nothing of what was ordered for it is answered."""
        self.num_changes += 1
        self._pressing -= {unit}
        for queue in self._queues.values():
            queue.orders = {ticket: one for ticket, one in queue.orders.items() if one.stage != unit}

    def queued_s(self, to: str) -> float:
        """Until all that is on its way in this direction is there; nan: not known."""
        queue, total, first = self._queues[to], 0.0, 0.0
        for order in queue.orders.values():
            took = self._cost.seconds(order.stage, order.group, to, len(order.sources))
            first = first or took
            total += took
        return total - min(self._now - queue.begun, first) if queue.orders else 0.0

    def block_s(self, unit: str, groups: tuple[str, ...], to: str) -> float:
        """Of one block in all these KV groups; nan: not known."""
        return sum(self._cost.seconds(unit, group, to, 1) for group in groups)
