"""Copies of KV blocks layer by layer, beside the steps: between a unit's device pages and its host tier, and
from the pages of one unit to those of another.

A lane carries copies out in order and says when each layer is there: a worker thread where the device is the
CPU, a stream of its own on CUDA. Each direction has a lane, so that writing to the host delays no reload.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import CopyDone, CopyFailed, Fact, Ints
from antiphon.core.plans import CopyBlocks, MoveBlocks
from antiphon.engine.kv_pool import Arrival, KvPool, Planes

log = logging.getLogger(__name__)

Move = Callable[[], None]
Run = tuple[int, int, int]
"""(source, target, count): blocks that lie side by side at both ends."""
CopyOrder = CopyBlocks | MoveBlocks


class Copy(Arrival, Protocol):
    """A copy under way, as its lane sees it."""

    @property
    def seconds(self) -> float:
        """That its lane was busy with it, once it is there."""
        ...

    def poll(self) -> bool:
        """Is every layer there? Raises what the copy raised."""
        ...


class CopyLane(Protocol):
    """Carries copies out in the order given."""

    def start(self, group: str, moves: list[Move]) -> Copy:
        """One move per layer of `group`."""
        ...


Direction = Literal["host", "device", "peer"]
"""To the host, to the device, or from unit to unit on the device."""


@dataclass(frozen=True, slots=True)
class End:
    """Blocks of a KV group that an order reads or writes, in the tier of a unit."""

    unit: str
    tier: Literal["host", "device"]
    group: str
    blocks: frozenset[int]

    def overlaps(self, other: End) -> bool:
        mine, theirs = ((end.unit, end.tier, end.group) for end in (self, other))
        return mine == theirs and not self.blocks.isdisjoint(other.blocks)


@dataclass(frozen=True, slots=True)
class Pending:
    """A copy that is not reported yet."""

    ticket: int
    direction: Direction
    source: End
    target: End
    copy: Copy

    def holds_up(self, source: End, target: End) -> bool:
        """Would a later copy between these blocks read what this one writes, or write what it touches?"""
        reads = self.target.overlaps(source)
        return reads or self.target.overlaps(target) or self.source.overlaps(target)


class KvCopies:
    """Implements `core.ports.KvMover` for the units whose pools it is given.

    Copies of one direction run in the order given, whatever unit they are for. Those of two directions run
    beside each other, unless they touch the same blocks: then each layer of the later one waits for that of
    the earlier one, and fails with it.
    """

    def __init__(
        self, pools: dict[str, KvPool], new_lane: Callable[[], CopyLane], link_gb_s: float | None = None
    ) -> None:
        """new_lane: makes the lane of a direction, with the first copy in it. link_gb_s: most that copies to
        the host and back take, each; in lanes of threads only."""
        self.pools = pools
        self._link_gb_s = link_gb_s
        self._new_lane = new_lane
        self._lanes: dict[Direction, CopyLane] = {}
        self._pending: dict[str, deque[Pending]] = {unit: deque() for unit in pools}
        """By the unit that waits for it."""
        self._num_failed = 0

    @property
    def num_in_flight(self) -> int:
        return sum(len(pending) for pending in self._pending.values())

    def copy(self, order: CopyBlocks) -> None:
        away = "host" if order.to == "device" else "device"
        source = End(order.stage, away, order.group, frozenset(order.sources.tolist()))
        target = End(order.stage, order.to, order.group, frozenset(order.targets.tolist()))
        self._start(order, order.to, source, target)

    def move(self, order: MoveBlocks) -> None:
        """From device pages to device pages, of two units of this process."""
        source = End(order.source, "device", order.group, frozenset(order.sources.tolist()))
        target = End(order.target, "device", order.group, frozenset(order.targets.tolist()))
        self._start(order, "peer", source, target)

    def _start(self, order: CopyOrder, direction: Direction, source: End, target: End) -> None:
        if target.tier == "device":
            self.pools[target.unit].reach(order.targets)
        try:
            ends = self._planes(source), self._planes(target)
            after = [each.copy for each in self._others(direction) if each.holds_up(source, target)]
            made = moves(order, *ends, after)
            if self._link_gb_s is not None and direction != "peer":
                layer_bytes = sum(tensor[0].nbytes for tensor in ends[0][0]) * len(order.sources)
                made = [partial(held_to, layer_bytes / self._link_gb_s / 1e9, move) for move in made]
            copy = self._lane(direction).start(order.group, made)
        except Exception as error:
            copy = BrokenCopy(order.group, error)
        self.pools[target.unit].expect(order.ticket, copy)
        self._pending[target.unit].append(Pending(order.ticket, direction, source, target, copy))

    def _planes(self, end: End) -> Planes:
        pool = self.pools[end.unit]
        return (pool.host if end.tier == "host" else pool.device)[end.group]

    def _others(self, direction: Direction) -> Iterable[Pending]:
        """Of one direction, its lane keeps the order."""
        return (each for pending in self._pending.values() for each in pending if each.direction != direction)

    def _lane(self, direction: Direction) -> CopyLane:
        if direction not in self._lanes:
            self._lanes[direction] = self._new_lane()
        return self._lanes[direction]

    def poll(self) -> list[Fact]:
        facts: list[Fact] = []
        for unit, pending in self._pending.items():
            while pending and (fact := self._answer(unit, pending[0])) is not None:
                pending.popleft()
                facts.append(fact)
        return facts

    def _answer(self, unit: str, pending: Pending) -> Fact | None:
        """What to report of a copy, None while it runs. A copy that waits for one that failed fails too. The
        log is told of the first, the second, the fourth … that fails: a link may always fail."""
        ticket = pending.ticket
        try:
            if not pending.copy.poll():
                return None
        except Exception as error:
            times = self._num_failed = self._num_failed + 1
            if times & (times - 1) == 0:
                log.exception("copy %d of unit %s failed (%d so far)", ticket, unit, times)
            return CopyFailed(unit, ticket, f"{type(error).__name__}: {error}")
        self.pools[unit].arrived(ticket)
        return CopyDone(unit, ticket, pending.copy.seconds)


class BrokenCopy:
    """A copy that could not even be begun."""

    seconds = nan

    def __init__(self, group: str, error: Exception) -> None:
        self.group = group
        self._error = error

    def wait(self, layer: int) -> None:
        raise self._error

    def poll(self) -> bool:
        raise self._error


class CopyThreadLane:
    """One worker thread, started with the first copy."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "kv-copies")

    def start(self, group: str, moves: list[Move]) -> Copy:
        spans = [0.0] * len(moves)

        def timed(layer: int) -> None:
            began = time.perf_counter()
            moves[layer]()
            spans[layer] = time.perf_counter() - began

        return ThreadCopy(group, [self._worker.submit(timed, layer) for layer in range(len(moves))], spans)


