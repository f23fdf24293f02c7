"""The blocks of one stage: where each is in the pool of every KV group, and what holds it.

A block is a number here, and a slot in the pool of each group (`slots`): groups hold the same positions
together, unless a resting sequence gave up some of them. It is used by running sequences, kept by resting
ones, and lent to copies under way; it is free once none of them holds it, and the steps that name it are
done. A block that two sequences hold is full and never written again.

Free blocks may be cache: full ones that a session left behind when it closed. They are found by name until
they are handed out, after all other free blocks that are ready (`BlockPool`), the one that was left first
before the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

import numpy as np

from antiphon.core.facts import Ints
from antiphon.kv.block_names import BlockNames
from antiphon.kv.blocks import ABSENT, BlockPool
from antiphon.kv.sequences import Sequence


class StageBlocks:
    """Owner of one stage's blocks, their holders and their names. Every group has `num_blocks` slots, of them
    `ready` ones as in `BlockPool`."""

    def __init__(self, groups: tuple[str, ...], num_blocks: int, ready: int | None = None) -> None:
        size = num_blocks * len(groups)  # as many numbers as slots: a block may hold one group's only
        self.num_changes = 0
        """Of holders and names: while it stays, the same prompt finds the same blocks."""
        self.used = [0] * size
        """Running sequences that hold each block. Others read this and the next three, and write none."""
        self.sharers: dict[int, list[str]] = {}
        """Owners of each block that more than one resting sequence keeps, least recently parked first."""
        self.lent: dict[int, int] = {}
        """Copies under way that touch a block, where there are any."""
        self.partial: set[int] = set()
        """Blocks that lack a group."""
        self._num_groups = len(groups)
        self._num_blocks = num_blocks
        self._slots = np.full((len(groups), size), ABSENT, np.int64)
        """By group, of blocks that something holds."""
        self._pools = [BlockPool(num_blocks, ready) for _ in groups]
        self._unused = list(range(size))[::-1]
        """Numbers of no block; a stack."""
        self._kept = [0] * size
        self._keeper = [""] * size
        """The owner of each block that one keeps."""
        self._num_used = 0
        """Blocks that running sequences hold."""
        self._only_lent = [0] * len(groups)
        """Slots of each group in blocks that only copies hold."""
        self._names = BlockNames(size)
        self._busy: dict[int, int] = {}
        """Last step in flight that names a block which a running sequence gave up."""
        self._settled = -1
        self._cache: dict[int, None] = {}
        """Free blocks that are cache, in the order of leaving; `_cache_busy`: those that a step in flight
        names, and that step."""
        self._cache_busy: dict[int, int] = {}

    # -- what there is -------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, in every group, cache included."""
        return min(pool.num_free for pool in self._pools) + len(self._cache)

    @property
    def num_cache(self) -> int:
        """Blocks that nothing holds and that are found by name."""
        return len(self._cache) + len(self._cache_busy)

    def num_cache_of(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are cache that no sequence holds; one that takes them makes them busy."""
        return sum(block in self._cache for block in blocks)

    @property
    def num_idle(self) -> int:
        """Blocks that only resting sequences hold: they can be had."""
        return self.num_spare - self.num_free - self.num_pending_free

    @property
    def num_pending_free(self) -> int:
        """Blocks that come back by themselves once steps and copies under way are done."""
        pending = zip(self._pools, self._only_lent, strict=True)
        return max(pool.num_pending_free + only_lent for pool, only_lent in pending) + len(self._cache_busy)

    @property
    def num_free_soon(self) -> int:
        """Blocks that are free in every group once steps and copies under way are done."""
        pools, only_lent = self._pools, self._only_lent
        soon = min([one.num_free + one.num_pending_free + only_lent[at] for at, one in enumerate(pools)])
        return soon + self.num_cache

    @property
    def num_spare(self) -> int:
        """Blocks that no running sequence holds: to be had now, or once the steps in flight are done."""
        return self._num_blocks - self._num_used

    def lacks(self, block: int) -> tuple[int, ...]:
        """Indices of the groups that do not hold it."""
        if block not in self.partial:
            return ()
        return tuple(np.flatnonzero(self._slots[:, block] == ABSENT).tolist())

    def slots(self, blocks: Iterable[int]) -> Ints:
        """int64 [groups, n]: where the blocks are in each group's pool, ABSENT where they are not."""
        return self._slots[:, list(blocks)]

    def num_free_of(self, groups: tuple[int, ...]) -> int:
        """Slots that can be handed out now in each of these groups."""
        return min(self._pools[group].num_free for group in groups) + len(self._cache)

    def must_not_change(self, block: int) -> bool:
        """Others hold it too, or it is being copied."""
        return self.used[block] + self._kept[block] > 1 or block in self.lent

    # -- names ---------------------------------------------------------------------------------------

    def find(self, name: bytes) -> int | None:
        """The first block of this name."""
        return self._names.find(name)

    def owners_of(self, name: bytes) -> list[str]:
        """Of the resting sequences that keep a block of this name."""
        kept = [block for block in self._names.find_all(name) if self._kept[block]]
        return [owner for block in kept for owner in self.sharers.get(block, (self._keeper[block],))]

    def name(self, blocks: list[int], names: list[bytes]) -> None:
        """These blocks hold what these names say: they may be shared."""
        self.num_changes += 1
        self._names.add(blocks, names)

    def unname(self, blocks: list[int]) -> None:
        """The content of these blocks changes: no other sequence finds them."""
        self.num_changes += 1
        self._names.remove(blocks)

    # -- holders -------------------------------------------------------------------------------------

    def _allocate(self, count: int) -> list[int]:
        """New blocks, in every group."""
        self.num_changes += 1
        self._drop_cache(count, range(self._num_groups))
        first = len(self._unused) - count
        new = self._unused[first:][::-1]
        del self._unused[first:]
        for group, pool in enumerate(self._pools):
            self._slots[group, new] = pool.allocate(count)
        return new

    def allocate_used(self, count: int) -> list[int]:
        new = self._allocate(count)
        for block in new:
            self.used[block] = 1
        self._num_used += count
        return new

    def allocate_kept(self, owner: str, count: int) -> list[int]:
        new = self._allocate(count)
        for block in new:
            self._kept[block], self._keeper[block] = 1, owner
        return new

    def refill(self, blocks: list[int], groups: tuple[int, ...]) -> None:
        """Kept blocks that lack these groups get slots of them."""
        self.num_changes += 1
        self._drop_cache(len(blocks), groups)
        for group in groups:
            self._slots[group, blocks] = self._pools[group].allocate(len(blocks))
        self.partial.difference_update(blocks)

    def use(self, blocks: list[int]) -> None:
        """One running holder more."""
        self.num_changes += 1
        for block in blocks:
            if not self.used[block]:
                self._num_used += 1
                if not (self._kept[block] or self._take_out_of_cache(block)):
                    self._count_only_lent([block], -1)
            self.used[block] += 1

    def unuse(self, blocks: list[int], after_step: int | None) -> None:
        """One running holder less."""
        self.num_changes += 1
        for block in blocks:
            if after_step is not None:
                self._busy[block] = after_step
            self.used[block] -= 1
            if not self.used[block]:
                self._num_used -= 1
        self._let_go([block for block in blocks if not self.used[block]])

    def keep(self, owner: str, blocks: list[int]) -> None:
        """One resting holder more."""
        self.num_changes += 1
        for block in blocks:
            if not (self.used[block] or self._kept[block] or self._take_out_of_cache(block)):
                self._count_only_lent([block], -1)
            self._kept[block] += 1
            if self._kept[block] == 1:
                self._keeper[block] = owner
            else:
                self.sharers.setdefault(block, [self._keeper[block]]).append(owner)

    def unkeep(
        self, owner: str, blocks: list[int], after_step: int | None, *, as_cache: bool = False
    ) -> None:
        """One resting holder less. `as_cache`: full blocks that nothing holds any more stay as cache."""
        self.num_changes += 1
        for block in blocks:
            if after_step is not None:
                self._busy[block] = after_step
            self._kept[block] -= 1
            if self._kept[block]:
                sharers = self.sharers[block]
                sharers.remove(owner)
                if len(sharers) == 1:
                    self._keeper[block] = sharers[0]
                    del self.sharers[block]
        self._let_go([block for block in blocks if not self._kept[block]], as_cache)

    def give_up(self, blocks: list[int]) -> None:
        """The one sequence that kept these keeps them no more."""
        self.num_changes += 1
        for block in blocks:
            self._kept[block] = 0
        self._let_go(blocks)

    def split(self, block: int, groups: tuple[int, ...]) -> int:
        """A kept block gives up its slots of these groups; returns the block that has them now, lent."""
        self.num_changes += 1
        self._names.remove([block])
        other = self._unused.pop()
        self._slots[:, other] = ABSENT
        for group in groups:
            self._slots[group, other] = self._slots[group, block]
            self._slots[group, block] = ABSENT
        self.partial |= {block, other}
        if block in self._busy:
            self._busy[other] = self._busy[block]
        self.lend([other])
        return other

    def _let_go(self, blocks: list[int], as_cache: bool = False) -> None:
        """A holder of these is gone. Blocks that nothing holds are free, once the steps that name them are
        done."""
        used, kept, lent = self.used, self._kept, self.lent
        loose = [block for block in blocks if not (used[block] or kept[block])]
        self._count_only_lent([block for block in loose if block in lent], 1)
        free = [block for block in loose if block not in lent]
        self._free(self._cached(free) if as_cache else free)

    def _cached(self, blocks: list[int]) -> list[int]:
        """These are cache from now on, the last to leave first; returns those that no prompt would find."""
        others: list[int] = []
        for block in reversed(blocks):
            name, step = self._names.of(block), self._busy.get(block, -1)
            if name is None or block in self.partial or len(self._names.find_all(name)) > 1:
                others.append(block)
            elif step > self._settled:
                self._cache_busy[block] = step
            else:
                self._cache[block] = None
        return others

    def _take_out_of_cache(self, block: int) -> bool:
        """Take the block out of the cache, where a sequence holds it from now on. True if it was there."""
        return self._cache.pop(block, 0) is None or self._cache_busy.pop(block, None) is not None

    def _drop_cache(self, count: int, groups: Iterable[int]) -> None:
        """Cache leaves until so many slots of these groups are ready in their pools, or none is left."""
        short = count - min(self._pools[group].num_ready for group in groups)
        blocks = list(islice(self._cache, max(short, 0)))
        for block in blocks:
            del self._cache[block]
        self._free(blocks)

    def _count_only_lent(self, blocks: list[int], change: int) -> None:
        partial = self.partial.intersection(blocks)
        num_whole = len(blocks) - len(partial)
        self._only_lent = [count + change * num_whole for count in self._only_lent]
        for block in partial:
            lacking = self.lacks(block)
            for group in range(self._num_groups):
                self._only_lent[group] += change * (group not in lacking)

    def _free(self, blocks: list[int]) -> None:
        if not blocks:
            return
        self._names.remove(blocks)
        after_steps: list[int | None] = [None] * len(blocks)
        if self._busy:
            busy = [self._busy.pop(block, -1) for block in blocks]
            after_steps = [step if step > self._settled else None for step in busy]
        lacks_slots = bool(self.partial) and not self.partial.isdisjoint(blocks)
        self.partial.difference_update(blocks if lacks_slots else ())
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

    # -- copies --------------------------------------------------------------------------------------

    def lend(self, blocks: list[int]) -> None:
        """A copy touches these: they are not handed out before they are taken back."""
        self.num_changes += 1
        lent, used, kept = self.lent, self.used, self._kept
        self._count_only_lent([one for one in blocks if not (one in lent or used[one] or kept[one])], 1)
        for block in blocks:
            lent[block] = lent.get(block, 0) + 1

    def take_back(self, blocks: Iterable[int]) -> None:
        """The copy is over. A block that no sequence holds is free."""
        self.num_changes += 1
        lent, used, kept = self.lent, self.used, self._kept
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
        for block in [block for block, last in self._cache_busy.items() if last <= step]:
            del self._cache_busy[block]
            self._cache[block] = None

    # -- integrity -----------------------------------------------------------------------------------

    def check_integrity(self, running: Collection[Sequence], resting: Collection[Sequence]) -> None:
        """Raises AssertionError unless every block is where these sequences say, and has their names."""
        counts = enumerate(zip(self.used, self._kept, strict=True))
        cache = self._cache.keys() | self._cache_busy
        held = [block for block, (used, kept) in counts if used or kept or block in self.lent]
        assert cache.isdisjoint(held), "something holds what counts as free"
        assert cache.isdisjoint(self.partial), "cache lacks a group"
        assert all(self._names.of(block) for block in cache), "cache that no prompt finds"
        resident = [*held, *cache]
        for group, pool in enumerate(self._pools):
            slots = self._slots[group, resident]
            pool.check_integrity(slots[slots != ABSENT].tolist())
        numbers = sorted([*self._unused, *resident])
        assert numbers == list(range(self._slots.shape[1])), "a number is lost or doubled"
        self._check_holders(running, resting, held)
        self._names.check_integrity({*resident})
        shared = [block for block in held if self.used[block] + self._kept[block] > 1]
        assert all(self._names.of(block) for block in shared), "a block is shared though it is not full"
        for sequence in (*running, *resting):
            num_named = len(sequence.chain) if not sequence.owner else sequence.num_ready
            named = sequence.blocks[: min(num_named, len(sequence.chain))]
            assert [self._names.of(block) for block in named] == sequence.chain[: len(named)], "a wrong name"

    def _check_holders(
        self, running: Collection[Sequence], resting: Collection[Sequence], resident: list[int]
    ) -> None:
        kept = Counter([block for holder in resting for block in holder.blocks])
        used = Counter([block for holder in running for block in holder.blocks])
        for found, counts in ((used, self.used), (kept, self._kept)):
            counted = [counts[block] for block in found]
            assert counted == [*found.values()], "holders are miscounted"
            assert len(found) == len(counts) - counts.count(0), "a block has no holder"
        assert self._num_used == len(self.used) - self.used.count(0), "used blocks are miscounted"
        only_lent = [block for block in resident if not (self.used[block] or self._kept[block])]
        lent = (self._slots[:, only_lent] != ABSENT).sum(1).tolist()
        assert self._only_lent == lent, "lent blocks are miscounted"
        owners: dict[int, list[str]] = {block: [] for block, count in kept.items() if count > 1}
        for sequence in resting:
            known = [self._keeper[block] for block in sequence.blocks if block not in owners]
            assert known.count(sequence.owner) == len(known), "a block has the wrong keeper"
            for block in owners.keys() & sequence.blocks:
                owners[block].append(sequence.owner)
        for block, several in owners.items():
            assert sorted(self.sharers[block]) == sorted(several), "a block has the wrong keepers"
        assert self.sharers.keys() <= kept.keys(), "a block is shared by no sequence"
