"""Copies of KV blocks layer by layer, beside the steps: between a unit's device pages and its host tier, and
from the pages of one unit to those of another.

A lane carries copies out in order and says when each layer is there: a worker thread where the device is the
CPU, a stream of its own on CUDA.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

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

    def poll(self) -> bool:
        """Is every layer there? Raises what the copy raised."""
        ...


class Lane(Protocol):
    """Carries copies out in the order given."""

    def start(self, group: str, moves: list[Move]) -> Copy:
        """One move per layer of `group`."""
        ...


class KvCopies:
    """Implements `core.ports.KvMover` for the units whose pools it is given."""

    def __init__(self, pools: dict[str, KvPool], lane: Lane) -> None:
        self.pools = pools
        self._lane = lane
        self._under_way: deque[tuple[str, int, Copy]] = deque()
        """With the unit that waits for it, and its ticket."""

    @property
    def num_in_flight(self) -> int:
        return len(self._under_way)

    def copy(self, order: CopyBlocks) -> None:
        pool = self.pools[order.stage]
        tiers = pool.host, pool.device
        self._start(order.stage, order, *(tiers if order.to == "device" else tiers[::-1]))

    def move(self, order: MoveBlocks) -> None:
        """From device pages to device pages, of two units of this process."""
        source, target = self.pools[order.source], self.pools[order.target]
        self._start(order.target, order, source.device, target.device)

    def _start(
        self, unit: str, order: CopyOrder, source: dict[str, Planes], target: dict[str, Planes]
    ) -> None:
        try:
            ends = source[order.group], target[order.group]
            copy = self._lane.start(order.group, moves(order, *ends))
        except Exception as error:
            copy = BrokenCopy(order.group, error)
        self.pools[unit].expect(order.ticket, copy)
        self._under_way.append((unit, order.ticket, copy))

    def poll(self) -> list[Fact]:
        facts: list[Fact] = []
        while self._under_way and (fact := self._answer(*self._under_way[0])) is not None:
            self._under_way.popleft()
            facts.append(fact)
        return facts

    def _answer(self, unit: str, ticket: int, copy: Copy) -> Fact | None:
        """What to report of a copy, None while it runs. Whoever waits for one that failed fails too."""
        try:
            if not copy.poll():
                return None
        except Exception as error:
            log.exception("copy %d of unit %s failed", ticket, unit)
            return CopyFailed(unit, ticket, f"{type(error).__name__}: {error}")
        self.pools[unit].arrived(ticket)
        return CopyDone(unit, ticket)


class BrokenCopy:
    """A copy that could not even be begun."""

    def __init__(self, group: str, error: Exception) -> None:
        self.group = group
        self._error = error

    def wait(self, layer: int) -> None:
        raise self._error

    def poll(self) -> bool:
        raise self._error


class ThreadLane:
    """One worker thread, started with the first copy."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "kv-copies")

    def start(self, group: str, moves: list[Move]) -> Copy:
        return ThreadCopy(group, [self._worker.submit(move) for move in moves])


class ThreadCopy:
    """A future per layer."""

    def __init__(self, group: str, layers: list[Future[None]]) -> None:
        self.group = group
        self._layers = layers

    def wait(self, layer: int) -> None:
        self._layers[layer].result()

    def poll(self) -> bool:
        if not self._layers[-1].done():
            return False
        for layer in self._layers:
            layer.result()
        return True


class StreamLane:
    """A CUDA stream. A copy begins after what the device was given before it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, group: str, moves: list[Move]) -> Copy:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        events = [torch.cuda.Event() for _ in moves]
        with torch.cuda.stream(self._stream):
            for move, event in zip(moves, events, strict=True):
                move()
                event.record(self._stream)
        return StreamCopy(group, events, self._device)


class StreamCopy:
    """An event per layer; a wait holds the device back, not the host."""

    def __init__(self, group: str, layers: list[torch.cuda.Event], device: torch.device) -> None:
        self.group = group
        self._layers = layers
        self._device = device

    def wait(self, layer: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._layers[layer])

    def poll(self) -> bool:
        return self._layers[-1].query()


def pick_lane(device: torch.device) -> Lane:
    """The lane of a device's copies."""
    return StreamLane(device) if device.type == "cuda" else ThreadLane()


def moves(order: CopyOrder, source: Planes, target: Planes) -> list[Move]:
    """One move per layer of the order's group. Raises IndexError for a block that isn't there."""
    assert len(order.sources) == len(order.targets), "every block goes somewhere"
    for blocks, planes in ((order.sources, source), (order.targets, target)):
        size = planes[0][0].shape[0]
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < size:
            raise IndexError(f"{order.group}: blocks {blocks.tolist()} of a tier that has {size}")
    pieces = runs(order.sources, order.targets)

    def move(layer: int) -> Move:
        return lambda: copy_runs(source[layer], target[layer], pieces)

    return [move(layer) for layer in range(len(source))]


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