class ThreadCopy:
    """A future per layer, and how long each took."""

    def __init__(self, group: str, layers: list[Future[None]], spans: list[float]) -> None:
        self.group = group
        self._layers = layers
        self._spans = spans

    @property
    def seconds(self) -> float:
        return sum(self._spans)

    def wait(self, layer: int) -> None:
        self._layers[layer].result()

    def poll(self) -> bool:
        if not self._layers[-1].done():
            return False
        for layer in self._layers:
            layer.result()
        return True


class CopyStreamLane:
    """A CUDA stream. A copy begins after what the device was given before it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, group: str, moves: list[Move]) -> Copy:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        began = torch.cuda.Event(enable_timing=True)
        events = [torch.cuda.Event(enable_timing=move is moves[-1]) for move in moves]
        with torch.cuda.stream(self._stream):
            began.record(self._stream)
            for move, event in zip(moves, events, strict=True):
                move()
                event.record(self._stream)
        return StreamCopy(group, events, self._device, began)


class StreamCopy:
    """An event per layer, and one before the first; a wait holds the device back, not the host."""

    def __init__(
        self, group: str, layers: list[torch.cuda.Event], device: torch.device, began: torch.cuda.Event
    ) -> None:
        self.group = group
        self._layers = layers
        self._device = device
        self._began = began

    @property
    def seconds(self) -> float:
        return self._began.elapsed_time(self._layers[-1]) * 1e-3

    def wait(self, layer: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._layers[layer])

    def poll(self) -> bool:
        return self._layers[-1].query()


def lane_maker(device: torch.device) -> Callable[[], CopyLane]:
    """Makes lanes for a device's copies."""
    return partial(CopyStreamLane, device) if device.type == "cuda" else CopyThreadLane


def moves(order: CopyOrder, source: Planes, target: Planes, after: Sequence[Arrival] = ()) -> list[Move]:
    """One move per layer of the order's group, each behind the same layer of the copies `after`. Raises
    IndexError for a block that isn't there."""
    assert len(order.sources) == len(order.targets), "every block goes somewhere"
    for blocks, planes in ((order.sources, source), (order.targets, target)):
        size = planes[0][0].shape[0]
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < size:
            raise IndexError(f"{order.group}: blocks {blocks.tolist()} of a tier that has {size}")
    pieces = runs(order.sources, order.targets)

    def move(layer: int) -> None:
        for copy in after:
            copy.wait(layer)
        copy_runs(source[layer], target[layer], pieces)

    return [partial(move, layer) for layer in range(len(source))]


def held_to(seconds: float, move: Move) -> None:
    """Takes so long at least."""
    until = time.perf_counter() + seconds
    move()
    time.sleep(max(until - time.perf_counter(), 0.0))


def copy_runs(source: tuple[Tensor, ...], target: tuple[Tensor, ...], pieces: list[Run]) -> None:
    """One layer's copy. On CUDA it is only queued, since the host tier is pinned."""
    for src, dst in zip(source, target, strict=True):
        for first, to, count in pieces:
            dst[to : to + count].copy_(src[first : first + count], non_blocking=True)


def runs(sources: Ints, targets: Ints) -> list[Run]:
    """As few pieces as the block ids allow."""
    cuts = np.flatnonzero((np.diff(sources) != 1) | (np.diff(targets) != 1)) + 1
    pairs = zip(np.split(sources, cuts), np.split(targets, cuts), strict=True)
    return [(int(a[0]), int(b[0]), len(a)) for a, b in pairs if len(a)]
