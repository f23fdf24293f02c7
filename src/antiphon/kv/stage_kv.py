"""The KV of one stage on the device: what runs, what rests, and what a new prompt finds of both.

KV is a cache of the conversation record. A sequence is known by its keys, the content identity of each
cached position. A new prompt reuses the longest prefix that is resident: of its own owner's resting sequence
to the token, of any other to the block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from antiphon.core.facts import Ints
from antiphon.kv.resting import RestingSequences
from antiphon.kv.sequences import Prefix, Sequence, chain_on, common_prefix
from antiphon.kv.stage_blocks import StageBlocks


class Match(NamedTuple):
    """The longest resident prefix of a prompt: tokens, the blocks that hold them, and how many of those are
    filled already."""

    cached: int
    blocks: list[int]
    num_ready: int


class _LookUp(NamedTuple):
    """What was looked up last, and while `num_changes` of the blocks."""

    owner: str
    prefix: Prefix
    with_coming: bool
    num_changes: int
    match: Match


class StageKv:
    """Owner of one stage's running sequences. A group has `num_blocks` slots of `block_size` tokens, of them
    `ready` ones as in `BlockPool`.

    blocks   where they are and what holds them
    resting  the sequences that no request runs on
    """

    def __init__(
        self, groups: tuple[str, ...], num_blocks: int, block_size: int, ready: int | None = None
    ) -> None:
        self.groups = groups
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks = StageBlocks(groups, num_blocks, ready)
        self.resting = RestingSequences(self.blocks, len(groups), block_size)
        self._active: dict[Sequence, None] = {}
        self._promised: dict[Sequence, None] = {}
        """Running sequences that may hold fewer blocks than they were promised."""
        self._last: _LookUp | None = None
        """A request that is to join is looked up repeatedly."""

    @property
    def num_promised(self) -> int:
        """Blocks that running sequences were admitted for and do not hold yet."""
        lacking = {one: one.promised - len(one.blocks) for one in self._promised}
        self._promised = {one: None for one, count in lacking.items() if count > 0}
        return sum(lacking[one] for one in self._promised)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def cached(self, owner: str, prefix: Prefix) -> int:
        """Leading tokens of a prompt that `open` would find cached now. What rests under the owner's name has
        names that are found, so the search begins behind it."""
        own = self.resting.get(owner)
        cached = 0 if own is None else self._own_part(own, prefix, own.num_ready)
        return max(cached, self._reach(prefix, cached // self.block_size) * self.block_size)

    def num_cached(self, owner: str, prefix: Prefix) -> int:
        """How many whole blocks that is."""
        own = self.resting.get(owner)
        return self._reach(prefix, 0 if own is None else self._own_blocks(own, prefix, own.num_ready))

    def _reach(self, prefix: Prefix, num: int) -> int:
        """Leading blocks of a prompt that are found by their names, of which the first `num` are there."""
        most = (len(prefix.keys) - 1) // self.block_size
        while num < most and self.blocks.find(prefix.chain[num]) is not None:
            num += 1
        return num

    def find(self, owner: str, prefix: Prefix) -> tuple[int, int]:
        """What `cached` counts, and how many of the blocks that hold it running sequences hold too."""
        match = self._match(owner, prefix, False)
        return match.cached, sum(self.blocks.used[block] > 0 for block in match.blocks)

    def num_free_beside(self, owner: str, prefix: Prefix) -> int:
        """Blocks that are free beside what `open` finds: that may be cache, which counts as free so far."""
        return self.blocks.num_free - self.blocks.num_cache_of(self._match(owner, prefix, False).blocks)

    def fits(
        self, owner: str, prefix: Prefix, num_blocks: int, apart: int = 0, *, with_coming: bool = False
    ) -> bool:
        """Can a prompt be opened and grow to `num_blocks` now, evicting resting sequences if need be?

        What other prompts were promised, and `apart` blocks, are left alone. Blocks that are pending free do
        not count: they come back by themselves.
        """
        blocks = self._match(owner, prefix, with_coming).blocks
        used = sum(self.blocks.used[block] > 0 for block in blocks)
        return num_blocks - used <= self.blocks.num_free + self.blocks.num_idle - self.num_promised - apart

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
        chain = list(prefix.chain[: min(cached // self.block_size, num_ready)])
        sequence = Sequence(prefix.keys[:cached], chain, blocks, num_ready, promised=num_blocks)
        self.blocks.use(blocks)
        self._active[sequence] = self._promised[sequence] = None
        self.resting.drop(owner, after_step)
        self.blocks.unname(blocks[len(chain) :])  # the end of the last one will be written
        if is_fetching:
            cached = until
            sequence.keys = prefix.keys[:cached]
            is_grown = self.grow(sequence, cached)
            assert is_grown, "there are free blocks for what is fetched"
        return sequence, cached

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it blocks for `num_tokens` in all. False, and nothing has changed, while too few are free."""
        count = self.blocks_for(num_tokens) - sequence.num_blocks
        if count > self.blocks.num_free:
            return False
        if count > 0:
            sequence.blocks += self.blocks.allocate_used(count)
        return True

    def grow_all(self, sequences: Iterable[Sequence], counts: list[int]) -> bool:
        """So many more blocks for each of them: the same ones as if they grew one after the other. False, and
        nothing has changed, unless that many are free.
        """
        total = sum(counts)
        if total > self.blocks.num_free:
            return False
        new, first = self.blocks.allocate_used(total), 0
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.blocks += new[first : first + count]
            first += count
        return True

    def learn(self, sequence: Sequence, keys: Ints) -> None:
        """Reported steps have filled the positions of `keys`: full blocks may be shared from now on."""
        new = chain_on(sequence.chain, keys, self.block_size)
        first = len(sequence.chain)
        self.blocks.name(sequence.blocks[first : first + len(new)], new)
        sequence.chain += new
        sequence.keys = keys

    def park(self, owner: str, sequence: Sequence, keys: Ints, after_step: int | None) -> None:
        """The sequence rests: keep its positions with `keys` for a prompt that begins so."""
        del self._active[sequence]
        self._promised.pop(sequence, None)
        self.learn(sequence, keys)
        del sequence.chain[len(keys) // self.block_size :]
        used, sequence.blocks = sequence.blocks, sequence.blocks[: self.blocks_for(len(keys))]
        self.resting.park(owner, sequence, after_step)
        self.blocks.unuse(used, after_step)

    def discard(self, sequence: Sequence, after_step: int | None) -> None:
        """The sequence ends and nothing of it is kept."""
        del self._active[sequence]
        self._promised.pop(sequence, None)
        self.blocks.unuse(sequence.blocks, after_step)

    # -- what a prompt finds -------------------------------------------------------------------------

    def adopt(self, owner: str, prefix: Prefix) -> None:
        """From now on the beginning of this prompt rests under the owner's name: the whole blocks of it that
        are resident, and the names of all that may be brought. What else rested there is forgotten."""
        cached, blocks, num_ready = self._match(owner, prefix, True)
        whole, keys = cached // self.block_size, prefix.keys[: len(prefix.keys) - 1]
        chain = list(prefix.chain[: len(keys) // self.block_size])
        own = self.resting.get(owner)
        same = 0 if own is None else _common(own.chain, chain)
        if own is None or min(same, own.num_blocks) < whole:
            self.resting.rest(owner, keys, chain, blocks[:whole], num_ready)
        else:
            self.resting.retell(own, keys, chain, same)

    def _match(self, owner: str, prefix: Prefix, with_coming: bool) -> Match:
        """The longest resident prefix."""
        last, num_changes = self._last, self.blocks.num_changes
        if (
            last is None
            or last.num_changes != num_changes
            or last.prefix is not prefix
            or last.owner != owner
            or last.with_coming != with_coming
        ):
            match = self._look_up(owner, prefix, with_coming)
            last = self._last = _LookUp(owner, prefix, with_coming, num_changes, match)
        cached, blocks, num_ready = last.match
        return Match(cached, list(blocks), num_ready)

    def _look_up(self, owner: str, prefix: Prefix, with_coming: bool) -> Match:
        size, most = self.block_size, len(prefix.keys) - 1
        shared: list[int] = []
        find = self.blocks.find
        for name in prefix.chain[: most // size]:
            block = find(name)
            if block is None:
                break
            shared.append(block)
        own = self.resting.get(owner)
        if own is None:
            return Match(len(shared) * size, shared, len(shared))
        cached = self._own_part(own, prefix, own.num_coming if with_coming else own.num_ready)
        if cached <= len(shared) * size:
            return Match(len(shared) * size, shared, len(shared))
        blocks = own.blocks[: self.blocks_for(cached)]
        return Match(cached, blocks, min(own.num_ready, len(blocks)))

    def _own_part(self, own: Sequence, prefix: Prefix, num_held: int) -> int:
        """Leading tokens of a prompt in the first blocks of a resting sequence. The last of them may be in a
        block that others read too, and then it does not count."""
        size, most = self.block_size, len(prefix.keys) - 1
        num = self._own_blocks(own, prefix, num_held)
        start = num * size
        same = start if num_held <= num else start + common_prefix(own.keys[start:], prefix.keys[start:])
        cached = min(same, most, num_held * size)
        if cached % size and self.blocks.must_not_change(own.blocks[cached // size]):
            cached -= cached % size
        return cached

    def _own_blocks(self, own: Sequence, prefix: Prefix, num_held: int) -> int:
        """How many whole blocks that is."""
        most = min(num_held, len(own.chain), (len(prefix.keys) - 1) // self.block_size)
        if most and own.chain[most - 1] == prefix.chain[most - 1]:  # a name says what is before it too
            return most
        return min(common_prefix(own.keys, prefix.keys) // self.block_size, most)

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block is where its holders say."""
        owed = sum(max(sequence.promised - sequence.num_blocks, 0) for sequence in self._active)
        assert self.num_promised == owed, "what was promised is miscounted"
        self.blocks.check_integrity(self._active, self.resting.sequences)
        self.resting.check_integrity()


def _common(left: list[bytes], right: list[bytes]) -> int:
    """Length of the longest common prefix of two chains; names say what is before them too."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(left), len(right)))
