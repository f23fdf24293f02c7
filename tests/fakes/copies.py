"""Copies between the tiers and units of the toy model, as late as a real mover could make them.

A copy lands when a step waits for it or when it is reported, and reads its sources then: until it is reported
nobody may have written there. Until it lands, its targets hold nothing of use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from antiphon.core.facts import CopyDone, CopyFailed, Fact
from antiphon.core.plans import CopyBlocks, MoveBlocks

if TYPE_CHECKING:
    from fakes.executors import FakeAr, FakeExecutor

GARBAGE = -1

Place = tuple[str, str, int]
"""(tier, group, block)"""


@dataclass(eq=False)
class FakeCopy:
    """An order that is not reported yet."""

    order: CopyBlocks
    ar: FakeAr
    fails: bool
    age: int = 0
    has_landed: bool = False

    @property
    def direction(self) -> str:
        return self.order.to

    @property
    def sources(self) -> set[Place]:
        tier = "host" if self.order.to == "device" else "device"
        return {(tier, self.order.group, block) for block in self.order.sources.tolist()}

    @property
    def targets(self) -> set[Place]:
        return {(self.order.to, self.order.group, block) for block in self.order.targets.tolist()}

    def land(self) -> None:
        if self.has_landed:
            return
        self.has_landed = True
        kv, host, group = self.ar.kv, self.ar.host_kv, self.order.group
        source, target = (host, kv) if self.order.to == "device" else (kv, host)
        for a, b in zip(self.order.sources.tolist(), self.order.targets.tolist(), strict=True):
            for at in range(self.ar.config.block_size):
                target[group, b, at] = GARBAGE if self.fails else source[group, a, at]


@dataclass(eq=False)
class FakeMove:
    """An order that is not reported yet, from one unit's device to another's."""

    order: MoveBlocks
    origin: FakeAr
    ar: FakeAr
    fails: bool
    age: int = 0
    has_landed: bool = False
    direction = "peer"

    @property
    def sources(self) -> set[Place]:
        """Of the unit that it goes to: none."""
        return set()

    @property
    def read(self) -> set[Place]:
        """Of the unit that it comes from."""
        return {("device", self.order.group, block) for block in self.order.sources.tolist()}

    @property
    def targets(self) -> set[Place]:
        return {("device", self.order.group, block) for block in self.order.targets.tolist()}

    def land(self) -> None:
        if self.has_landed:
            return
        self.has_landed = True
        group, source, target = self.order.group, self.origin.kv, self.ar.kv
        for a, b in zip(self.order.sources.tolist(), self.order.targets.tolist(), strict=True):
            for at in range(self.ar.config.block_size):
                # the end of the last block may have been computed by nobody
                target[group, b, at] = GARBAGE if self.fails else source.get((group, a, at), GARBAGE)


class FakeMover:
    """Implements `core.ports.KvMover`. A copy is reported `lag` polls after it was ordered, in order."""

    def __init__(self, units: Mapping[str, FakeExecutor]) -> None:
        """units: the executors as they are, however often they are exchanged."""
        self.lag = 0
        self.num_failing = 0
        """So many of the next copies break off, of those to `failing_to`."""
        self.failing_to = ("device", "host")
        self.num_failed = 0
        self._units = units
        self._queue: deque[FakeCopy | FakeMove] = deque()

    @property
    def num_in_flight(self) -> int:
        return len(self._queue)

    def copy(self, order: CopyBlocks) -> None:
        ar = cast("FakeAr", self._units[order.stage])
        assert order.ticket > ar.last_ticket, "tickets ascend"
        ar.last_ticket = order.ticket
        copy = FakeCopy(order, ar, self._fails(order.to))
        self._check(copy)
        for _, group, block in copy.targets:
            for at in range(ar.config.block_size):
                (ar.kv if order.to == "device" else ar.host_kv)[group, block, at] = GARBAGE
        self._queue.append(copy)
        ar.copies.append(copy)

    def move(self, order: MoveBlocks, is_lost: bool = False) -> None:
        """is_lost: its source is gone."""
        origin, ar = (cast("FakeAr", self._units[unit]) for unit in (order.source, order.target))
        assert order.ticket > ar.last_ticket, "tickets ascend"
        ar.last_ticket = order.ticket
        move = FakeMove(order, origin, ar, self._fails("device") or is_lost)
        self._check(move)
        for other in origin.copies:
            assert other.has_landed or move.read.isdisjoint(other.targets), "what has still to come is moved"
        for _, group, block in move.targets:
            for at in range(ar.config.block_size):
                ar.kv[group, block, at] = GARBAGE
        self._queue.append(move)
        ar.copies.append(move)
        origin.moves_out.append(move)

    def _fails(self, to: str) -> bool:
        fails = self.num_failing > 0 and to in self.failing_to
        self.num_failed += fails
        self.num_failing -= fails
        return fails

    def _check(self, copy: FakeCopy | FakeMove) -> None:
        order, ar = copy.order, copy.ar
        assert len(order.sources) == len(order.targets) == len(copy.targets) > 0
        sizes = {"device": ar.config.num_blocks, "host": ar.config.host_blocks}
        assert all(0 <= block < sizes[tier] for tier, _, block in copy.sources | copy.targets)
        for other in ar.copies:
            assert copy.targets.isdisjoint(other.targets | other.sources), "a block is reused too early"
            assert other.has_landed or copy.sources.isdisjoint(other.targets), (
                "what has still to come is copied"
            )
        if isinstance(order, MoveBlocks) or order.to == "device":
            for _, _, blocks in ar._in_flight:
                assert all((group, b) not in blocks for _, group, b in copy.targets), "a step is there"
        for move in ar.moves_out:
            assert copy.targets.isdisjoint(move.read), "a block that is being moved is reused"

    def forget(self, units: list[str]) -> None:
        """These are gone, and what was to be copied there; what was to come from there breaks off."""
        for copy in self._queue:
            if isinstance(copy, FakeMove):
                copy.fails |= copy.order.source in units and not copy.has_landed
                if copy.order.target in units:
                    copy.origin.moves_out.remove(copy)
        self._queue = deque(copy for copy in self._queue if _unit(copy) not in units)

    def poll(self) -> list[Fact]:
        facts: list[Fact] = []
        for copy in self._queue:
            copy.age += 1
        while self._queue and self._queue[0].age > self.lag:
            facts.append(self._over(self._queue[0]))
        return facts

    def finish(self, unit: str, ticket: int) -> None:
        """For those that have a clock of their own, and report themselves: this one is over."""
        (copy,) = [copy for copy in self._queue if (_unit(copy), copy.order.ticket) == (unit, ticket)]
        self._over(copy)

    def _over(self, copy: FakeCopy | FakeMove) -> Fact:
        self._queue.remove(copy)
        copy.land()
        copy.ar.copies.remove(copy)
        if isinstance(copy, FakeMove):
            copy.origin.moves_out.remove(copy)
        stage, ticket = _unit(copy), copy.order.ticket
        return CopyFailed(stage, ticket, "injected") if copy.fails else CopyDone(stage, ticket)


def _unit(copy: FakeCopy | FakeMove) -> str:
    """Who reports it."""
    return copy.order.stage if isinstance(copy.order, CopyBlocks) else copy.order.target


class Waits:
    """What a step may rely on of the copies that are not reported."""

    def __init__(
        self, copies: list[FakeCopy | FakeMove], tickets: tuple[int, ...], moves_out: list[FakeMove]
    ) -> None:
        """Copies of one direction land in order, so all before the last one waited for have landed."""
        assert set(tickets) <= {copy.order.ticket for copy in copies}, "a step waits for nothing"
        waited = {copy.direction: copy.order.ticket for copy in copies if copy.order.ticket in tickets}
        for copy in copies:
            if copy.order.ticket <= waited.get(copy.direction, -1):
                copy.land()
        self.has_failed = any(copy.fails for copy in copies if copy.order.ticket in tickets)
        self._unheard = {
            place for copy in copies if copy.order.ticket not in tickets for place in copy.targets
        }
        self._read = {place for copy in copies for place in copy.sources}
        self._read |= {place for move in moves_out for place in move.read}

    def check_read(self, group: str, block: int) -> None:
        assert ("device", group, block) not in self._unheard, "a step reads what it did not wait for"

    def check_write(self, group: str, block: int) -> None:
        self.check_read(group, block)
        assert ("device", group, block) not in self._read, "a step writes what is being copied"
