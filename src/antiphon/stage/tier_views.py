"""What policies see of a stage's KV: `policy.memory.KvView` over the ledgers, computed when it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf, nan
from types import MappingProxyType
from typing import NamedTuple

from antiphon.interaction.next_use import NextUseTimes, Order
from antiphon.kv.host import HostCopy, HostTier
from antiphon.kv.sequences import Sequence as Kv
from antiphon.kv.stage_kv import StageKv
from antiphon.policy.memory import KvState, KvTier, LaneState

FIRST_LOOK = 8
"""Owners that are read before the first is taken; each further look reads as many as all before it."""


@dataclass(slots=True)
class Unread:
    """Blocks of an owner that were brought and not read: those that are there, those that were given up, and
    when either changed last."""

    num: int = 0
    num_swapped: int = 0
    at: float = -inf

    def given_up(self, count: int, now: float) -> int:
        """How many of them leave with the owner's last `count` blocks."""
        lost = min(count, self.num)
        self.num, self.num_swapped, self.at = self.num - lost, self.num_swapped + lost, now
        return lost


class Copied(NamedTuple):
    """Leading full blocks of an owner's KV that have a copy on the host: the last one's name, and how many
    copies the host had given up by then."""

    num: int
    last: bytes
    num_gone: int


@dataclass(slots=True)
class Owners:
    """Owner of what is known of each owner of KV beside its blocks.

    states   of those that are not merely resting
    session  of those that do not go by its name
    running  sequences of requests in rows, by owner
    request  whose KV it is, of those that run or were preempted
    queue    owners that requests begin with for which there is a row, in order
    waiting  those of them that are not wholly on the device
    patient  those of them that are not a person's, or for which there was no room
    unwritten  owners that may have full blocks without a copy on the host, oldest first
    refused  owners of KV whose copy to the host failed, until they rest anew: they count as written, since
             a copy that always fails would be ordered at every decision. What leaves is copied anyway
    preloaded  blocks that were ordered though no request waited, and whose copy did not break off, by owner,
             until a request begins with it
    unread   of KV that was brought though no request waited, until one reads it
    copied   what of it has a copy, as of the last look
    evicted  owners of `request` that gave up blocks of the device since the stage looked at them
    """

    states: dict[str, KvState] = field(default_factory=dict[str, KvState])
    session: dict[str, str] = field(default_factory=dict[str, str])
    running: dict[str, Kv] = field(default_factory=dict[str, Kv])
    request: dict[str, int] = field(default_factory=dict[str, int])
    queue: list[str] = field(default_factory=list[str])
    waiting: list[str] = field(default_factory=list[str])
    patient: set[str] = field(default_factory=set[str])
    unwritten: dict[str, None] = field(default_factory=dict[str, None])
    refused: dict[str, None] = field(default_factory=dict[str, None])
    preloaded: Counter[str] = field(default_factory=Counter[str])
    unread: dict[str, Unread] = field(default_factory=dict[str, Unread])
    copied: dict[str, Copied] = field(default_factory=dict[str, Copied])
    evicted: dict[str, None] = field(default_factory=dict[str, None])

    def num_copied(self, owner: str, names: Sequence[bytes], host: HostTier) -> int:
        """How many leading ones of its full blocks, by their names, have a copy on the host, or will have
        one. A name says what is before it too, so that what was looked at once is not looked at again."""
        known, num = self.copied.get(owner), 0
        if known is not None and known.num_gone == host.num_gone and known.num <= len(names):
            num = known.num if names[known.num - 1] == known.last else 0
        found = host.num_copied(names, num)
        if found and found != num:
            self.copied[owner] = Copied(found, names[found - 1], host.num_gone)
        return found

    def left_queue(self, owner: str) -> None:
        """Its request has a row, or is over."""
        if owner in self.queue:
            self.queue.remove(owner)

    def forget(self, owner: str) -> None:
        """Nothing that rests of it is left, or of use. What a request runs on stays known."""
        if owner in self.running:
            return
        beside = self.states, self.session, self.request, self.unwritten, self.refused
        for kept in (*beside, self.preloaded, self.unread, self.copied):
            kept.pop(owner, None)


