"""The KV of one stage on the device: sequences, the blocks they share, and what idle sessions left behind.

KV is a cache of the conversation record. A sequence is known by its keys, the content identity of each
cached position. A new prompt reuses the longest prefix that is resident: of its own session's idle sequence
to the token, of any other to the block. A block that two sequences hold is full and never written again.

A block is a number here, and a slot in the pool of each KV group (`slots`): groups hold the same positions
together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from antiphon.core.facts import NO_INTS, Ints
from antiphon.kv.blocks import BlockPool
from antiphon.kv.prefix import Prefix, chain_on


class Sequence:
    """Cached positions [0, len(keys)) of one conversation, and blocks for them and what is computed next.

    chain     names of its full blocks, as far as their content is known
    promised  blocks that it was admitted for; it may hold more
    """

    __slots__ = ("blocks", "chain", "keys", "promised")

    def __init__(self) -> None:
        self.blocks: list[int] = []
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
    block: int
    name: bytes


class StageKv:
    """Owner of one stage's blocks. Every group has the same number of slots of `block_size` tokens.

    A block is used by running sequences, kept by idle ones, and lent to copies under way; it is free once
    none of them holds it, and the steps that name it are done.
    """

    def __init__(self, groups: tuple[str, ...], num_blocks: int, block_size: int) -> None:
        self.groups = groups
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_evicted_blocks = 0
        self._slots = np.zeros((len(groups), num_blocks), np.int64)
        self._pools = [BlockPool(num_blocks) for _ in groups]
        self._unused = list(range(num_blocks))[::-1]
        """Numbers of no block; a stack."""
        self._used = [0] * num_blocks
        self._kept = [0] * num_blocks
        self._lent = [0] * num_blocks
        self._num_used = self._num_only_lent = 0
        """Blocks that running sequences hold, and those that only copies hold."""
        self._idle: OrderedDict[str, Sequence] = OrderedDict()
        self._active: dict[Sequence, None] = {}
        self._name: list[bytes | None] = [None] * num_blocks
        self._resident: dict[bytes, list[int]] = {}
        """Blocks by name; some content is resident twice."""
        self._sharers: dict[int, list[str]] = {}
        """Idle sequences of each block that more than one of them keeps, least recently parked first."""
        self._keeper = [""] * num_blocks
        """The idle sequence of each block that one keeps."""
        self._busy: dict[int, int] = {}
        """Last step in flight that names a block which an active sequence gave up."""
        self._settled = -1
        self._matched: tuple[str, Prefix, tuple[int, list[int]]] | None = None
        """The last look-up, until anything changes: a request that is to join is looked up repeatedly."""

    # -- what there is -------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self._pools[0].num_free

    @property
    def num_idle(self) -> int:
        """Blocks that only idle sequences hold: they can be had."""
        return self.num_spare - self.num_free - self.num_pending_free

    @property
    def num_pending_free(self) -> int:
        """Blocks that come back by themselves once steps and copies under way are done."""
        return self._pools[0].num_pending_free + self._num_only_lent

    @property
    def num_spare(self) -> int:
        """Blocks that no active sequence holds: to be had now, or once the steps in flight are done."""
        return self.num_blocks - self._num_used

    @property
    def num_shared(self) -> int:
        """Blocks that more than one sequence holds."""
        return sum(used + kept > 1 for used, kept in zip(self._used, self._kept, strict=True))

    @property
    def idle(self) -> dict[str, tuple[int, int]]:
        """(tokens, blocks) that each session left behind."""
        return {session: (len(kept.keys), kept.num_blocks) for session, kept in self._idle.items()}

    @property
    def sessions(self) -> tuple[str, ...]:
        """Sessions that left something behind, least recently parked first."""
        return tuple(self._idle)

    def resting(self, session: str) -> Sequence | None:
        """What the session left behind on the device, to be read only."""
        return self._idle.get(session)

    def is_active(self, block: int) -> bool:
        """Does a running sequence hold it?"""
        return self._used[block] > 0

    def slots(self, blocks: Iterable[int]) -> Ints:
        """int64 [groups, n]: where the blocks are in each group's pool."""
        return self._slots[:, list(blocks)]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def cached(self, session: str, prefix: Prefix) -> int:
        """Leading tokens of a prompt that `open` would find cached now."""
        return self._match(session, prefix)[0]

    def fits(self, session: str, prefix: Prefix, num_blocks: int, apart: int = 0) -> bool:
        """Can a prompt be opened and grow to `num_blocks` now, evicting idle sequences if need be?

        What other prompts were promised, and `apart` blocks, are left alone. Blocks that are pending free do
        not count: they come back by themselves.
        """
        used = sum(self._used[block] > 0 for block in self._match(session, prefix)[1])
        promised = sum(max(sequence.promised - sequence.num_blocks, 0) for sequence in self._active)
        return num_blocks - used <= self.num_free + self.num_idle - promised - apart

    # -- running sequences ---------------------------------------------------------------------------

    def open(
        self, session: str, prefix: Prefix, num_blocks: int, after_step: int | None, until: int = 0
    ) -> tuple[Sequence, int]:
        """Start a sequence that is promised `num_blocks`; returns it and how many leading tokens are cached.

        At least the last token is left to compute, since its output is wanted. What else the session left
        behind is given up. [cached, until) is filled by a pending copy: allocated, counted as cached, not
        shareable until a step that read it is confirmed.
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
        self._use(blocks)
        self._active[sequence] = None
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

    def learn(self, sequence: Sequence, keys: Ints) -> None:
        """Reported steps have filled the positions of `keys`: full blocks may be shared from now on."""
        self._matched = None
        for name in chain_on(sequence.chain, keys, self.block_size):
            block = sequence.blocks[len(sequence.chain)]
            sequence.chain.append(name)
            if self._name[block] is None:
                self._name[block] = name
                self._resident.setdefault(name, []).append(block)
        sequence.keys = keys

    def park(self, session: str, sequence: Sequence, keys: Ints, after_step: int | None) -> None:
        """The sequence rests: keep its positions with `keys` for a prompt that begins so."""
        del self._active[sequence]
        self.learn(sequence, keys)
        del sequence.chain[len(keys) // self.block_size :]
        self.drop(session, after_step)
        keep = sequence.blocks[: self.blocks_for(len(keys))]
        self._keep(session, keep)
        self._unuse(sequence.blocks, after_step)
        sequence.blocks = keep
        if len(keys):
            self._idle[session] = sequence

    def discard(self, sequence: Sequence, after_step: int | None) -> None:
        """The sequence ends and nothing of it is kept."""
        del self._active[sequence]
        self._unuse(sequence.blocks, after_step)

    # -- idle ones -----------------------------------------------------------------------------------

    def drop(self, session: str, after_step: int | None) -> None:
        """Forget what the session left behind."""
        sequence = self._idle.pop(session, None)
        if sequence is not None:
            self._unkeep(session, sequence.blocks, after_step)

    def evict(self, session: str, count: int) -> list[Evicted]:
        """The session's sequence gives up its last blocks until `count` more are to be had.

        A block goes only where it ends every sequence that holds it. Full ones are lent to the caller, the
        last first, which takes them back once they are copied; a partial one is lost, and not told of.
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

    def lend(self, blocks: Iterable[int]) -> None:
        """A copy touches these: they are not handed out before they are taken back."""
        self._matched = None
        for block in blocks:
            if not (self._lent[block] or self._used[block] or self._kept[block]):
                self._num_only_lent += 1
            self._lent[block] += 1

    def take_back(self, blocks: Iterable[int]) -> None:
        """The copy is over. A block that no sequence holds is free."""
        self._matched = None
        for block in blocks:
            self._lent[block] -= 1
            if not (self._lent[block] or self._used[block] or self._kept[block]):
                self._num_only_lent -= 1
                self._free(block)

    def settle(self, step: int) -> None:
        """Every step up to `step` is done."""
        self._settled = step
        for pool in self._pools:
            pool.settle(step)

    # -- holders -------------------------------------------------------------------------------------

    def _allocate(self, count: int) -> list[int]:
        """New blocks, used once."""
        self._matched = None
        first = len(self._unused) - count
        new = self._unused[first:][::-1]
        del self._unused[first:]
        for group, pool in enumerate(self._pools):
            self._slots[group, new] = pool.allocate(count)
        for block in new:
            self._used[block] = 1
        self._num_used += count
        return new

    def _use(self, blocks: list[int]) -> None:
        """One running holder more."""
        self._matched = None
        for block in blocks:
            if not self._used[block]:
                self._num_used += 1
                if not self._kept[block]:
                    self._num_only_lent -= 1
            self._used[block] += 1

    def _unuse(self, blocks: list[int], after_step: int | None) -> None:
        """One running holder less."""
        self._matched = None
        for block in blocks:
            if after_step is not None:
                self._busy[block] = after_step
            self._used[block] -= 1
            if not self._used[block]:
                self._num_used -= 1
                self._let_go(block)

    def _keep(self, session: str, blocks: list[int]) -> None:
        """One idle holder more, of blocks that running sequences hold."""
        self._matched = None
        for block in blocks:
            self._kept[block] += 1
            if self._kept[block] == 1:
                self._keeper[block] = session
            else:
                self._sharers.setdefault(block, [self._keeper[block]]).append(session)

    def _unkeep(self, session: str, blocks: list[int], after_step: int | None) -> None:
        """One idle holder less."""
        self._matched = None
        for block in blocks:
            if after_step is not None:
                self._busy[block] = after_step
            self._kept[block] -= 1
            if not self._kept[block]:
                self._let_go(block)
                continue
            sharers = self._sharers[block]
            sharers.remove(session)
            if len(sharers) == 1:
                self._keeper[block] = sharers[0]
                del self._sharers[block]

    def _let_go(self, block: int) -> None:
        """A holder is gone. A block that nothing holds is free, once the steps that name it are done."""
        if self._used[block] or self._kept[block]:
            return
        if self._lent[block]:
            self._num_only_lent += 1
        else:
            self._free(block)

    def _free(self, block: int) -> None:
        self._unname(block)
        busy = self._busy.pop(block, None)
        after_step = busy if busy is not None and busy > self._settled else None
        for group, pool in enumerate(self._pools):
            pool.release([int(self._slots[group, block])], after_step)
        self._unused.append(block)

    def _unname(self, block: int) -> None:
        name = self._name[block]
        if name is not None:
            self._name[block] = None
            twins = self._resident[name]
            twins.remove(block)
            if not twins:
                del self._resident[name]

    # -- looking up ----------------------------------------------------------------------------------

    def _match(self, session: str, prefix: Prefix) -> tuple[int, list[int]]:
        """The longest resident prefix, as tokens and the blocks that hold them."""
        if self._matched is not None and self._matched[0] == session and self._matched[1] is prefix:
            cached, blocks = self._matched[2]
        else:
            cached, blocks = self._look_up(session, prefix)
            self._matched = session, prefix, (cached, blocks)
        return cached, list(blocks)

    def _look_up(self, session: str, prefix: Prefix) -> tuple[int, list[int]]:
        size, most = self.block_size, len(prefix.keys) - 1
        shared: list[int] = []
        for name in prefix.chain[: most // size]:
            twins = self._resident.get(name)
            if twins is None:
                break
            shared.append(twins[0])
        own = self._idle.get(session)
        if own is None:
            return len(shared) * size, shared
        cached = min(common_prefix(own.keys, prefix.keys), most)
        if cached % size and self._must_not_change(own.blocks[cached // size]):
            cached -= cached % size
        if cached <= len(shared) * size:
            return len(shared) * size, shared
        return cached, own.blocks[: self.blocks_for(cached)]

    def _must_not_change(self, block: int) -> bool:
        """Others hold it too, or it is being copied."""
        return self._used[block] + self._kept[block] > 1 or self._lent[block] > 0

    def _ending_with(self, session: str) -> tuple[str, ...]:
        """All sequences that hold the last block of the session's; empty if it has none or it has to stay."""
        sequence = self._idle.get(session)
        if sequence is None or self._used[sequence.blocks[-1]]:
            return ()
        last, size = sequence.blocks[-1], sequence.num_blocks
        if self._kept[last] == 1:
            return (session,)
        holders = self._sharers[last]
        return tuple(holders) if all(self._idle[one].num_blocks == size for one in holders) else ()

    def _shorten(self, session: str) -> None:
        """A resting sequence loses its last block."""
        sequence = self._idle[session]
        last = sequence.blocks.pop()
        sequence.keys = sequence.keys[: sequence.num_blocks * self.block_size]
        del sequence.chain[sequence.num_blocks :]
        if not sequence.blocks:
            del self._idle[session]
        self._unkeep(session, [last], None)

    # -- integrity -----------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is where its holders say."""
        counts = zip(self._used, self._kept, self._lent, strict=True)
        resident = [block for block, held in enumerate(counts) if any(held)]
        for group, pool in enumerate(self._pools):
            pool.check_integrity(self._slots[group, resident].tolist())
        assert sorted([*self._unused, *resident]) == list(range(self.num_blocks)), (
            "a block is lost or doubled"
        )
        self._check_holders(resident)
        self._check_names(set(resident))
        for sequence in self._idle.values():
            assert self.blocks_for(len(sequence.keys)) == sequence.num_blocks, "idle blocks without keys"

    def _check_holders(self, resident: list[int]) -> None:
        for holders, counts in ((self._active, self._used), (self._idle.values(), self._kept)):
            found = Counter(block for holder in holders for block in holder.blocks)
            assert found == +Counter(dict(enumerate(counts))), "holders of a block are miscounted"
        only_lent = [block for block in resident if not (self._used[block] or self._kept[block])]
        assert self._num_only_lent == len(only_lent), "lent blocks are miscounted"
        assert self._num_used == sum(count > 0 for count in self._used), "used blocks are miscounted"
        keepers: dict[int, list[str]] = {}
        for session, sequence in self._idle.items():
            for block in sequence.blocks:
                keepers.setdefault(block, []).append(session)
        for block, sessions in keepers.items():
            known = self._sharers[block] if len(sessions) > 1 else [self._keeper[block]]
            assert known == sessions, "a block has the wrong keepers"
        assert self._sharers.keys() <= keepers.keys(), "a block is shared by nobody"

    def _check_names(self, resident: set[int]) -> None:
        for block, (used, kept) in enumerate(zip(self._used, self._kept, strict=True)):
            assert used + kept <= 1 or self._name[block], "a block is shared though it is not full"
        for sequence in (*self._active, *self._idle.values()):
            named = sequence.blocks[: len(sequence.chain)]
            assert [self._name[block] for block in named] == sequence.chain, "a block has the wrong name"
        named = {block: name for block, name in enumerate(self._name) if name is not None}
        found = {block: name for name, blocks in self._resident.items() for block in blocks}
        assert found == named, "the index of resident blocks is wrong"
        assert named.keys() <= resident, "a free block has a name"


def common_prefix(left: Ints, right: Ints) -> int:
    """Length of the longest common prefix."""
    size = min(len(left), len(right))
    differs = np.nonzero(left[:size] != right[:size])[0]
    return int(differs[0]) if len(differs) else size
