"""The host tier of one stage's KV: copies of full blocks, found by what they hold.

A copy is named like the block it was made of (kv.sequences): any prompt that begins with the same keys finds
it, and a block of a name that is known here need not be copied again. Sequences hold copies, by their owners'
names; what none holds and no copy under way touches is free.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass

from antiphon.kv.blocks import ABSENT, BlockPool


@dataclass(slots=True, eq=False)
class HostCopy:
    """A full block's content on the host.

    slots    in the pool of each KV group, ABSENT where that is not copied
    written  indices of the groups that are there, and to be read
    holders  sequences whose past it is
    pins     copies under way that write or read it
    """

    name: bytes
    slots: list[int]
    written: frozenset[int] = frozenset()
    holders: int = 0
    pins: int = 0


class HostTier:
    """Owner of one stage's host blocks. Every group has the same number of slots."""

    def __init__(self, num_groups: int, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._pools = [BlockPool(num_blocks) for _ in range(num_groups)]
        self._all = frozenset(range(num_groups))
        self._copies: dict[bytes, HostCopy] = {}
        self._held: OrderedDict[str, list[HostCopy | None]] = OrderedDict()
        """What each owner holds, by its place in the sequence; least recently used first."""
        self._pinned: set[HostCopy] = set()
        self._gone: list[bytes] = []
        self.num_gone = 0
        """Copies that were found by their name and are no more."""
        self._leaving = [0] * num_groups
        """Slots of each group in copies that no sequence holds."""

    @property
    def num_free(self) -> int:
        return min(pool.num_free for pool in self._pools)

    @property
    def num_used(self) -> int:
        """Blocks that hold a copy, or soon will."""
        return self.num_blocks - self.num_free

    @property
    def num_leaving(self) -> int:
        """Blocks that are free once copies under way are done."""
        soon = (pool.num_free + leaving for pool, leaving in zip(self._pools, self._leaving, strict=True))
        return min(soon) - self.num_free

    @property
    def owners(self) -> KeysView[str]:
        """Sequences that hold something, least recently used first."""
        return self._held.keys()

    def num_held(self, owner: str) -> int:
        """Blocks of the owner's sequence that have a copy here."""
        held = self._held.get(owner)
        return 0 if held is None else len(held) - held.count(None)

    def lacks(self, name: bytes, groups: Iterable[int] | None = None) -> tuple[int, ...]:
        """Those of the groups (None: of all) that are neither copied nor being copied."""
        copy = self._copies.get(name)
        return tuple(
            group
            for group in (self._all if groups is None else groups)
            if copy is None or copy.slots[group] == ABSENT
        )

    def num_copied(self, names: Sequence[bytes], first: int = 0) -> int:
        """How many leading names, of which the first ones are known to be, are copied or being copied in all
        groups. It falls only where `num_gone` grows."""
        while first < len(names) and (copy := self._copies.get(names[first])) is not None:
            if ABSENT in copy.slots:
                break
            first += 1
        return first

    def run_of(self, names: Iterable[bytes], groups: Iterable[int] | None = None) -> list[HostCopy]:
        """The longest run of copies that are there in these groups (None: in all), from the first name on."""
        wanted = self._all if groups is None else frozenset(groups)
        run: list[HostCopy] = []
        find, add = self._copies.get, run.append
        for name in names:
            copy = find(name)
            if copy is None or (copy.written != wanted and not wanted <= copy.written):
                break
            add(copy)
        return run

    def begin(self, name: bytes, groups: Iterable[int] | None = None) -> HostCopy:
        """The copy of that name with free slots for these groups, which it lacks: pinned, and there once
        `landed` says so."""
        copy = self._copies.setdefault(name, HostCopy(name, [ABSENT] * len(self._pools)))
        for group in self._all if groups is None else groups:
            assert copy.slots[group] == ABSENT, "there is a copy already"
            copy.slots[group] = self._pools[group].allocate(1)[0]
            self._leaving[group] += not copy.holders
        self.pin([copy])
        return copy

    def find(self, name: bytes) -> HostCopy | None:
        """A copy that is there, or is being written."""
        return self._copies.get(name)

    def landed(self, copies: Iterable[HostCopy], groups: Iterable[int] | None = None) -> None:
        """These groups of the copies were written."""
        written = self._all if groups is None else frozenset(groups)
        for copy in copies:
            copy.written |= written

    def hold(self, owner: str, index: int, copy: HostCopy) -> None:
        """The copy is the sequence's block number `index`."""
        held = self._held.setdefault(owner, [])
        held += [None] * (index + 1 - len(held))
        before = held[index]
        if before is copy:
            return
        if not copy.holders:
            self._count_leaving(copy, -1)
        copy.holders += 1
        held[index] = copy
        self._let_go(before)

    def touch(self, owner: str) -> None:
        """The owner's past was used."""
        if owner in self._held:
            self._held.move_to_end(owner)

    def rest(self, owner: str, chain: Sequence[bytes]) -> None:
        """The owner's past is `chain`: what it holds of another one is given up."""
        held = self._held.get(owner, [])
        pairs = enumerate(zip(held, chain, strict=False))
        other = next((at for at, (copy, name) in pairs if copy is not None and copy.name != name), None)
        if other is not None:
            self._cut(owner, other)

    def rename(self, owner: str, name: str) -> None:
        """What the owner holds goes by `name` from now on; what that held before is given up."""
        held = self._held.pop(owner, None)
        if held is not None:
            self._cut(name, 0)
            self._held[name] = held

    def forget(self, owner: str) -> None:
        """The owner holds nothing any more."""
        self._cut(owner, 0)

    def evict(self, owner: str, count: int) -> int:
        """Give up the owner's last copies until `count` more blocks are free in every group, or will be.
        Returns how many are."""
        before, freed = self.num_free + self.num_leaving, 0
        while freed < count and (held := self._held.get(owner)):
            self._cut(owner, len(held) - 1)
            freed = self.num_free + self.num_leaving - before
        return freed

    def pin(self, copies: Iterable[HostCopy]) -> None:
        """A copy under way touches these."""
        for copy in copies:
            copy.pins += 1
            self._pinned.add(copy)

    def unpin(self, copies: Iterable[HostCopy]) -> None:
        for copy in copies:
            copy.pins -= 1
            if not copy.pins:
                self._pinned.remove(copy)
                self._free_if_loose(copy)

    def lose(self, copies: Iterable[HostCopy]) -> list[str]:
        """These hold nothing of use: no owner finds or holds them any more. Returns owners that held one."""
        lost = dict.fromkeys(copies)
        for copy in lost:
            self._unlist(copy)
        losers = [owner for owner, held in self._held.items() if not lost.keys().isdisjoint(held)]
        for owner in losers:
            held = self._held[owner]
            for index, copy in enumerate(held):
                if copy in lost:
                    held[index] = None
                    self._let_go(copy)
            self._trim(owner)
        return losers

    def gone(self) -> list[bytes]:
        """Names that copies were found by until they were given up or lost, since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is where its holders say."""
        held = Counter(copy for copies in self._held.values() for copy in copies if copy is not None)
        alive = held.keys() | self._pinned
        for group, (pool, leaving) in enumerate(zip(self._pools, self._leaving, strict=True)):
            here = [copy for copy in alive if copy.slots[group] != ABSENT]
            pool.check_integrity([copy.slots[group] for copy in here])
            num_loose = [copy.holders for copy in here].count(0)
            assert leaving == num_loose, "host blocks that leave are miscounted"
        assert all(copy.holders == held[copy] for copy in alive), "holders of a host block are miscounted"
        assert all(copies and copies[-1] is not None for copies in self._held.values()), "a hold on nothing"
        assert set(self._copies.values()) == held.keys(), "the index of host blocks is wrong"
        for copy in alive:
            if copy.written != self._all or ABSENT in copy.slots:
                here = {group for group in self._all if copy.slots[group] != ABSENT}
                assert here == copy.written or copy.pins, "a host block that no copy writes"

    def _cut(self, owner: str, start: int) -> None:
        held = self._held.get(owner, [])
        given_up = held[start:]
        del held[start:]
        for copy in given_up:
            self._let_go(copy)
        self._trim(owner)

    def _trim(self, owner: str) -> None:
        held = self._held.get(owner)
        while held and held[-1] is None:
            held.pop()
        if held is not None and not held:
            del self._held[owner]

    def _let_go(self, copy: HostCopy | None) -> None:
        if copy is None:
            return
        copy.holders -= 1
        if not copy.holders:
            self._count_leaving(copy, 1)
            self._unlist(copy)
        self._free_if_loose(copy)

    def _unlist(self, copy: HostCopy) -> None:
        if self._copies.get(copy.name) is copy:
            del self._copies[copy.name]
            self._gone.append(copy.name)
            self.num_gone += 1

    def _free_if_loose(self, copy: HostCopy) -> None:
        if not copy.holders and not copy.pins:
            self._count_leaving(copy, -1)
            for pool, slot in zip(self._pools, copy.slots, strict=True):
                if slot != ABSENT:
                    pool.release([slot], None)

    def _count_leaving(self, copy: HostCopy, change: int) -> None:
        for group, slot in enumerate(copy.slots):
            self._leaving[group] += change * (slot != ABSENT)