@dataclass(slots=True)
class View:
    """Implements `policy.memory.KvView` for one call of a policy."""

    tier: KvTier
    num_wanted: int
    kv: StageKv
    host: HostTier
    known: Owners
    now: float
    next_use: NextUseTimes | None
    orders: Mapping[str, Order]
    """By tier; `dirty`: of what may lack a copy on the host."""
    lane: Callable[[KvTier], LaneState]
    step_cost: Callable[[], float]
    is_pressed_beside: bool
    incoming: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def out(self) -> LaneState:
        return self.lane("host")

    @property
    def back(self) -> LaneState:
        return self.lane("device")

    @property
    def step_s(self) -> float:
        return self.step_cost()

    @property
    def groups(self) -> Sequence[str]:
        return self.kv.groups

    @property
    def num_blocks(self) -> int:
        return self.kv.num_blocks if self.tier == "device" else self.host.num_blocks

    @property
    def num_free(self) -> int:
        if self.tier == "host":
            return self.host.num_free + self.host.num_leaving
        return self.kv.blocks.num_free_soon

    @property
    def num_below(self) -> int:
        return self.host.num_free if self.tier == "device" else 0

    @property
    def due_below_s(self) -> float:
        if self.next_use is None or self.tier != "device" or not self.host.num_blocks:
            return nan
        last = next(self.next_use.farthest(self.orders["host"], self.host.owners, self.now), None)
        return nan if last is None else self.due_s(last)

    @property
    def size_below(self) -> int:
        return self.host.num_blocks if self.tier == "device" else 0

    def oldest(self) -> Iterator[str]:
        yield from _in_order(self._here)

    def farthest(self) -> Iterator[str]:
        yield from self._farthest(self.tier, self._here, self.oldest)

    def farthest_dirty(self) -> Iterator[str]:
        for owner in self._farthest("dirty", self.known.unwritten, self.dirty):
            if self._is_dirty(owner):
                yield owner
            else:
                self.known.unwritten.pop(owner, None)

    def _farthest(
        self, order: str, here: Container[str], others: Callable[[], Iterator[str]]
    ) -> Iterator[str]:
        if self.next_use is None:
            yield from others()
            return
        seen = set[str]()
        for owner in self.next_use.farthest(self.orders[order], here, self.now):
            seen.add(owner)
            yield owner
        expected = dict.fromkeys(self.next_use.expected(self.now))
        yield from (owner for owner in others() if owner not in seen and owner not in expected)
        yield from (owner for owner in expected if owner in here)

    @property
    def expects_at(self) -> float:
        return inf if self.next_use is None else self.next_use.expects_at(self.now)

    def is_expected(self, owner: str) -> bool:
        return self.next_use is not None and self.next_use.is_expected(owner, self.now)

    def expected(self) -> Iterator[str]:
        if self.next_use is not None:
            yield from (owner for owner in self.next_use.expected(self.now) if self.has(owner))

    def has(self, owner: str) -> bool:
        is_here = owner in self.known.running or self.kv.resting.get(owner) is not None
        return is_here or self.host.num_held(owner) > 0

    def num_away(self, owner: str) -> int:
        sequence = self.kv.resting.get(owner)
        return 0 if sequence is None else len(next_copies(sequence, self.kv, self.host))

    def num_preloaded(self, owner: str) -> int:
        return self.known.preloaded[owner]

    def waiting(self) -> Iterator[str]:
        yield from self.known.waiting

    def is_pressing(self, owner: str) -> bool:
        return owner not in self.known.patient

    def dirty(self) -> Iterator[str]:
        for owner in _in_order(self.known.unwritten):
            if owner in self.known.running:
                continue
            if self._is_dirty(owner):
                yield owner
            else:
                del self.known.unwritten[owner]
        yield from (owner for owner in self.known.running if self._is_dirty(owner))

    @property
    def requests(self) -> Mapping[str, int]:
        return MappingProxyType(self.known.request)

    def state(self, owner: str) -> KvState | None:
        if not self.has(owner):
            return None
        if owner in self.known.running:
            return KvState.RUNNING
        return self.known.states.get(owner, KvState.RESTING)

    def device(self, owner: str) -> int:
        sequence = self._sequence(owner)
        return 0 if sequence is None else len(sequence.blocks)

    def on_host(self, owner: str) -> int:
        return self.host.num_held(owner)

    def due_s(self, owner: str) -> float:
        if self.known.states.get(owner) is KvState.PAUSED:
            return self.now
        session = self.known.session.get(owner, owner)
        return nan if self.next_use is None else self.next_use.due_s(session, self.now)

    @property
    def _here(self) -> Collection[str]:
        return self.kv.resting.owners if self.tier == "device" else self.host.owners

    def _sequence(self, owner: str) -> Kv | None:
        return self.known.running.get(owner) or self.kv.resting.get(owner)

    def _is_dirty(self, owner: str) -> bool:
        sequence = self._sequence(owner)
        if sequence is None or owner in self.known.refused:
            return False
        names = sequence.filled
        return self.known.num_copied(owner, names, self.host) < len(names)


def next_copies(
    sequence: Kv, kv: StageKv, host: HostTier, count: int | None = None, reach: int | None = None
) -> list[HostCopy]:
    """Of the next blocks, up to `reach`, those that the device lacks and the host has, at most so many (None:
    all)."""
    first = sequence.num_coming
    groups = kv.blocks.lacks(sequence.blocks[first]) if first < len(sequence.blocks) else None
    end = len(sequence.chain) if reach is None else reach
    return host.run_of(sequence.chain[first : end if count is None else min(end, first + count)], groups)


def _in_order(owners: Collection[str]) -> Iterator[str]:
    """All of them, each once; owners may leave while this runs. It costs what is taken: `owners` is read in
    looks that double, and each skips those that were taken and are still there."""
    seen: set[str] = set()
    size = FIRST_LOOK
    while look := list(islice((owner for owner in owners if owner not in seen), size)):
        yield from look
        seen.update(look)
        size = len(seen)
