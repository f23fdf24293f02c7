"""The KV of one stage: sequences, their block tables per group, and what idle sessions left behind.

KV is a cache of the conversation record. A sequence is known by its keys, the content identity of each
cached position: a new prompt reuses the longest prefix whose keys are equal.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from antiphon.core.facts import Ints
from antiphon.kv.blocks import BlockPool


class Sequence:
    """Cached positions [0, len(keys)) of one conversation, in blocks of every group."""

    __slots__ = ("blocks", "busy_until", "keys", "reserved")

    def __init__(self, groups: tuple[str, ...]) -> None:
        self.blocks: dict[str, list[int]] = {group: [] for group in groups}
        self.keys: Ints = np.zeros(0, np.int64)
        self.reserved = 0
        """Blocks per group this sequence may still grow by."""
        self.busy_until: int | None = None
        """Last step in flight that names its blocks, once it is idle."""

    @property
    def num_blocks(self) -> int:
        return len(next(iter(self.blocks.values())))


class StageKv:
    """Owner of one stage's blocks. Every group has the same number of blocks of `block_size` tokens."""

    def __init__(self, groups: tuple[str, ...], num_blocks: int, block_size: int) -> None:
        self.groups = groups
        self.block_size = block_size
        self._pools = {group: BlockPool(num_blocks) for group in groups}
        self._idle: OrderedDict[str, Sequence] = OrderedDict()
        self._active: list[Sequence] = []
        self._settled = -1
        self.num_evicted_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self._lead.num_blocks

    @property
    def num_free(self) -> int:
        return self._lead.num_free

    @property
    def num_idle(self) -> int:
        return sum(sequence.num_blocks for sequence in self._idle.values())

    @property
    def num_limbo(self) -> int:
        return self._lead.num_limbo

    @property
    def _promised(self) -> int:
        return sum(sequence.reserved for sequence in self._active)

    @property
    def _lead(self) -> BlockPool:
        return self._pools[self.groups[0]]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fits(self, num_tokens: int) -> bool:
        """Can a sequence of `num_tokens` in all be opened now, evicting idle ones if need be?

        Blocks in limbo do not count: they come back by themselves.
        """
        return self.blocks_for(num_tokens) <= self._lead.num_free + self.num_idle - self._promised

    def open(self, session: str, keys: Ints, num_tokens: int, after_step: int | None) -> tuple[Sequence, int]:
        """Start a sequence that may grow to `num_tokens`; returns it and how many leading tokens are cached.

        At least the last prompt token is left to compute, since its output is wanted.
        """
        sequence = self._idle.pop(session, None) or Sequence(self.groups)
        cached = min(common_prefix(sequence.keys, keys), len(keys) - 1)
        self._shorten(sequence, cached, after_step)
        sequence.reserved = self.blocks_for(num_tokens) - sequence.num_blocks
        self._active.append(sequence)
        return sequence, cached

    def grow(self, sequence: Sequence, num_tokens: int) -> list[tuple[str, int, int]] | None:
        """Make room for `num_tokens` in all; returns new table entries (group, index, block).

        None while the blocks promised are still in limbo: a step in flight has to finish first.
        """
        have = sequence.num_blocks
        count = self.blocks_for(num_tokens) - have
        if count <= 0:
            return []
        self._evict_until(count)
        if self._lead.num_free < count:
            return None
        entries: list[tuple[str, int, int]] = []
        for group in self.groups:
            new = self._pools[group].allocate(count)
            sequence.blocks[group] += new
            entries += [(group, have + i, block) for i, block in enumerate(new)]
        sequence.reserved -= count
        return entries

    def park(self, session: str, sequence: Sequence, keys: Ints, after_step: int | None) -> None:
        """The sequence rests: keep its positions with `keys` for the session's next turn."""
        self._active.remove(sequence)
        sequence.reserved = 0
        sequence.keys = keys
        sequence.busy_until = after_step
        self._shorten(sequence, len(keys), after_step)
        self.drop(session, after_step)
        if len(keys):
            self._idle[session] = sequence

    def discard(self, sequence: Sequence, after_step: int | None) -> None:
        """The sequence ends and nothing of it is kept."""
        self._active.remove(sequence)
        self._shorten(sequence, 0, after_step)

    def drop(self, session: str, after_step: int | None) -> None:
        """Forget what the session left behind."""
        sequence = self._idle.pop(session, None)
        if sequence is not None:
            self._shorten(sequence, 0, after_step)

    def settle(self, step: int) -> None:
        self._settled = step
        for pool in self._pools.values():
            pool.settle(step)

    def check_integrity(self) -> None:
        sequences = [*self._idle.values(), *self._active]
        for group, pool in self._pools.items():
            pool.check_integrity([block for sequence in sequences for block in sequence.blocks[group]])
        assert self._promised <= self.num_free + self.num_limbo + self.num_idle, "more promised than there is"
        for sequence in self._idle.values():
            assert self.blocks_for(len(sequence.keys)) == sequence.num_blocks, "idle blocks without keys"

    def _shorten(self, sequence: Sequence, num_tokens: int, after_step: int | None) -> None:
        keep = self.blocks_for(num_tokens)
        sequence.keys = sequence.keys[:num_tokens]
        for group, blocks in sequence.blocks.items():
            self._pools[group].release(blocks[keep:], after_step)
            del blocks[keep:]

    def _evict_until(self, count: int) -> None:
        """Least recently parked first; blocks in limbo count, since they come back by themselves."""
        while self._lead.num_free + self._lead.num_limbo < count and self._idle:
            _, sequence = self._idle.popitem(last=False)
            self.num_evicted_blocks += sequence.num_blocks
            busy = sequence.busy_until
            self._shorten(sequence, 0, busy if busy is not None and busy > self._settled else None)


def common_prefix(left: Ints, right: Ints) -> int:
    """Length of the longest common prefix."""
    size = min(len(left), len(right))
    differs = np.nonzero(left[:size] != right[:size])[0]
    return int(differs[0]) if len(differs) else size
