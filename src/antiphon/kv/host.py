"""The host tier of one stage's KV: copies of full blocks, found by what they hold.

A copy is named like the block it was made of (kv.prefix): any prompt that begins with the same keys finds it,
and a block whose name is known here need not be copied again. Sessions hold copies; what nobody holds and no
copy under way touches is free.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antiphon.kv.blocks import BlockPool


@dataclass(slots=True, eq=False)
class HostCopy:
    """A full block's content on the host.

    block    its slot in the pool of each KV group
    holders  sessions whose past it is
    pins     copies under way that write or read it
    is_ready  written, and to be read
    """

    name: bytes
    block: tuple[int, ...]
    holders: int = 0
    pins: int = 0
    is_ready: bool = False


class HostTier:
    """Owner of one stage's host blocks. Every group has the same number."""

    def __init__(self, num_groups: int, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._pools = [BlockPool(num_blocks) for _ in range(num_groups)]
        self._copies: dict[bytes, HostCopy] = {}
        self._held: OrderedDict[str, list[HostCopy | None]] = OrderedDict()
        """What each session holds, by its place in the sequence; least recently used first."""
        self._pinned: set[HostCopy] = set()

    @property
    def num_free(self) -> int:
        return self._pools[0].num_free if self._pools else 0

    @property
    def num_used(self) -> int:
        """Blocks that hold a copy, or soon will."""
        return self.num_blocks - self.num_free

    @property
    def num_leaving(self) -> int:
        """Blocks that are free once copies under way are done."""
        return sum(not copy.holders for copy in self._pinned)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Who holds something, least recently used first."""
        return tuple(self._held)

    def held(self, session: str) -> list[int]:
        """Places in the session's sequence whose blocks have a copy here."""
        return [index for index, copy in enumerate(self._held.get(session, ())) if copy is not None]

    def find(self, name: bytes) -> HostCopy | None:
        """A copy that is ready, or is being written."""
        return self._copies.get(name)

    def run_of(self, names: Sequence[bytes]) -> list[HostCopy]:
        """The longest run of copies that are ready, from the first name on."""
        run: list[HostCopy] = []
        for name in names:
            copy = self._copies.get(name)
            if copy is None or not copy.is_ready:
                break
            run.append(copy)
        return run

    def begin(self, name: bytes) -> HostCopy:
        """A free block for content that has no copy yet: pinned, and ready once it has `landed`."""
        assert name not in self._copies, "there is a copy already"
        block = tuple(pool.allocate(1)[0] for pool in self._pools)
        copy = self._copies[name] = HostCopy(name, block)
        self.pin([copy])
        return copy

    def hold(self, session: str, index: int, copy: HostCopy) -> None:
        """The copy is the session's block number `index`."""
        held = self._held.setdefault(session, [])
        held += [None] * (index + 1 - len(held))
        before = held[index]
        if before is copy:
            return
        copy.holders += 1
        held[index] = copy
        self._let_go(before)

    def touch(self, session: str) -> None:
        """The session's past was used."""
        if session in self._held:
            self._held.move_to_end(session)

    def rest(self, session: str, chain: Sequence[bytes]) -> None:
        """The session's past is `chain`: what it holds of another one is given up."""
        held = self._held.get(session, [])
        pairs = enumerate(zip(held, chain, strict=False))
        other = next((at for at, (copy, name) in pairs if copy is not None and copy.name != name), None)
        if other is not None:
            self._cut(session, other)

    def forget(self, session: str) -> None:
        """The session holds nothing any more."""
        self._cut(session, 0)

    def evict(self, session: str, count: int) -> int:
        """Give up the session's last copies until `count` blocks are free, or will be; returns how many."""
        freed = 0
        while freed < count and (held := self._held.get(session)):
            last = held[-1]
            freed += last is not None and last.holders == 1
            self._cut(session, len(held) - 1)
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

    def lose(self, copies: Iterable[HostCopy]) -> None:
        """These hold nothing of use: nobody finds or holds them from now on."""
        lost = set(copies)
        for copy in lost:
            if self._copies.get(copy.name) is copy:
                del self._copies[copy.name]
        for session, held in list(self._held.items()):
            for index, copy in enumerate(held):
                if copy in lost:
                    held[index] = None
                    self._let_go(copy)
            self._trim(session)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is where its holders say."""
        held = Counter(copy for copies in self._held.values() for copy in copies if copy is not None)
        alive = held.keys() | self._pinned
        for group, pool in enumerate(self._pools):
            pool.check_integrity([copy.block[group] for copy in alive])
        assert all(copy.holders == held[copy] for copy in alive), "holders of a host block are miscounted"
        assert all(copies and copies[-1] is not None for copies in self._held.values()), "a hold on nothing"
        assert set(self._copies.values()) == held.keys(), "the index of host blocks is wrong"
        assert all(copy.is_ready or copy.pins for copy in alive), "a host block that nobody writes"

    def _cut(self, session: str, start: int) -> None:
        held = self._held.get(session, [])
        given_up = held[start:]
        del held[start:]
        for copy in given_up:
            self._let_go(copy)
        self._trim(session)

    def _trim(self, session: str) -> None:
        held = self._held.get(session)
        while held and held[-1] is None:
            held.pop()
        if held is not None and not held:
            del self._held[session]

    def _let_go(self, copy: HostCopy | None) -> None:
        if copy is None:
            return
        copy.holders -= 1
        if not copy.holders and self._copies.get(copy.name) is copy:
            del self._copies[copy.name]
        self._free_if_loose(copy)

    def _free_if_loose(self, copy: HostCopy) -> None:
        if not copy.holders and not copy.pins:
            for pool, one in zip(self._pools, copy.block, strict=True):
                pool.release([one], None)
