"""Sequences over tiny pools: whatever is opened, grown, shared, parked and evicted, no block is lost, and
what a sequence was given as cached is what it was said to be."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.core.facts import Ints
from antiphon.kv.sequences import Prefix, Sequence, common_prefix, prefix_of
from antiphon.kv.stage_kv import StageKv
from fakes.cache import check_cache_leaves
from fakes.readings import num_shared

SESSIONS = ("a", "b", "c")
READY = st.none() | st.integers(0, 12)
VALUES = st.lists(st.integers(0, 1), min_size=1, max_size=9)


def keys(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [((), (), 0), ((1, 2), (), 0), ((1, 2, 3), (1, 2), 2), ((1, 2, 3), (1, 9, 3), 1), ((4,), (4,), 1)],
)
def test_common_prefix(left: tuple[int, ...], right: tuple[int, ...], length: int) -> None:
    assert common_prefix(keys(*left), keys(*right)) == length


def prefix(*values: int, size: int = 2) -> Prefix:
    return prefix_of(keys(*values), size)


def parked(kv: StageKv, session: str, positions: Ints, after_step: int | None = None) -> None:
    num_blocks = kv.blocks_for(len(positions) + 1)
    sequence, _ = kv.open(session, prefix_of(np.append(positions, 99), kv.block_size), num_blocks, None)
    assert kv.grow(sequence, len(positions))
    kv.park(session, sequence, positions, after_step)
    kv.check_integrity()


def give_up(kv: StageKv, session: str, count: int) -> None:
    """Evict, with no tier below that would take a copy."""
    kv.blocks.take_back([block for run in kv.resting.evict(session, count) for block in run.blocks])


def test_a_prompt_that_waits_is_looked_up_anew_only_once_something_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kv, looked_up, look_up = StageKv(("kv",), 8, 2), list[str](), StageKv._look_up
    parked(kv, "a", keys(1, 2, 3, 4, 5))

    def counted(self: StageKv, owner: str, *how: Any) -> Any:
        looked_up.append(owner)
        return look_up(self, owner, *how)

    monkeypatch.setattr(StageKv, "_look_up", counted)
    waiting = prefix(1, 2, 3, 4, 9)
    for _ in range(10):
        assert kv.cached("a", waiting) == 4
        assert kv.fits("a", waiting, 3)
    assert looked_up == ["a"]
    give_up(kv, "a", 2)
    assert kv.cached("a", waiting) == 2
    assert not kv.fits("a", waiting, 9)
    assert looked_up == ["a", "a"]


def test_the_longest_equal_prefix_is_reused_with_its_blocks() -> None:
    kv = StageKv(("kv", "hidden"), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    sequence, cached = kv.open("a", prefix(1, 2, 3, 7, 8), 4, None)
    assert cached == 3
    assert kv.blocks.slots(sequence.blocks).tolist() == [[0, 1], [0, 1]]
    assert kv.grow(sequence, 5)
    assert kv.blocks.slots(sequence.blocks[2:]).tolist() == [[3], [3]]
    kv.check_integrity()


def test_of_a_prompt_that_is_wholly_cached_the_last_token_is_left() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    assert kv.open("a", prefix(1, 2, 3, 4), 3, None)[1] == 3
    kv.check_integrity()


def test_another_session_shares_whole_blocks_and_never_the_last_token() -> None:
    kv = StageKv(("kv", "hidden"), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    shares, cached = kv.open("b", prefix(1, 2, 3, 4, 5, 6), 4, None)
    assert (cached, kv.blocks.slots(shares.blocks).tolist()) == (4, [[0, 1], [0, 1]])
    assert kv.cached("c", prefix(1, 2, 3, 4)) == 2, "what is shared is not written, so its last token neither"
    assert kv.cached("c", prefix(1, 2, 3, 9, 5)) == 2
    assert kv.cached("c", prefix(9, 2, 3, 4, 5)) == 0, "equal blocks after something else are not equal"
    assert (num_shared(kv.blocks), kv.blocks.num_idle) == (2, 1)
    kv.check_integrity()


def test_what_a_running_sequence_has_filled_is_shared_too() -> None:
    kv = StageKv(("kv",), 8, 2)
    first, _ = kv.open("a", prefix(1, 2, 3, 4, 5), 3, None)
    assert kv.grow(first, 5)
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 0, "no step has been reported"
    kv.learn(first, keys(1, 2, 3))
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 2
    kv.discard(first, None)
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 0
    kv.check_integrity()


def test_the_own_partial_block_is_written_again_only_if_nobody_shares_it() -> None:
    kv = StageKv(("kv",), 8, 4)
    parked(kv, "a", keys(1, 2, 3, 4, 5, 6, 7, 8))
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 6
    other, _ = kv.open("b", prefix(1, 2, 3, 4, 5, 6, 7, 8, 9, size=4), 3, None)
    assert other.num_blocks == 2
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 4
    kv.discard(other, None)
    mine, cached = kv.open("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4), 2, None)
    assert cached == 6
    assert kv.cached("b", prefix(1, 2, 3, 4, 5, 6, 7, 8, 9, size=4)) == 4, "the second block has changed"
    assert mine.num_blocks == 2
    kv.check_integrity()


def test_a_shared_block_outlives_whoever_computed_it_and_waits_for_every_step() -> None:
    kv = StageKv(("kv",), 4, 2)
    parked(kv, "a", keys(1, 2))
    shares, cached = kv.open("b", prefix(1, 2, 3), 2, None)
    assert cached == 2
    kv.resting.drop("a", None)
    assert kv.blocks.num_free == 3
    kv.discard(shares, after_step=5)
    assert (kv.blocks.num_free, kv.blocks.num_pending_free) == (3, 1)
    kv.blocks.settle(5)
    assert kv.blocks.num_free == 4


def test_an_idle_block_that_a_step_of_another_names_waits_for_it_when_evicted() -> None:
    kv = StageKv(("kv",), 2, 2)
    parked(kv, "a", keys(1, 2))
    shares, _ = kv.open("b", prefix(1, 2, 3), 2, None)
    kv.discard(shares, after_step=5)
    following, _ = kv.open("c", prefix(8, 9, 7), 2, 5)
    give_up(kv, "a", 1)
    assert not kv.grow(following, 4)
    kv.blocks.settle(5)
    assert kv.grow(following, 4)


def test_a_sequence_grows_into_free_blocks_only() -> None:
    kv = StageKv(("kv",), 4, 1)
    parked(kv, "old", keys(1, 2))
    sequence, _ = kv.open("b", prefix(5, size=1), 2, None)
    assert not kv.grow(sequence, 3)
    assert (kv.blocks.num_idle, kv.resting.num_evicted_blocks, sequence.num_blocks) == (2, 0, 0)
    assert kv.grow(sequence, 2)
    assert kv.grow(sequence, 1), "it has more already"
    assert sequence.num_blocks == 2


def test_what_is_given_up_waits_for_its_steps() -> None:
    kv = StageKv(("kv",), 4, 1)
    parked(kv, "a", keys(1, 2), after_step=3)
    parked(kv, "b", keys(3, 4))
    sequence, _ = kv.open("c", prefix(5, size=1), 2, 3)
    give_up(kv, "a", 1)
    assert kv.cached("a", prefix(1, 2, size=1)) == 1
    assert not kv.grow(sequence, 1), "step 3 names the block"
    kv.blocks.settle(3)
    assert kv.grow(sequence, 1)
    assert kv.blocks.slots(sequence.blocks).tolist() == [[1]]
    kv.check_integrity()


def test_a_prompt_fits_beside_what_others_were_promised() -> None:
    kv = StageKv(("kv",), 6, 2)
    parked(kv, "old", keys(1, 2, 3))
    shares, _ = kv.open("a", prefix(1, 2, 9), 3, None)
    assert kv.blocks.num_idle == 1
    assert kv.fits("b", prefix(7, 8), 3), "six blocks: one in use, and two more are promised"
    assert not kv.fits("b", prefix(7, 8), 4)
    assert kv.fits("b", prefix(1, 2, 8), 4), "what is in use already is not needed again"
    assert not kv.fits("b", prefix(1, 2, 8), 4, apart=1)
    assert kv.grow(shares, 6)
    assert kv.fits("b", prefix(7, 8), 3)


def test_many_grow_at_once_by_the_blocks_that_each_would_get_in_turn() -> None:
    once, turns = (StageKv(("kv", "hidden"), 8, 2) for _ in range(2))
    many = [[kv.open(name, prefix(1), 3, None)[0] for name in "abc"] for kv in (once, turns)]
    assert once.grow_all(many[0], [1, 3, 2])
    assert all(turns.grow(one, 2 * count) for one, count in zip(many[1], (1, 3, 2), strict=True))
    at_once = [once.blocks.slots(one.blocks).tolist() for one in many[0]]
    assert at_once == [turns.blocks.slots(one.blocks).tolist() for one in many[1]]
    once.check_integrity()
    assert not once.grow_all(many[0], [1, 1, 1]), "two are left, and nobody gets one of them"
    assert once.blocks.num_free == 2


def test_what_was_left_as_cache_is_found_until_its_room_is_needed() -> None:
    kv = StageKv(("kv", "hidden"), 6, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    kv.resting.drop("a", None, as_cache=True)
    assert (kv.blocks.num_free, kv.blocks.num_cache, kv.blocks.num_idle) == (6, 2, 0), "the last is not full"
    assert not kv.resting.owners | kv.resting.away, "nobody's name is kept"
    found = prefix(1, 2, 3, 4, 5)
    assert (kv.cached("b", found), kv.num_free_beside("b", found)) == (4, 4)
    mine, cached = kv.open("b", found, 3, None)
    assert (cached, kv.blocks.num_free, kv.blocks.num_cache) == (4, 4, 0)
    kv.check_integrity()
    assert kv.grow(mine, 5)
    kv.park("b", mine, keys(1, 2, 3, 4, 5), None)
    kv.resting.drop("b", None, as_cache=True)
    other, _ = kv.open("c", prefix(9), 5, None)
    assert kv.grow(other, 8), "what is free anyway goes first"
    assert kv.cached("b", found) == 4
    assert kv.grow(other, 10), "and then the end of what was left"
    assert kv.cached("b", found) == 2
    kv.check_integrity()
    kv.discard(other, None)
    check_cache_leaves(kv)
    assert kv.cached("b", found) == 0


def test_cache_gives_way_before_more_memory_is_used() -> None:
    kv = StageKv(("kv",), 100, 2, ready=3)
    for name in "abcd":
        parked(kv, name, keys(ord(name), 1, 2))
        kv.resting.drop(name, None, as_cache=True)
    left = [name for name in "abcd" if kv.cached("e", prefix(ord(name), 1, 2))]
    assert left == ["c", "d"], "two of three ready blocks; the third was not full"
    assert kv.blocks.num_free == 100
    other, _ = kv.open("e", prefix(9), 100, None)
    assert kv.grow(other, 8), "what runs has all it needs"
    assert kv.blocks.num_cache == 0
    assert max(kv.blocks.slots(other.blocks)[0]) == 3
    kv.check_integrity()


def test_cache_that_was_left_first_leaves_first_unless_it_was_used_since() -> None:
    kv = StageKv(("kv",), 3, 2)
    for name, key in (("a", 1), ("b", 2), ("c", 3)):
        parked(kv, name, keys(key, key))
        kv.resting.drop(name, None, as_cache=True)
    again, _ = kv.open("a", prefix(1, 1, 1), 2, None)
    kv.park("a", again, keys(1, 1), None)
    kv.resting.drop("a", None, as_cache=True)
    other, _ = kv.open("d", prefix(9), 2, None)
    for size, left in ((2, [1, 3]), (4, [1]), (6, [])):
        assert kv.grow(other, size)
        assert [key for key in (1, 2, 3) if kv.cached("e", prefix(key, key, key))] == left


def test_cache_that_a_step_names_is_found_and_not_handed_out_before_it_is_done() -> None:
    kv = StageKv(("kv",), 2, 2)
    parked(kv, "a", keys(1, 2), after_step=5)
    kv.resting.drop("a", None, as_cache=True)
    assert (kv.blocks.num_free, kv.blocks.num_pending_free, kv.blocks.num_free_soon) == (1, 1, 2)
    assert kv.cached("b", prefix(1, 2, 3)) == 2
    other, _ = kv.open("c", prefix(9), 2, 5)
    assert not kv.grow(other, 4)
    kv.blocks.settle(5)
    kv.check_integrity()
    assert kv.grow(other, 4)
    assert kv.cached("b", prefix(1, 2, 3)) == 0


def test_content_that_another_block_holds_too_is_not_left_twice() -> None:
    kv = StageKv(("kv",), 4, 2)
    both = [kv.open(name, prefix(1, 2, 3), 2, None)[0] for name in "ab"]
    for name, one in zip("ab", both, strict=True):
        assert kv.grow(one, 2)
        kv.park(name, one, keys(1, 2), None)
    kv.resting.drop("a", None, as_cache=True)
    assert kv.blocks.num_cache == 0
    kv.resting.drop("b", None, as_cache=True)
    assert kv.blocks.num_cache == 1
    kv.check_integrity()


class Conversations(RuleBasedStateMachine):
    """Sequences come and go while steps are in flight; a model keeps who should hold what."""

    @initialize(
        groups=st.sampled_from([("kv",), ("kv", "hidden")]),
        blocks=st.integers(3, 12),
        ready=READY,
    )
    def begin(self, groups: tuple[str, ...], blocks: int, ready: int | None) -> None:
        self.kv = StageKv(groups, blocks, 2, ready)
        self.active: list[tuple[str, Sequence, Ints, int, int]] = []
        self.contents: dict[tuple[int, int, int], tuple[int, bytes]] = {}
        """By group, slot and place in the block: the position computed there, and all keys up to it."""
        self.step = 0
        self.settled = 0

    @property
    def busy(self) -> int | None:
        return self.step if self.step > self.settled else None

    @rule(session=st.sampled_from(SESSIONS), values=VALUES, with_coming=st.booleans())
    def open(self, session: str, values: list[int], with_coming: bool) -> None:
        prompt, most, found = keys(*values), len(values) + 4, prefix(*values)
        num_blocks = self.kv.blocks_for(most)
        if not self.kv.fits(session, found, num_blocks, with_coming=with_coming):
            return
        expected = self.kv.cached(session, found)
        sequence, cached = self.kv.open(session, found, num_blocks, self.busy, with_coming=with_coming)
        assert cached >= expected if with_coming else cached == expected
        assert 0 <= cached < len(prompt)
        assert sequence.num_blocks == self.kv.blocks_for(cached)
        assert self.kv.resting.get(session) is None, "one that runs rests no more"
        self.check_contents(sequence, prompt[: min(cached, sequence.num_ready * 2)])
        self.active.append((session, sequence, prompt, most, cached))

    def check_contents(self, sequence: Sequence, expected: Ints) -> None:
        slots = self.kv.blocks.slots(sequence.blocks)
        for position, group in product(range(len(expected)), range(len(slots))):
            held = self.contents[group, slots[group, position // 2], position % 2]
            assert held == (position, expected[: position + 1].tobytes())

    def write(self, sequence: Sequence, held: Ints, start: int) -> None:
        others = {block for _, other, *_ in self.active if other is not sequence for block in other.blocks}
        slots = self.kv.blocks.slots(sequence.blocks)
        for position in range(start, len(held)):
            assert sequence.blocks[position // 2] not in others, "a shared block is written"
            for group, slot in enumerate(slots[:, position // 2]):
                self.contents[group, slot, position % 2] = (position, held[: position + 1].tobytes())

    def may_learn(self, sequence: Sequence) -> bool:
        """Is all there that a reported step has read?"""
        return True

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.active) - 1))
        session, sequence, prompt, most, have = self.active[at]
        size = data.draw(st.integers(have, most))
        before = sequence.num_blocks
        free = self.kv.blocks.num_free
        if not self.kv.grow(sequence, size):
            assert self.kv.blocks_for(size) - before > free
            return
        assert sequence.num_blocks == max(before, self.kv.blocks_for(size))
        held = np.concatenate([prompt, keys(0, 1, 0, 1)])[:size]
        self.write(sequence, held, have)
        self.active[at] = (session, sequence, held if size > len(prompt) else prompt, most, size)
        if data.draw(st.booleans()) and self.may_learn(sequence):
            self.kv.learn(sequence, held)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def grow_all(self, data: st.DataObject) -> None:
        """Many at once have what they would have one after the other, or nothing."""
        counts = [data.draw(st.integers(0, 2)) for _ in self.active]
        before, free = [list(one[1].blocks) for one in self.active], self.kv.blocks.num_free
        was_done = self.kv.grow_all([one[1] for one in self.active], counts)
        assert was_done == (sum(counts) <= free)
        for (_, sequence, *_), held, count in zip(self.active, before, counts, strict=True):
            assert sequence.blocks[: len(held)] == held
            assert sequence.num_blocks == len(held) + was_done * count

    @precondition(lambda self: self.active)
    @rule(data=st.data(), kept=st.integers(0, 20))
    def park(self, data: st.DataObject, kept: int) -> None:
        at = data.draw(st.integers(0, len(self.active) - 1))
        session, sequence, prompt, _, have = self.active.pop(at)
        have = have if self.may_learn(sequence) else len(sequence.chain) * 2
        self.kv.park(session, sequence, prompt[: min(kept, have)], self.busy)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        sequence = self.active.pop(data.draw(st.integers(0, len(self.active) - 1)))[1]
        self.kv.discard(sequence, self.busy)

    @rule(session=st.sampled_from(SESSIONS))
    def touch(self, session: str) -> None:
        self.kv.resting.touch(session)
        assert session not in self.kv.resting.owners or list(self.kv.resting.owners)[-1] == session

    @rule(session=st.sampled_from(SESSIONS), as_cache=st.booleans())
    def drop(self, session: str, as_cache: bool) -> None:
        before, spare = self.kv.blocks.num_cache, self.kv.blocks.num_spare
        self.kv.resting.drop(session, None if as_cache else self.busy, as_cache=as_cache)
        assert as_cache or self.kv.blocks.num_cache == before
        assert self.kv.blocks.num_spare == spare, "what is cache can be had like all that is free"

    @rule()
    def launch(self) -> None:
        self.step += 1

    @precondition(lambda self: self.step > self.settled)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.settled = data.draw(st.integers(self.settled + 1, self.step))
        self.kv.blocks.settle(self.settled)

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity()
        for session in SESSIONS:
            resting = self.kv.resting.get(session)
            if resting is not None:
                self.check_contents(resting, resting.keys[: self.kv.resting.resident_tokens(resting)])
        self.check_pending()

    def check_pending(self) -> None:
        if self.settled == self.step:
            assert self.kv.blocks.num_pending_free == 0

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.blocks.settle(self.step)
        for _, sequence, *_ in self.active:
            self.kv.discard(sequence, None)
        for session in SESSIONS:
            self.kv.resting.drop(session, None, as_cache=True)
        check_cache_leaves(self.kv)


TestConversations: Any = Conversations.TestCase
TestConversations.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
