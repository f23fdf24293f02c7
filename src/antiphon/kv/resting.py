"""What rests of a stage's KV: sequences under their owner's name, that give up blocks and are filled again.

What a resting sequence gave up it still knows by name, and may be brought back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import KeysView, Set
from itertools import takewhile

from antiphon.core.facts import Ints
from antiphon.kv.sequences import Arrival, Evicted, Sequence
from antiphon.kv.stage_blocks import StageBlocks


class RestingSequences:
    """Owner of a stage's resting sequences, which go by their owner's name; `blocks` owns what they keep."""

    def __init__(self, blocks: StageBlocks, num_groups: int, block_size: int) -> None:
        self.num_evicted_blocks = 0
        self._blocks = blocks
        self._num_groups = num_groups
        self._block_size = block_size
        self._resting: OrderedDict[str, Sequence] = OrderedDict()
        """Resting sequences with blocks here, by owner; `_away`: those that gave up all of theirs."""
        self._away: dict[str, Sequence] = {}

    @property
    def owners(self) -> KeysView[str]:
        """Of resting sequences with blocks here, least recently parked or brought first."""
        return self._resting.keys()

    @property
    def away(self) -> KeysView[str]:
        """Owners of resting sequences without a block here."""
        return self._away.keys()

    def get(self, owner: str) -> Sequence | None:
        """What rests under this name, to be read only."""
        return self._resting.get(owner) or self._away.get(owner)

    def resident_tokens(self, sequence: Sequence) -> int:
        """Leading tokens of a resting sequence that are on the device, in every group."""
        return min(len(sequence.keys), sequence.num_ready * self._block_size)

    def held_tokens(self, owner: str) -> int:
        """Leading tokens that rest under this name on the device."""
        sequence = self._resting.get(owner)
        return 0 if sequence is None else self.resident_tokens(sequence)

    def drop(self, owner: str, after_step: int | None, *, as_cache: bool = False) -> None:
        """Forget what rests under this name. `as_cache`: its full blocks are still found by what they hold,
        until others need the room."""
        sequence = self._resting.pop(owner, None) or self._away.pop(owner, None)
        if sequence is not None:
            self._blocks.unkeep(owner, sequence.blocks, after_step, as_cache=as_cache)
            sequence.owner = ""

    def rename(self, owner: str, name: str, keys: Ints) -> None:
        """What rests under `owner` rests under `name` from now on, cut to `keys`; what rested there before is
        forgotten."""
        sequence = self.get(owner)
        if sequence is None:
            return
        num_blocks, num_named = -(-len(keys) // self._block_size), len(keys) // self._block_size
        self.rest(name, keys, sequence.chain[:num_named], sequence.blocks[:num_blocks], sequence.num_ready)
        self.drop(owner, None)

    def park(self, owner: str, sequence: Sequence, after_step: int | None) -> None:
        """A sequence whose blocks are all filled rests here, instead of what rested here before."""
        self.drop(owner, after_step)
        self._blocks.keep(owner, sequence.blocks)
        sequence.num_ready = sequence.num_coming = sequence.num_blocks
        if sequence.blocks:
            sequence.owner = owner
            self._resting[owner] = sequence

    def rest(self, owner: str, keys: Ints, chain: list[bytes], blocks: list[int], num_ready: int) -> None:
        """Kept from now on, of which `num_ready` are there."""
        num_there = min(num_ready, len(blocks))
        sequence = Sequence(keys, chain, blocks[:num_there], num_there, num_there)
        self._blocks.keep(owner, sequence.blocks)
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

    def retell(self, sequence: Sequence, keys: Ints, chain: list[bytes], same: int) -> None:
        """It rests for another prompt from now on, of which its first `same` blocks are the beginning."""
        self._blocks.unkeep(sequence.owner, sequence.blocks[same:], None)
        sequence.keys, sequence.chain = keys, chain
        self._shorten(sequence, min(same, sequence.num_blocks))

    # -- eviction ------------------------------------------------------------------------------------

    def evict(
        self, owner: str, count: int, groups: tuple[int, ...] | None = None, keep: Set[str] = frozenset()
    ) -> list[Evicted]:
        """The owner's sequence gives up its last blocks until `count` more are to be had, or of these groups
        only. Returns what is full, the last first, lent to the caller, which takes it back once it is copied;
        a partial block and what was being filled are lost, and not told of.

        A block goes only where it ends every sequence that holds it, none of which is of `keep`.
        """
        sequence = self._resting.get(owner)
        if sequence is None:
            return []
        if groups is not None and len(set(groups)) < self._num_groups:
            return self._evict_groups(sequence, count, groups)
        evicted: list[Evicted] = []
        while count > 0 and sequence.blocks:
            before, last = sequence.num_blocks, sequence.blocks[-1]
            if last in self._blocks.sharers:
                run = self._evict_shared(sequence, keep)
            elif last in self._blocks.partial:
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
        used, others, given_up = self._blocks.used, self._blocks.sharers, blocks[first:]
        if any(map(used.__getitem__, given_up)) or (others and not others.keys().isdisjoint(given_up)):
            least, first = first, len(blocks)
            while first > least and not used[blocks[first - 1]] and blocks[first - 1] not in others:
                first -= 1
            given_up = blocks[first:]
        whole = max(min(sequence.num_ready, len(sequence.chain)), first)
        evicted = Evicted((owner,), first, blocks[first:whole], sequence.chain[first:whole])
        self.num_evicted_blocks += len(given_up)
        self._blocks.lend(evicted.blocks)
        self._blocks.give_up(given_up)
        self._shorten(sequence, first)
        return evicted

    def _let_go_end(self, sequence: Sequence, keep: Set[str]) -> bool:
        """Its last blocks stay with others that hold them too. True if they stood before blocks that only it
        holds, which can go now."""
        at = len(sequence.blocks)
        while at and (
            self._blocks.used[sequence.blocks[at - 1]] or sequence.blocks[at - 1] in self._blocks.sharers
        ):
            at -= 1
        if not at or sequence.owner in keep or sequence.num_coming > sequence.num_ready:
            return False
        self._blocks.unkeep(sequence.owner, sequence.blocks[at:], None)
        self._shorten(sequence, at)
        return True

    def _evict_partial(self, sequence: Sequence) -> Evicted:
        """Its last block, which lacks a group: what the others hold of it."""
        index, block = sequence.num_blocks - 1, sequence.blocks[-1]
        lacking = self._blocks.lacks(block)
        here = tuple(group for group in range(self._num_groups) if group not in lacking)
        self.num_evicted_blocks += 1
        self._blocks.lend([block])
        self._blocks.unkeep(sequence.owner, [block], None)
        self._shorten(sequence, index)
        return Evicted((sequence.owner,), index, [block], [sequence.chain[index]], here)

    def _evict_shared(self, sequence: Sequence, keep: Set[str]) -> Evicted:
        """Its last block, if it is the last of all that hold it, and none of those is to keep it."""
        index, block = sequence.num_blocks - 1, sequence.blocks[-1]
        owners = tuple(self._blocks.sharers[block])
        holders = [self._resting[owner] for owner in owners]
        ends = not self._blocks.used[block] and all(len(holder.blocks) == index + 1 for holder in holders)
        if not ends or not keep.isdisjoint(owners):
            return Evicted(owners, index, [], [])
        self.num_evicted_blocks += 1
        self._blocks.lend([block])
        for holder in holders:
            self._blocks.unkeep(holder.owner, [block], None)
            self._shorten(holder, index)
        return Evicted(owners, index, [block], [sequence.chain[index]])

    def _evict_groups(self, sequence: Sequence, count: int, groups: tuple[int, ...]) -> list[Evicted]:
        """Its last slots of these groups; what the others hold stays. Nothing while it is being filled, and
        nothing before a block that is being copied: the copy reads its slots where they are."""
        evicted: list[Evicted] = []
        index = len(sequence.blocks)
        while count > 0 and index and sequence.num_coming == sequence.num_ready:
            index -= 1
            block, lacking = sequence.blocks[index], self._blocks.lacks(sequence.blocks[index])
            if self._blocks.used[block] or block in self._blocks.lent or block in self._blocks.sharers:
                break
            here = tuple(group for group in groups if group not in lacking)
            if not here:
                continue
            count -= 1
            if index >= len(sequence.chain):
                self._evict_own(sequence, 1)
            elif len(here) + len(lacking) == self._num_groups:
                evicted.append(self._evict_partial(sequence))
            else:
                other, name = self._blocks.split(block, here), sequence.chain[index]
                evicted.append(Evicted((sequence.owner,), index, [other], [name], here))
                sequence.num_ready = sequence.num_coming = min(sequence.num_ready, index)
                self.num_evicted_blocks += 1
        return evicted

    def _shorten(self, sequence: Sequence, num_blocks: int) -> None:
        """A resting sequence has given up all but its first blocks."""
        del sequence.blocks[num_blocks:]
        sequence.num_ready = min(sequence.num_ready, num_blocks)
        sequence.num_coming = min(sequence.num_coming, num_blocks)
        sequence.keys = sequence.keys[: max(len(sequence.chain), num_blocks) * self._block_size]
        if not num_blocks:
            self._resting.pop(sequence.owner, None)
            self._away[sequence.owner] = sequence

    # -- filling -------------------------------------------------------------------------------------

    def extend(self, owner: str, count: int) -> Arrival | None:
        """Give a resting sequence free slots for at most `count` of the blocks that it lacks, in order. None
        where it lacks nothing that it knows by name, or no slot is free. They count as there once `arrived`
        says so."""
        sequence = self.get(owner)
        if sequence is None:
            return None
        first = sequence.num_coming
        if first < len(sequence.blocks):
            groups = self._blocks.lacks(sequence.blocks[first])
            last = first
            while last < min(len(sequence.blocks), first + count):
                if self._blocks.lacks(sequence.blocks[last]) != groups:
                    break
                last += 1
            count = min(last - first, self._blocks.num_free_of(groups))
            blocks = sequence.blocks[first : first + count]
            self._blocks.refill(blocks, groups)
        else:
            groups = None
            count = min(count, len(sequence.chain) - first, self._blocks.num_free)
            blocks = self._blocks.allocate_kept(owner, count) if count > 0 else []
            sequence.blocks += blocks
        if not blocks:
            return None
        if owner in self._away:
            self._resting[owner] = self._away.pop(owner)
        sequence.num_coming += len(blocks)
        return Arrival(sequence, first, blocks, sequence.chain[first : first + len(blocks)], groups)

    def arrived(self, arrival: Arrival, is_there: bool) -> None:
        """The copy of these is over. Where it failed, the sequence loses them and what comes after. Nothing
        happens to what it gave up meanwhile, though it may have been given others in its place, or to a
        sequence that rests no more."""
        sequence, start = arrival.sequence, arrival.start
        if not sequence.owner or sequence.num_ready != start:
            return
        pairs = zip(sequence.blocks[start : sequence.num_coming], arrival.blocks, strict=False)
        here = [block for block, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        if not here:
            return
        if is_there:
            sequence.num_ready = start + len(here)
            self._blocks.name(here, arrival.names[: len(here)])
        else:
            self._blocks.unkeep(sequence.owner, sequence.blocks[start:], None)
            self._shorten(sequence, start)

    # -- integrity -----------------------------------------------------------------------------------

    @property
    def sequences(self) -> list[Sequence]:
        """Those with blocks here."""
        return [*self._resting.values()]

    def check_integrity(self) -> None:
        """Raises AssertionError unless each rests where its blocks say."""
        assert not self._resting.keys() & self._away.keys(), "a sequence rests twice"
        for owner, sequence in (*self._resting.items(), *self._away.items()):
            assert sequence.owner == owner, "a sequence does not know where it rests"
            assert bool(sequence.blocks) == (owner in self._resting), "a sequence rests in the wrong place"
            assert 0 <= sequence.num_ready <= sequence.num_coming <= sequence.num_blocks
            lacking = [bool(self._blocks.lacks(block)) for block in sequence.blocks]
            assert not any(lacking[: sequence.num_coming]), "a block that lacks a group counts as there"
            assert all(lacking[sequence.num_coming :]), "a whole block does not count as there"
            assert sequence.num_blocks <= -(-len(sequence.keys) // self._block_size), "blocks without keys"
            assert len(sequence.chain) == len(sequence.keys) // self._block_size, "a block without a name"
