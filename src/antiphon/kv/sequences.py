"""The KV of one stage: sequences, the blocks they share, and what idle sessions left behind.

KV is a cache of the conversation record. A sequence is known by its keys, the content identity of each
cached position. A new prompt reuses the longest prefix that is resident: of its own session's idle sequence
to the token, of anybody's to the block. A block that two sequences hold is full and never written again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from antiphon.core.facts import NO_INTS, Ints
from antiphon.kv.blocks import BlockPool
from antiphon.kv.prefix import Prefix, chain_on

Block = tuple[int, ...]
"""A block of every group, in the groups' order: groups hold the same positions together."""


class Sequence:
    """Cached positions [0, len(keys)) of one conversation, and blocks for them and what is computed next.

    chain     hashes of its full blocks, as far as their content is known
    promised  blocks that it was admitted for; it may hold more
    """

    __slots__ = ("blocks", "chain", "keys", "promised")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.chain: list[bytes] = []
        self.keys: Ints = NO_INTS
        self.promised = 0

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True, slots=True)
class Evicted:
    """A full block that resting sequences gave up, and what it is to them: number `index` of each."""

    sessions: tuple[str, ...]
    index: int
    block: Block
    name: bytes


class StageKv:
    """Owner of one stage's blocks. Every group has the same number of blocks of `block_size` tokens."""

    def __init__(self, groups: tuple[str, ...], num_blocks: int, block_size: int) -> None:
        self.groups = groups
        self.block_size = block_size
        self._pools = [BlockPool(num_blocks) for _ in groups]
        self._idle: OrderedDict[str, Sequence] = OrderedDict()
        self._active: list[Sequence] = []
        self._used: Counter[Block] = Counter()
        """How many active sequences hold a block; `_kept`: how many idle ones."""
        self._kept: Counter[Block] = Counter()
        self._lent: Counter[Block] = Counter()
        """How many copies under way touch it; it is not reused meanwhile, whoever gives it up."""
        self._only_lent: set[Block] = set()
        """Lent blocks that no sequence holds: free once their copies are done."""
        self._named: dict[Block, bytes] = {}
        self._resident: dict[bytes, list[Block]] = {}
        """The inverse of `_named`; some content is resident twice."""
        self._busy: dict[Block, int] = {}
        """Last step in flight that names a block which an active sequence gave up."""
        self._settled = -1
        self._matched: tuple[str, Prefix, tuple[int, list[Block]]] | None = None
        """The last look-up, until anything changes: a request that is to join is looked up repeatedly."""
        self.num_evicted_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self._pools[0].num_blocks

    @property
    def num_free(self) -> int:
        return self._pools[0].num_free

    @property
    def num_idle(self) -> int:
        """Blocks that only idle sequences hold: they can be had."""
        return self.num_spare - self.num_free - self.num_limbo

    @property
    def idle(self) -> dict[str, tuple[int, int]]:
        """(tokens, blocks) that each session left behind."""
        return {session: (len(kept.keys), kept.num_blocks) for session, kept in self._idle.items()}

    @property
    def num_limbo(self) -> int:
        """Blocks that come back by themselves once steps and copies under way are done."""
        return self._pools[0].num_limbo + len(self._only_lent)

    @property
    def num_shared(self) -> int:
        """Blocks that more than one sequence holds."""
        return sum(count > 1 for count in (self._used + self._kept).values())

    @property
    def num_spare(self) -> int:
        """Blocks that no active sequence holds: to be had now, or once the steps in flight are done."""
        return self.num_blocks - len(self._used)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def cached(self, session: str, prefix: Prefix) -> int:
        """Leading tokens of a prompt that `open` would find cached now."""
        return self._match(session, prefix)[0]

    def fits(self, session: str, prefix: Prefix, num_blocks: int, apart: int = 0) -> bool:
        """Can a prompt be opened and grow to `num_blocks` now, evicting idle sequences if need be?

        What other prompts were promised, and `apart` blocks, are left alone. Blocks in limbo do not count:
        they come back by themselves.
        """
        used = sum(block in self._used for block in self._match(session, prefix)[1])
        promised = sum(max(sequence.promised - sequence.num_blocks, 0) for sequence in self._active)
        return num_blocks - used <= self.num_free + self.num_idle - promised - apart

    def open(
        self, session: str, prefix: Prefix, num_blocks: int, after_step: int | None, until: int = 0
    ) -> tuple[Sequence, int]:
        """Start a sequence that is promised `num_blocks`; returns it and how many leading tokens are cached.

        At least the last token is left to compute, since its output is wanted. What else the session left
        behind is given up. What lies beyond the full blocks that are cached and before position `until` is
        filled from elsewhere, in free blocks, and counts as cached; those have no names until a reported step
        has read them.
        """
        cached, blocks = self._match(session, prefix)
        is_fetching = until > cached
        if is_fetching:
            blocks = blocks[: cached // self.block_size]
            cached = len(blocks) * self.block_size
        sequence = Sequence()
        sequence.blocks = blocks
        sequence.keys = prefix.keys[:cached]
        sequence.chain = list(prefix.chain[: cached // self.block_size])
        sequence.promised = num_blocks
        self._hold(self._used, blocks)
        self._active.append(sequence)
        self.drop(session, after_step)
        for block in blocks[len(sequence.chain) :]:
            self._unname(block)  # its end will be written
        if is_fetching:
            cached = until
            sequence.keys = prefix.keys[:cached]
            is_grown = self.grow(sequence, cached)
            assert is_grown, "there are free blocks for what is fetched"
        return sequence, cached

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it blocks for `num_tokens` in all. False, and nothing has changed, while too few are free."""
        count = self.blocks_for(num_tokens) - sequence.num_blocks
        if count > self.num_free:
            return False
        if count > 0:
            sequence.blocks += self._allocate(count)
        return True

    def grow_all(self, sequences: Iterable[Sequence], counts: list[int]) -> bool:
        """So many more blocks for each of them: the same ones as if they grew one after the other. False, and
        nothing has changed, unless that many are free.
        """
        total = sum(counts)
        if total > self.num_free:
            return False
        new, first = self._allocate(total), 0
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.blocks += new[first : first + count]
            first += count
        return True

    def _allocate(self, count: int) -> list[Block]:
        new: list[Block] = list(zip(*(pool.allocate(count) for pool in self._pools), strict=True))
        self._hold(self._used, new)
        return new

    def learn(self, sequence: Sequence, keys: Ints) -> None:
        """Reported steps have filled the positions of `keys`: full blocks may be shared from now on."""
        self._matched = None
        for name in chain_on(sequence.chain, keys, self.block_size):
            block = sequence.blocks[len(sequence.chain)]
            sequence.chain.append(name)
            if block not in self._named:
                self._named[block] = name
                self._resident.setdefault(name, []).append(block)
        sequence.keys = keys

    def park(self, session: str, sequence: Sequence, keys: Ints, after_step: int | None) -> None:
        """The sequence rests: keep its positions with `keys` for whoever's prompt begins so."""
        self._active.remove(sequence)
        self.learn(sequence, keys)
        del sequence.chain[len(keys) // self.block_size :]
        self.drop(session, after_step)
        keep = sequence.blocks[: self.blocks_for(len(keys))]
        self._hold(self._kept, keep)
        self._release(self._used, sequence.blocks, after_step)
        sequence.blocks = keep
        if len(keys):
            self._idle[session] = sequence

    def discard(self, sequence: Sequence, after_step: int | None) -> None:
        """The sequence ends and nothing of it is kept."""
        self._active.remove(sequence)
        self._release(self._used, sequence.blocks, after_step)

    def drop(self, session: str, after_step: int | None) -> None:
        """Forget what the session left behind."""
        sequence = self._idle.pop(session, None)
        if sequence is not None:
            self._matched = None
            self._release(self._kept, sequence.blocks, after_step)

    def resting(self, session: str) -> Sequence | None:
        """What the session left behind on the device, to be read only."""
        return self._idle.get(session)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Who left something behind, least recently parked first."""
        return tuple(self._idle)

    def is_active(self, block: Block) -> bool:
        """Does a running sequence hold it?"""
        return block in self._used

    def evict(self, session: str, count: int) -> list[Evicted]:
        """The session's sequence gives up its last blocks until `count` more are to be had.

        A block goes only where it ends every sequence that holds it. Full ones are lent to the caller, the
        last first, who takes them back once they are copied; a partial one is lost, and not told of.
        """
        evicted: list[Evicted] = []
        freed = 0
        while freed < count and (holders := self._ending_with(session)):
            sequence = self._idle[holders[0]]
            index, block = sequence.num_blocks - 1, sequence.blocks[-1]
            if index < len(sequence.chain):
                evicted.append(Evicted(holders, index, block, sequence.chain[index]))
                self.lend([block])
            for holder in holders:
                self._shorten(holder)
            freed += 1
        self.num_evicted_blocks += freed
        return evicted

    def lend(self, blocks: Iterable[Block]) -> None:
        """A copy touches these: nobody gets them before they are taken back."""
        self._matched = None
        for block in blocks:
            self._lent[block] += 1
            if block not in self._used and block not in self._kept:
                self._only_lent.add(block)

    def take_back(self, blocks: Iterable[Block]) -> None:
        """The copy is over. What nobody holds is free."""
        self._release(self._lent, blocks, None)

    def settle(self, step: int) -> None:
        self._settled = step
        for pool in self._pools:
            pool.settle(step)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is where its holders say."""
        resident = self._used.keys() | self._kept.keys() | self._lent.keys()
        for group, pool in enumerate(self._pools):
            pool.check_integrity([block[group] for block in resident])
        assert self.num_idle == len(self._kept.keys() - self._used.keys()), "idle blocks are miscounted"
        assert self._only_lent == self._lent.keys() - self._used.keys() - self._kept.keys(), (
            "lent is miscounted"
        )
        for holders, counts in ((self._active, self._used), (self._idle.values(), self._kept)):
            assert Counter(block for holder in holders for block in holder.blocks) == counts, "miscounted"
        for block, count in (self._used + self._kept).items():
            assert count == 1 or block in self._named, "a block is shared though it is not full"
        for sequence in (*self._active, *self._idle.values()):
            named = sequence.blocks[: len(sequence.chain)]
            assert [self._named[block] for block in named] == sequence.chain, "a block has the wrong name"
        found = {block: name for name, blocks in self._resident.items() for block in blocks}
        assert found == self._named, "the index of resident blocks is wrong"
        assert self._named.keys() <= resident, "a free block has a name"
        for sequence in self._idle.values():
            assert self.blocks_for(len(sequence.keys)) == sequence.num_blocks, "idle blocks without keys"

    def _match(self, session: str, prefix: Prefix) -> tuple[int, list[Block]]:
        """The longest resident prefix, as tokens and the blocks that hold them."""
        if self._matched is not None and self._matched[0] == session and self._matched[1] is prefix:
            cached, blocks = self._matched[2]
        else:
            cached, blocks = self._look_up(session, prefix)
            self._matched = session, prefix, (cached, blocks)
        return cached, list(blocks)

    def _look_up(self, session: str, prefix: Prefix) -> tuple[int, list[Block]]:
        size, most = self.block_size, len(prefix.keys) - 1
        shared: list[Block] = []
        for name in prefix.chain[: most // size]:
            blocks = self._resident.get(name)
            if blocks is None:
                break
            shared.append(blocks[0])
        own = self._idle.get(session)
        if own is None:
            return len(shared) * size, shared
        cached = min(common_prefix(own.keys, prefix.keys), most)
        if cached % size and self._must_not_change(own.blocks[cached // size]):
            cached -= cached % size
        if cached <= len(shared) * size:
            return len(shared) * size, shared
        return cached, own.blocks[: self.blocks_for(cached)]

    def _must_not_change(self, block: Block) -> bool:
        """Others hold it too, or it is being copied."""
        return self._used[block] + self._kept[block] > 1 or block in self._lent

    def _hold(self, holders: Counter[Block], blocks: Iterable[Block]) -> None:
        """One holder more."""
        self._matched = None
        for block in blocks:
            holders[block] += 1
            self._only_lent.discard(block)

    def _release(self, holders: Counter[Block], blocks: Iterable[Block], after_step: int | None) -> None:
        """One holder less. What nobody holds is free, once the steps that name it are done."""
        self._matched = None
        for block in blocks:
            if after_step is not None:
                self._busy[block] = after_step
            holders[block] -= 1
            if holders[block]:
                continue
            del holders[block]
            if block in self._used or block in self._kept:
                continue
            if block in self._lent:
                self._only_lent.add(block)
            else:
                self._only_lent.discard(block)
                self._free(block)

    def _ending_with(self, session: str) -> tuple[str, ...]:
        """Who holds the last block of the session's sequence; nobody, if it has none or it has to stay."""
        sequence = self._idle.get(session)
        if sequence is None or sequence.blocks[-1] in self._used:
            return ()
        last, size = sequence.blocks[-1], sequence.num_blocks
        if self._kept[last] == 1:
            return (session,)
        ends = [
            name for name, kept in self._idle.items() if kept.num_blocks == size and kept.blocks[-1] == last
        ]
        return tuple(ends) if len(ends) == self._kept[last] else ()

    def _shorten(self, session: str) -> None:
        """A resting sequence loses its last block."""
        sequence = self._idle[session]
        last = sequence.blocks.pop()
        sequence.keys = sequence.keys[: sequence.num_blocks * self.block_size]
        del sequence.chain[sequence.num_blocks :]
        if not sequence.blocks:
            del self._idle[session]
        self._release(self._kept, [last], None)

    def _free(self, block: Block) -> None:
        self._unname(block)
        busy = self._busy.pop(block, None)
        after_step = busy if busy is not None and busy > self._settled else None
        for pool, one in zip(self._pools, block, strict=True):
            pool.release([one], after_step)

    def _unname(self, block: Block) -> None:
        name = self._named.pop(block, None)
        if name is not None:
            self._resident[name].remove(block)
            if not self._resident[name]:
                del self._resident[name]


def common_prefix(left: Ints, right: Ints) -> int:
    """Length of the longest common prefix."""
    size = min(len(left), len(right))
    differs = np.nonzero(left[:size] != right[:size])[0]
    return int(differs[0]) if len(differs) else size
