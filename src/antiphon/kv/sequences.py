"""The KV of one stage on the device: sequences, the blocks they share, and what rests there.

KV is a cache of the conversation record. A sequence is known by its keys, the content identity of each
cached position. A new prompt reuses the longest prefix that is resident: of its own owner's resting sequence
to the token, of any other to the block. A block that two sequences hold is full and never written again.

A block is a number here, and a slot in the pool of each KV group (`slots`): groups hold the same positions
together, unless a resting sequence gave up some of them. What it gave up it still knows by name, and may
be brought back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, KeysView, Set
from dataclasses import dataclass
from operator import add
from typing import NamedTuple

import numpy as np

from antiphon.core.facts import NO_INTS, Ints
from antiphon.kv.blocks import ABSENT, BlockPool
from antiphon.kv.prefix import Prefix, chain_on


class Sequence:
    """Positions of one conversation, and the blocks of the first of them.

    keys      int64 [n]: of the positions that were computed. A running sequence holds all of them; of a
              resting one they outlive its blocks, as far as whole blocks go
    chain     names of its full blocks, as far as their content is known
    blocks    held on the device, for the first positions and, of a running one, for what is computed next
    promised  blocks that it was admitted for; it may hold more
    owner     the name under which it rests; "" while it does not

    Of the blocks of a resting one

        [0, num_ready)           are there, in every group
        [num_ready, num_coming)  are being filled
        [num_coming, len)        lack a group
    """

    __slots__ = ("blocks", "chain", "keys", "num_coming", "num_ready", "owner", "promised")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.chain: list[bytes] = []
        self.keys: Ints = NO_INTS
        self.num_ready = self.num_coming = 0
        self.promised = 0
        self.owner = ""

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def filled(self) -> list[bytes]:
        """Names of its full blocks that are there, in every group: they may be copied."""
        return self.chain[: self.num_ready] if self.owner else self.chain


@dataclass(frozen=True, slots=True)
class Evicted:
    """Full blocks that resting sequences gave up, side by side, each lent until it is copied.

    owners  every sequence that held them
    start   of the first one in each of the sequences
    groups  indices of the KV groups that it gave up; None: all
    """

    owners: tuple[str, ...]
    start: int
    blocks: list[int]
    names: list[bytes]
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """Blocks of a resting sequence that are being filled: [start, start + len(blocks)) of it.

    names   what they hold once they are
    groups  indices of the KV groups that are filled; None: all
    """

    sequence: Sequence
    start: int
    blocks: list[int]
    names: list[bytes]
    groups: tuple[int, ...] | None


class Match(NamedTuple):
    """The longest resident prefix of a prompt: tokens, the blocks that hold them, and how many of those are
    filled already."""

    cached: int
    blocks: list[int]
    num_ready: int


class StageKv:
    """Owner of one stage's blocks. Every group has the same number of slots of `block_size` tokens.

    A block is used by running sequences, kept by resting ones, and lent to copies under way; it is free once
    none of them holds it, and the steps that name it are done. Resting sequences go by their owner's name.
    """

    def __init__(self, groups: tuple[str, ...], num_blocks: int, block_size: int) -> None:
        self.groups = groups
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_evicted_blocks = 0
        size = num_blocks * len(groups)  # as many numbers as slots: a block may hold one group's only
        self._slots = np.full((len(groups), size), ABSENT, np.int64)
        """By group, of blocks that something holds."""
        self._pools = [BlockPool(num_blocks) for _ in groups]
        self._unused = list(range(size))[::-1]
        """Numbers of no block; a stack."""
        self._used = [0] * size
        self._kept = [0] * size
        self._lent: dict[int, int] = {}
        """Copies under way that touch a block, where there are any."""
        self._num_used = 0
        """Blocks that running sequences hold."""
        self._only_lent = [0] * len(groups)
        """Slots of each group in blocks that only copies hold."""
        self._partial: set[int] = set()
        """Blocks that lack a group."""
        self._resting: OrderedDict[str, Sequence] = OrderedDict()
        """Resting sequences with blocks here, by owner; `_away`: those that gave up all of theirs."""
        self._away: dict[str, Sequence] = {}
        self._active: dict[Sequence, None] = {}
        self._name: list[bytes | None] = [None] * size
        self._resident: dict[bytes, int] = {}
        """Blocks by name: the first of each name; `_twins`: the others, where content is resident twice."""
        self._twins: dict[bytes, list[int]] = {}
        self._sharers: dict[int, list[str]] = {}
        """Owners of each block that more than one resting sequence keeps, least recently parked first."""
        self._keeper = [""] * size
        """The owner of each block that one keeps."""
        self._busy: dict[int, int] = {}
        """Last step in flight that names a block which a running sequence gave up."""
        self._settled = -1
        self._matched: tuple[str, Prefix, bool, Match] | None = None
        """The last look-up, until anything changes: a request that is to join is looked up repeatedly."""

    # -- what there is -------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, in every group."""
        return min(pool.num_free for pool in self._pools)

    @property
    def num_idle(self) -> int:
        """Blocks that only resting sequences hold: they can be had."""
        return self.num_spare - self.num_free - self.num_pending_free

    @property
    def num_pending_free(self) -> int:
        """Blocks that come back by themselves once steps and copies under way are done."""
        pending = zip(self._pools, self._only_lent, strict=True)
        return max(pool.num_pending_free + only_lent for pool, only_lent in pending)

    @property
    def num_free_soon(self) -> int:
        """Blocks that are free in every group once steps and copies under way are done."""
        pools, only_lent = self._pools, self._only_lent
        return min([one.num_free + one.num_pending_free + only_lent[at] for at, one in enumerate(pools)])

    @property
    def num_spare(self) -> int:
        """Blocks that no running sequence holds: to be had now, or once the steps in flight are done."""
        return self.num_blocks - self._num_used

    @property
    def num_promised(self) -> int:
        """Blocks that running sequences were admitted for and do not hold yet."""
        return sum(max(sequence.promised - sequence.num_blocks, 0) for sequence in self._active)

    @property
    def num_shared(self) -> int:
        """Blocks that more than one sequence holds."""
        return sum(used + kept > 1 for used, kept in zip(self._used, self._kept, strict=True))

    @property
    def owners(self) -> KeysView[str]:
        """Of resting sequences with blocks here, least recently parked or brought first."""
        return self._resting.keys()

    @property
    def away(self) -> KeysView[str]:
        """Owners of resting sequences without a block here."""
        return self._away.keys()

    def resting(self, owner: str) -> Sequence | None:
        """What rests under this name, to be read only."""
        return self._resting.get(owner) or self._away.get(owner)

    def resident_tokens(self, sequence: Sequence) -> int:
        """Leading tokens of a resting sequence that are on the device, in every group."""
        return min(len(sequence.keys), sequence.num_ready * self.block_size)

    def owners_of(self, name: bytes) -> list[str]:
        """Of the resting sequences that keep a block of this name."""
        first = self._resident.get(name)
        here = () if first is None else (first, *self._twins.get(name, ()))
        kept = [block for block in here if self._kept[block]]
        return [owner for block in kept for owner in self._sharers.get(block, (self._keeper[block],))]

    def is_active(self, block: int) -> bool:
        """Does a running sequence hold it?"""
        return self._used[block] > 0

    def lacks(self, block: int) -> tuple[int, ...]:
        """Indices of the groups that do not hold it."""
        if block not in self._partial:
            return ()
        return tuple(np.flatnonzero(self._slots[:, block] == ABSENT).tolist())

    def slots(self, blocks: Iterable[int]) -> Ints:
        """int64 [groups, n]: where the blocks are in each group's pool, ABSENT where they are not."""
        return self._slots[:, list(blocks)]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def cached(self, owner: str, prefix: Prefix) -> int:
        """Leading tokens of a prompt that `open` would find cached now."""
        return self._match(owner, prefix, False).cached

    def find(self, owner: str, prefix: Prefix) -> tuple[int, int]:
        """The same, and how many of the blocks that hold them running sequences hold too."""
        match = self._match(owner, prefix, False)
        return match.cached, sum(self._used[block] > 0 for block in match.blocks)

    def held_tokens(self, owner: str) -> int:
        """Leading tokens that rest under this name on the device."""
        sequence = self._resting.get(owner)
        return 0 if sequence is None else self.resident_tokens(sequence)

    def fits(
        self, owner: str, prefix: Prefix, num_blocks: int, apart: int = 0, *, with_coming: bool = False
    ) -> bool:
        """Can a prompt be opened and grow to `num_blocks` now, evicting resting sequences if need be?

        What other prompts were promised, and `apart` blocks, are left alone. Blocks that are pending free do
        not count: they come back by themselves.
        """
        blocks = self._match(owner, prefix, with_coming).blocks
        used = sum(self._used[block] > 0 for block in blocks)
        return num_blocks - used <= self.num_free + self.num_idle - self.num_promised - apart

    # -- running sequences ---------------------------------------------------------------------------

    def open(
        self,
        owner: str,
        prefix: Prefix,
        num_blocks: int,
        after_step: int | None,
        *,
        until: int = 0,
        with_coming: bool = False,
    ) -> tuple[Sequence, int]:
        """Start a sequence that is promised `num_blocks`; returns it and how many leading tokens are cached.

        At least the last token is left to compute, since its output is wanted. What else rested under the
        owner's name is given up. `with_coming`: what is being filled counts as cached. [cached, until) is to
        be filled by a copy as well: allocated, counted as cached. Neither is shareable until a step that read
        it is confirmed: the first `num_ready` blocks are.
        """
        cached, blocks, num_ready = self._match(owner, prefix, with_coming)
        is_fetching = until > cached
        if is_fetching:
            blocks = blocks[: cached // self.block_size]
            cached = len(blocks) * self.block_size
        sequence = Sequence()
        sequence.blocks = blocks
        sequence.keys = prefix.keys[:cached]
        sequence.chain = list(prefix.chain[: min(cached // self.block_size, num_ready)])
        sequence.promised = num_blocks
        sequence.num_ready = num_ready
        self._use(blocks)
        self._active[sequence] = None
        self.drop(owner, after_step)
        self._unname(blocks[len(sequence.chain) :])  # the end of the last one will be written
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
            sequence.blocks += self._allocate_used(count)
        return True

    def grow_all(self, sequences: Iterable[Sequence], counts: list[int]) -> bool:
        """So many more blocks for each of them: the same ones as if they grew one after the other. False, and
        nothing has changed, unless that many are free.
        """
        total = sum(counts)
        if total > self.num_free:
            return False
        new, first = self._allocate_used(total), 0
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.blocks += new[first : first + count]
            first += count
        return True

    def learn(self, sequence: Sequence, keys: Ints) -> None:
        """Reported steps have filled the positions of `keys`: full blocks may be shared from now on."""
        new = chain_on(sequence.chain, keys, self.block_size)
        first = len(sequence.chain)
        self._call(sequence.blocks[first : first + len(new)], new)
        sequence.chain += new
        sequence.keys = keys

    def park(self, owner: str, sequence: Sequence, keys: Ints, after_step: int | None) -> None:
        """The sequence rests: keep its positions with `keys` for a prompt that begins so."""
        del self._active[sequence]
        self.learn(sequence, keys)
        del sequence.chain[len(keys) // self.block_size :]
        self.drop(owner, after_step)
        keep = sequence.blocks[: self.blocks_for(len(keys))]
        self._keep(owner, keep)
        self._unuse(sequence.blocks, after_step)
        sequence.blocks = keep
        sequence.num_ready = sequence.num_coming = len(keep)
        if keep:
            sequence.owner = owner
            self._resting[owner] = sequence

    def discard(self, sequence: Sequence, after_step: int | None) -> None:
        """The sequence ends and nothing of it is kept."""
        del self._active[sequence]
        self._unuse(sequence.blocks, after_step)

    # -- resting ones --------------------------------------------------------------------------------

    def drop(self, owner: str, after_step: int | None) -> None:
        """Forget what rests under this name."""
        sequence = self._resting.pop(owner, None) or self._away.pop(owner, None)
        if sequence is not None:
            self._unkeep(owner, sequence.blocks, after_step)
            sequence.owner = ""

    def rename(self, owner: str, name: str, keys: Ints) -> None:
        """What rests under `owner` rests under `name` from now on, cut to `keys`; what rested there before is
        forgotten."""
        sequence = self.resting(owner)
        if sequence is None:
            return
        num_blocks, num_named = self.blocks_for(len(keys)), len(keys) // self.block_size
        self._rest(name, keys, sequence.chain[:num_named], sequence.blocks[:num_blocks], sequence.num_ready)
        self.drop(owner, None)

    def adopt(self, owner: str, prefix: Prefix) -> None:
        """From now on the beginning of this prompt rests under the owner's name: the whole blocks of it that
        are resident, and the names of all that may be brought. What else rested there is forgotten."""
        cached, blocks, num_ready = self._match(owner, prefix, True)
        whole, keys = cached // self.block_size, prefix.keys[: len(prefix.keys) - 1]
        chain = list(prefix.chain[: len(keys) // self.block_size])
        own = self.resting(owner)
        same = 0 if own is None else _common(own.chain, chain)
        if own is None or min(same, own.num_blocks) < whole:
            self._rest(owner, keys, chain, blocks[:whole], num_ready)
            return
        self._matched = None
        self._unkeep(owner, own.blocks[same:], None)
        own.keys, own.chain = keys, chain
        self._shorten(own, min(same, own.num_blocks))

    def _rest(self, owner: str, keys: Ints, chain: list[bytes], blocks: list[int], num_ready: int) -> None:
        """Kept from now on, of which `num_ready` are there."""
        sequence = Sequence()
        sequence.keys, sequence.chain = keys, chain
        sequence.num_ready = sequence.num_coming = min(num_ready, len(blocks))
        sequence.blocks = blocks[: sequence.num_ready]
        self._keep(owner, sequence.blocks)
        self.drop(owner, None)
        sequence.owner = owner
        if sequence.blocks:
            self._resting[owner] = sequence
        else:
            self._away[owner] = sequence

    def touch(self, owner: str) -> None:
        """What rests there was used."""
        if owner in self._resting:
            self._resting.move_to_end(owner)

    def evict(
        self,
        owner: str,
        count: int,
        groups: tuple[int, ...] | None = None,
        keep: Set[str] = frozenset(),
    ) -> list[Evicted]:
        """The owner's sequence gives up its last blocks until `count` more are to be had, or of these groups
        only. Returns what is full, the last first, lent to the caller, which takes it back once it is copied;
        a partial block and what was being filled are lost, and not told of.

        A block goes only where it ends every sequence that holds it, none of which is of `keep`.
        """
        sequence = self._resting.get(owner)
        if sequence is None:
            return []
        if groups is not None and len(set(groups)) < len(self.groups):
            return self._evict_groups(sequence, count, groups)
        evicted: list[Evicted] = []
        while count > 0 and sequence.blocks:
            before, last = sequence.num_blocks, sequence.blocks[-1]
            if last in self._sharers:
                run = self._evict_shared(sequence, keep)
            elif last in self._partial:
                run = self._evict_partial(sequence)
            else:
                run = self._evict_own(sequence, count)
            if before == sequence.num_blocks:
                if not self._let_go_end(sequence, keep):
                    break
                continue
            count -= before - sequence.num_blocks
            if run.blocks:
                evicted.append(run)
        return evicted

    def _evict_own(self, sequence: Sequence, count: int) -> Evicted:
        """Its last blocks that are whole, as long as no other sequence holds them."""
        owner, blocks, first = sequence.owner, sequence.blocks, max(len(sequence.blocks) - count, 0)
        used, others, given_up = self._used, self._sharers, blocks[first:]
        if any(map(used.__getitem__, given_up)) or (others and not others.keys().isdisjoint(given_up)):
            least, first = first, len(blocks)
            while first > least and not used[blocks[first - 1]] and blocks[first - 1] not in others:
                first -= 1
            given_up = blocks[first:]
        whole = max(min(sequence.num_ready, len(sequence.chain)), first)
        evicted = Evicted((owner,), first, blocks[first:whole], sequence.chain[first:whole])
        self.num_evicted_blocks += len(given_up)
        self.lend(evicted.blocks)
        for block in given_up:
            self._kept[block] = 0
        self._let_go(given_up)
        self._shorten(sequence, first)
        return evicted

    def _let_go_end(self, sequence: Sequence, keep: Set[str]) -> bool:
        """Its last blocks stay with others that hold them too. True if they stood before blocks that only it
        holds, which can go now."""
        at = len(sequence.blocks)
        while at and (self._used[sequence.blocks[at - 1]] or sequence.blocks[at - 1] in self._sharers):
            at -= 1
        if not at or sequence.owner in keep or sequence.num_coming > sequence.num_ready:
            return False
        self._unkeep(sequence.owner, sequence.blocks[at:], None)
        self._shorten(sequence, at)
        return True

    def _evict_partial(self, sequence: Sequence) -> Evicted:
        """Its last block, which lacks a group: what the others hold of it."""
        index, block = sequence.num_blocks - 1, sequence.blocks[-1]
        lacking = self.lacks(block)
        here = tuple(group for group in range(len(self.groups)) if group not in lacking)
        self.num_evicted_blocks += 1
        self.lend([block])
        self._unkeep(sequence.owner, [block], None)
        self._shorten(sequence, index)
        return Evicted((sequence.owner,), index, [block], [sequence.chain[index]], here)

    def _evict_shared(self, sequence: Sequence, keep: Set[str]) -> Evicted:
        """Its last block, if it is the last of all that hold it, and none of those is to keep it."""
        index, block = sequence.num_blocks - 1, sequence.blocks[-1]
        owners = tuple(self._sharers[block])
        holders = [self._resting[owner] for owner in owners]
        ends = not self._used[block] and all(len(holder.blocks) == index + 1 for holder in holders)
        if not ends or not keep.isdisjoint(owners):
            return Evicted(owners, index, [], [])
        self.num_evicted_blocks += 1
        self.lend([block])
        for holder in holders:
            self._unkeep(holder.owner, [block], None)
            self._shorten(holder, index)
        return Evicted(owners, index, [block], [sequence.chain[index]])

    def _evict_groups(self, sequence: Sequence, count: int, groups: tuple[int, ...]) -> list[Evicted]:
        """Its last slots of these groups; what the others hold stays. Nothing while it is being filled, and
        nothing before a block that is being copied: the copy reads its slots where they are."""
        evicted: list[Evicted] = []
        index = len(sequence.blocks)
        while count > 0 and index and sequence.num_coming == sequence.num_ready:
            index -= 1
            block, lacking = sequence.blocks[index], self.lacks(sequence.blocks[index])
            if self._used[block] or block in self._lent or block in self._sharers:
                break
            here = tuple(group for group in groups if group not in lacking)
            if not here:
                continue
            count -= 1
            if index >= len(sequence.chain):
                self._evict_own(sequence, 1)
            elif len(here) + len(lacking) == len(self.groups):
                evicted.append(self._evict_partial(sequence))
            else:
                other, name = self._split(block, here), sequence.chain[index]
                evicted.append(Evicted((sequence.owner,), index, [other], [name], here))
                sequence.num_ready = sequence.num_coming = min(sequence.num_ready, index)
                self.num_evicted_blocks += 1
        return evicted

    def _split(self, block: int, groups: tuple[int, ...]) -> int:
        """A kept block gives up its slots of these groups; returns the block that has them now, lent."""
        self._matched = None
        self._unname([block])
        other = self._unused.pop()
        self._slots[:, other] = ABSENT
        for group in groups:
            self._slots[group, other] = self._slots[group, block]
            self._slots[group, block] = ABSENT
        self._partial |= {block, other}
        if block in self._busy:
            self._busy[other] = self._busy[block]
        self.lend([other])
        return other

    def _shorten(self, sequence: Sequence, num_blocks: int) -> None:
        """A resting sequence has given up all but its first blocks."""
        del sequence.blocks[num_blocks:]
        sequence.num_ready = min(sequence.num_ready, num_blocks)
        sequence.num_coming = min(sequence.num_coming, num_blocks)
        sequence.keys = sequence.keys[: max(len(sequence.chain), num_blocks) * self.block_size]
        if not num_blocks:
            self._resting.pop(sequence.owner, None)
            self._away[sequence.owner] = sequence

    def extend(self, owner: str, count: int) -> Arrival | None:
        """Give a resting sequence free slots for at most `count` of the blocks that it lacks, in order. None
        where it lacks nothing that it knows by name, or no slot is free. They count as there once `arrived`
        says so."""
        sequence = self.resting(owner)
        if sequence is None:
            return None
        first = sequence.num_coming
        if first < len(sequence.blocks):
            groups = self.lacks(sequence.blocks[first])
            last = first
            while last < min(len(sequence.blocks), first + count):
                if self.lacks(sequence.blocks[last]) != groups:
                    break
                last += 1
            count = min(last - first, *(self._pools[group].num_free for group in groups))
            blocks = sequence.blocks[first : first + count]
            self._refill(blocks, groups)
        else:
            groups = None
            count = min(count, len(sequence.chain) - first, self.num_free)
            blocks = self._allocate_kept(owner, count) if count > 0 else []
            sequence.blocks += blocks
        if not blocks:
            return None
        if owner in self._away:
            self._resting[owner] = self._away.pop(owner)
        sequence.num_coming += len(blocks)
        return Arrival(sequence, first, blocks, sequence.chain[first : first + len(blocks)], groups)

    def arrived(self, arrival: Arrival, is_there: bool) -> None:
        """The copy of these is over. Where it failed, the sequence loses them and what comes after. Nothing
        happens to what it gave up meanwhile, or to a sequence that rests no more."""
        sequence, start = arrival.sequence, arrival.start
        end = min(start + len(arrival.blocks), sequence.num_coming)
        here = sequence.blocks[start:end]
        if not sequence.owner or sequence.num_ready != start or here != arrival.blocks[: len(here)]:
            return
        self._matched = None
        if is_there:
            sequence.num_ready = end
            self._call(here, arrival.names[: len(here)])
        else:
            self._unkeep(sequence.owner, sequence.blocks[start:], None)
            self._shorten(sequence, start)

    # -- copies --------------------------------------------------------------------------------------

    def lend(self, blocks: list[int]) -> None:
        """A copy touches these: they are not handed out before they are taken back."""
        self._matched = None
        lent, used, kept = self._lent, self._used, self._kept
        self._count_only_lent([one for one in blocks if not (one in lent or used[one] or kept[one])], 1)
        for block in blocks:
            lent[block] = lent.get(block, 0) + 1

    def take_back(self, blocks: Iterable[int]) -> None:
        """The copy is over. A block that no sequence holds is free."""
        self._matched = None
        lent, used, kept = self._lent, self._used, self._kept
        free: list[int] = []
        for block in blocks:
            if lent[block] > 1:
                lent[block] -= 1
                continue
            del lent[block]
            if not (used[block] or kept[block]):
                free.append(block)
        self._count_only_lent(free, -1)
        self._free(free)

    def settle(self, step: int) -> None:
        """Every step up to `step` is done."""
        self._settled = step
        for pool in self._pools:
            pool.settle(step)

    # -- holders -------------------------------------------------------------------------------------

    def _allocate(self, count: int) -> list[int]:
        """New blocks, in every group."""
        self._matched = None
        first = len(self._unused) - count
        new = self._unused[first:][::-1]
        del self._unused[first:]
        for group, pool in enumerate(self._pools):
            self._slots[group, new] = pool.allocate(count)
        return new

    def _allocate_used(self, count: int) -> list[int]:
        new = self._allocate(count)
        for block in new:
            self._used[block] = 1
        self._num_used += count
        return new

    def _allocate_kept(self, owner: str, count: int) -> list[int]:
        new = self._allocate(count)
        for block in new:
            self._kept[block], self._keeper[block] = 1, owner
        return new

    def _refill(self, blocks: list[int], groups: tuple[int, ...]) -> None:
        """Kept blocks that lack these groups get slots of them."""
        self._matched = None
        for group in groups:
            self._slots[group, blocks] = self._pools[group].allocate(len(blocks))
        self._partial.difference_update(blocks)

    def _use(self, blocks: list[int]) -> None:
        """One running holder more."""
        self._matched = None
        for block in blocks:
            if not self._used[block]:
                self._num_used += 1
                if not self._kept[block]:
                    self._count_only_lent([block], -1)
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
        self._let_go([block for block in blocks if not self._used[block]])

    def _keep(self, owner: str, blocks: list[int]) -> None:
        """One resting holder more."""
        self._matched = None
        for block in blocks:
            if not (self._used[block] or self._kept[block]):
                self._count_only_lent([block], -1)
            self._kept[block] += 1
            if self._kept[block] == 1:
                self._keeper[block] = owner
            else:
                self._sharers.setdefault(block, [self._keeper[block]]).append(owner)

    def _unkeep(self, owner: str, blocks: list[int], after_step: int | None) -> None:
        """One resting holder less."""
        self._matched = None
        for block in blocks:
            if after_step is not None:
                self._busy[block] = after_step
            self._kept[block] -= 1
            if self._kept[block]:
                sharers = self._sharers[block]
                sharers.remove(owner)
                if len(sharers) == 1:
                    self._keeper[block] = sharers[0]
                    del self._sharers[block]
        self._let_go([block for block in blocks if not self._kept[block]])

    def _let_go(self, blocks: list[int]) -> None:
        """A holder of these is gone. Blocks that nothing holds are free, once the steps that name them are
        done."""
        used, kept, lent = self._used, self._kept, self._lent
        loose = [block for block in blocks if not (used[block] or kept[block])]
        self._count_only_lent([block for block in loose if block in lent], 1)
        self._free([block for block in loose if block not in lent])

    def _count_only_lent(self, blocks: list[int], change: int) -> None:
        partial = self._partial.intersection(blocks)
        num_whole = len(blocks) - len(partial)
        self._only_lent = [count + change * num_whole for count in self._only_lent]
        for block in partial:
            lacking = self.lacks(block)
            for group in range(len(self.groups)):
                self._only_lent[group] += change * (group not in lacking)

    def _free(self, blocks: list[int]) -> None:
        if not blocks:
            return
        self._unname(blocks)
        after_steps: list[int | None] = [None] * len(blocks)
        if self._busy:
            busy = [self._busy.pop(block, -1) for block in blocks]
            after_steps = [step if step > self._settled else None for step in busy]
        lacks_slots = bool(self._partial) and not self._partial.isdisjoint(blocks)
        self._partial.difference_update(blocks if lacks_slots else ())
        index = np.array(blocks)
        for pool, held in zip(self._pools, self._slots, strict=True):
            slots: list[int] = held.take(index).tolist()
            if not lacks_slots and after_steps.count(None) == len(after_steps):
                pool.release(slots, None)
                continue
            for slot, after_step in zip(slots, after_steps, strict=True):
                if slot != ABSENT:
                    pool.release([slot], after_step)
        self._unused += blocks

    # -- names ---------------------------------------------------------------------------------------

    def _call(self, blocks: list[int], names: list[bytes]) -> None:
        """These blocks hold what these names say."""
        self._matched = None
        for block, name in zip(blocks, names, strict=True):
            if self._name[block] is None:
                self._name[block] = name
                if self._resident.setdefault(name, block) != block:
                    self._twins.setdefault(name, []).append(block)

    def _unname(self, blocks: list[int]) -> None:
        names, resident, twins = self._name, self._resident, self._twins
        for block in blocks:
            name = names[block]
            if name is None:
                continue
            names[block] = None
            if not twins or name not in twins:
                del resident[name]
                continue
            others = twins[name]
            if resident[name] == block:
                resident[name] = others.pop(0)
            else:
                others.remove(block)
            if not others:
                del twins[name]

    def _match(self, owner: str, prefix: Prefix, with_coming: bool) -> Match:
        """The longest resident prefix."""
        last = self._matched
        if last is None or last[1] is not prefix or last[0] != owner or last[2] != with_coming:
            last = self._matched = owner, prefix, with_coming, self._look_up(owner, prefix, with_coming)
        cached, blocks, num_ready = last[3]
        return Match(cached, list(blocks), num_ready)

    def _look_up(self, owner: str, prefix: Prefix, with_coming: bool) -> Match:
        size, most = self.block_size, len(prefix.keys) - 1
        shared: list[int] = []
        for name in prefix.chain[: most // size]:
            block = self._resident.get(name)
            if block is None:
                break
            shared.append(block)
        own = self._resting.get(owner)
        if own is None:
            return Match(len(shared) * size, shared, len(shared))
        held = own.num_coming if with_coming else own.num_ready
        cached = min(common_prefix(own.keys, prefix.keys), most, held * size)
        if cached % size and self._must_not_change(own.blocks[cached // size]):
            cached -= cached % size
        if cached <= len(shared) * size:
            return Match(len(shared) * size, shared, len(shared))
        blocks = own.blocks[: self.blocks_for(cached)]
        return Match(cached, blocks, min(own.num_ready, len(blocks)))

    def _must_not_change(self, block: int) -> bool:
        """Others hold it too, or it is being copied."""
        return self._used[block] + self._kept[block] > 1 or block in self._lent

    # -- integrity -----------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is where its holders say."""
        counts = enumerate(zip(self._used, self._kept, strict=True))
        resident = [block for block, (used, kept) in counts if used or kept or block in self._lent]
        for group, pool in enumerate(self._pools):
            slots = self._slots[group, resident]
            pool.check_integrity(slots[slots != ABSENT].tolist())
        numbers = sorted([*self._unused, *resident])
        assert numbers == list(range(self._slots.shape[1])), "a number is lost or doubled"
        self._check_holders(resident)
        self._check_names(set(resident))
        assert not self._resting.keys() & self._away.keys(), "a sequence rests twice"
        for owner, sequence in (*self._resting.items(), *self._away.items()):
            assert sequence.owner == owner, "a sequence does not know where it rests"
            assert bool(sequence.blocks) == (owner in self._resting), "a sequence rests in the wrong place"
            assert 0 <= sequence.num_ready <= sequence.num_coming <= sequence.num_blocks
            lacking = [bool(self.lacks(block)) for block in sequence.blocks]
            assert not any(lacking[: sequence.num_coming]), "a block that lacks a group counts as there"
            assert all(lacking[sequence.num_coming :]), "a whole block does not count as there"
            assert sequence.num_blocks <= self.blocks_for(len(sequence.keys)), "blocks without keys"

    def _check_holders(self, resident: list[int]) -> None:
        for holders, counts in ((self._active, self._used), (self._resting.values(), self._kept)):
            found = dict(Counter([block for holder in holders for block in holder.blocks]))
            held = {block: count for block, count in enumerate(counts) if count}
            assert found == held, "holders of a block are miscounted"
        assert self._num_used == len(self._used) - self._used.count(0), "used blocks are miscounted"
        only_lent = [block for block in resident if not (self._used[block] or self._kept[block])]
        found = (self._slots[:, only_lent] != ABSENT).sum(1).tolist()
        assert self._only_lent == found, "lent blocks are miscounted"
        keepers: dict[int, list[str]] = {}
        for owner, sequence in self._resting.items():
            for block in sequence.blocks:
                keepers.setdefault(block, []).append(owner)
        for block, owners in keepers.items():
            known = self._sharers[block] if len(owners) > 1 else [self._keeper[block]]
            assert sorted(known) == sorted(owners), "a block has the wrong keepers"
        assert self._sharers.keys() <= keepers.keys(), "a block is shared by no sequence"

    def _check_names(self, resident: set[int]) -> None:
        holders = enumerate(map(add, self._used, self._kept))
        shared = [block for block, count in holders if count > 1]
        assert all(self._name[block] for block in shared), "a block is shared though it is not full"
        for sequence in (*self._active, *self._resting.values()):
            num_named = len(sequence.chain) if not sequence.owner else sequence.num_ready
            named = sequence.blocks[: min(num_named, len(sequence.chain))]
            assert [self._name[block] for block in named] == sequence.chain[: len(named)], "a wrong name"
        named = {block: name for block, name in enumerate(self._name) if name is not None}
        found = {block: name for name, block in self._resident.items()}
        assert self._twins.keys() <= self._resident.keys(), "a twin has no first"
        assert all(self._twins.values()), "a name has no twins"
        found |= {block: name for name, blocks in self._twins.items() for block in blocks}
        assert found == named, "the index of resident blocks is wrong"
        assert named.keys() <= resident, "a free block has a name"


def _common(left: list[bytes], right: list[bytes]) -> int:
    """Length of the longest common prefix of two chains; names say what is before them too."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(left), len(right)))


def common_prefix(left: Ints, right: Ints) -> int:
    """Length of the longest common prefix."""
    size = min(len(left), len(right))
    differs = np.nonzero(left[:size] != right[:size])[0]
    return int(differs[0]) if len(differs) else size
