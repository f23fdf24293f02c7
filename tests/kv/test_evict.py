"""What resting sequences give up, and blocks that are lent to copies meanwhile."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from antiphon.kv.blocks import ABSENT
from antiphon.kv.sequences import Arrival, Evicted, Sequence, prefix_of
from antiphon.kv.stage_kv import StageKv
from fakes.readings import num_shared
from kv.test_sequences import READY, SESSIONS, VALUES, Conversations, Ints, give_up, keys, parked, prefix

GROUPS = st.sampled_from([("kv",), ("low", "high"), ("low", "high", "hidden")])
Slots = set[tuple[int, int]]
"""(group, slot)"""


def test_a_session_gives_up_its_end_and_the_partial_block_is_lost() -> None:
    kv = StageKv(("kv", "hidden"), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    evicted = kv.resting.evict("a", 2)
    names = prefix(1, 2, 3, 4).chain
    assert evicted == [Evicted(("a",), 1, [1], [names[1]])]
    assert (kv.blocks.num_free, kv.blocks.num_pending_free, kv.blocks.num_idle) == (6, 1, 1)
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6)) == 4, "what is being copied is still there"
    kv.blocks.take_back([1])
    assert (kv.blocks.num_free, kv.cached("a", prefix(1, 2, 3, 4, 5, 6))) == (7, 2)
    assert kv.resting.num_evicted_blocks == 2
    kv.check_integrity()
    assert [run.blocks for run in kv.resting.evict("a", 9)] == [[0]]
    assert not kv.resting.owners
    assert kv.resting.evict("a", 1) == kv.resting.evict("nobody", 1) == []


def test_a_shared_block_goes_once_it_ends_everybody_who_holds_it() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    parked(kv, "b", keys(1, 2, 5, 6))
    assert [one.owners for one in kv.resting.evict("a", 9)] == [("a",)]
    assert [(one.owners, one.start) for one in kv.resting.evict("b", 9)] == [(("b",), 1), (("a", "b"), 0)]
    assert not kv.resting.owners
    kv.check_integrity()


def given_up(kv: StageKv, owner: str, count: int, groups: tuple[int, ...] | None = None) -> None:
    """It counts as free soon from the first."""
    evicted = kv.resting.evict(owner, count, groups)
    before = kv.blocks.num_free_soon
    kv.blocks.take_back([block for run in evicted for block in run.blocks])
    assert kv.blocks.num_free_soon == before


@pytest.mark.parametrize("groups", [None, (1,)])
def test_what_is_to_be_copied_nowhere_is_free_at_once(groups: tuple[int, ...] | None) -> None:
    kv = StageKv(("kv", "hidden"), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    parked(kv, "b", keys(1, 2, 5, 6))
    given_up(kv, "a", 1, groups)
    assert kv.resting.num_evicted_blocks == 1
    assert kv.blocks.num_free == 6 - (groups is not None)
    kv.check_integrity()
    given_up(kv, "a", 9)
    given_up(kv, "b", 9)
    assert (kv.blocks.num_free, kv.blocks.num_pending_free) == (8, 0)
    kv.check_integrity()


def test_what_is_being_copied_is_free_once_that_is_done_though_no_copy_is_made_of_it() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    kv.blocks.lend([0])
    given_up(kv, "a", 9)
    assert (kv.blocks.num_free, kv.blocks.num_free_soon) == (7, 8)
    kv.check_integrity()
    kv.blocks.take_back([0])
    assert kv.blocks.num_free == 8


def test_content_that_is_resident_twice_is_found_as_long_as_either_is() -> None:
    for gone in ("a", "b"):
        kv = StageKv(("kv",), 8, 2)
        both = [kv.open(owner, prefix(1, 2, 3), 2, None)[0] for owner in "ab"]
        for owner, sequence in zip("ab", both, strict=True):
            assert kv.grow(sequence, 2)
            kv.park(owner, sequence, keys(1, 2), None)
        kv.check_integrity()
        kv.resting.drop(gone, None)
        kv.check_integrity()
        assert kv.cached("c", prefix(1, 2, 3)) == 2
        assert kv.blocks.owners_of(prefix(1, 2, 3).chain[0]) == [*kv.resting.owners]


def test_what_a_running_sequence_holds_stays() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    running, cached = kv.open("b", prefix(1, 2, 3, 4, 5), 3, None)
    assert cached == 4
    assert kv.resting.evict("a", 9) == []
    assert all(kv.blocks.used[block] for block in running.blocks)
    kv.check_integrity()


def test_a_lent_block_is_not_written_again() -> None:
    kv = StageKv(("kv",), 8, 4)
    parked(kv, "a", keys(1, 2, 3, 4, 5, 6, 7, 8))
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 6
    kv.blocks.lend([1])
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 4
    kv.blocks.take_back([1])
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 6


def test_fetched_blocks_follow_the_full_ones_and_have_no_names_yet() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3))
    sequence, cached = kv.open("a", prefix(1, 2, 3, 4, 5, 6, 7), 4, None, until=6)
    assert cached == 6
    assert kv.blocks.slots(sequence.blocks).tolist() == [[0, 2, 3]]
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 2
    kv.check_integrity()
    kv.learn(sequence, keys(1, 2, 3, 4, 5, 6, 7))
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 4


def test_a_shared_block_stays_for_the_sake_of_one_that_is_to_keep_it() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    parked(kv, "b", keys(1, 2))
    (run,) = kv.resting.evict("a", 9, keep={"b"})
    assert (run.owners, run.start) == (("a",), 1)
    assert kv.cached("b", prefix(1, 2, 9)) == 2
    (run,) = kv.resting.evict("a", 9)
    assert run.owners == ("b", "a") or run.owners == ("a", "b")
    kv.check_integrity()


def test_evicted_kv_is_known_by_name_and_grows_back() -> None:
    kv = StageKv(("kv", "hidden"), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    give_up(kv, "a", 9)
    assert (list(kv.resting.owners), list(kv.resting.away), kv.blocks.num_free) == ([], ["a"], 4)
    arrival = kv.resting.extend("a", 9)
    assert arrival is not None
    assert (arrival.start, len(arrival.blocks), arrival.groups) == (0, 2, None)
    assert tuple(arrival.names) == prefix(1, 2, 3, 4).chain
    assert kv.resting.extend("a", 1) is None, "nothing else is known by name"
    assert (list(kv.resting.owners), kv.cached("a", prefix(1, 2, 3, 4, 5))) == (["a"], 0)
    kv.check_integrity()
    kv.resting.arrived(arrival, is_there=True)
    assert kv.cached("a", prefix(1, 2, 3, 4, 5)) == kv.cached("b", prefix(1, 2, 3, 4, 5)) == 4
    kv.check_integrity()


def test_what_is_given_up_while_it_comes_and_is_brought_again_holds_up_nothing() -> None:
    """The last block goes while all are filled, and another is filled in its place."""
    kv = StageKv(("kv",), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5, 6))
    give_up(kv, "a", 9)
    first = kv.resting.extend("a", 9)
    assert first is not None
    kv.blocks.lend(first.blocks)
    kv.resting.evict("a", 1)
    second = kv.resting.extend("a", 9)
    assert second is not None
    assert (len(first.blocks), second.start, len(second.blocks)) == (3, 2, 1)
    assert first.blocks[-1] not in second.blocks
    kv.resting.arrived(first, is_there=True)
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 7)) == 4
    kv.blocks.take_back(first.blocks)
    kv.resting.arrived(second, is_there=True)
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 7)) == 6
    kv.check_integrity()


def test_what_did_not_arrive_is_given_up_with_what_comes_after() -> None:
    kv = StageKv(("kv",), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5, 6))
    give_up(kv, "a", 2)
    first, second = kv.resting.extend("a", 1), kv.resting.extend("a", 1)
    assert first is not None
    assert second is not None
    kv.resting.arrived(first, is_there=False)
    kv.resting.arrived(second, is_there=True)
    assert (kv.blocks.num_free, kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 7))) == (3, 2)
    kv.check_integrity()


def test_a_group_is_given_up_alone_and_comes_back_alone() -> None:
    kv = StageKv(("low", "high"), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    evicted = kv.resting.evict("a", 2, (1,))
    assert [(run.start, run.names, run.groups) for run in evicted] == [
        (1, [prefix(1, 2, 3, 4).chain[1]], (1,))
    ]
    kv.blocks.take_back([block for run in evicted for block in run.blocks])
    assert (kv.blocks.num_free, kv.resting.num_evicted_blocks) == (2, 2), (
        "the partial block is lost in all groups"
    )
    assert kv.cached("a", prefix(1, 2, 3, 4, 5)) == 2
    kv.check_integrity()
    arrival = kv.resting.extend("a", 9)
    assert arrival is not None
    assert (arrival.start, arrival.groups) == (1, (1,))
    kv.resting.arrived(arrival, is_there=True)
    assert kv.cached("a", prefix(1, 2, 3, 4, 5)) == 4
    (run,) = kv.resting.evict("a", 1, (1, 0))
    assert (run.start, run.groups) == (1, None), "all groups are the whole block"
    kv.check_integrity()


def test_a_block_without_a_group_leaves_with_the_others() -> None:
    kv = StageKv(("low", "high"), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    for run in kv.resting.evict("a", 2, (1,)):
        kv.blocks.take_back(run.blocks)
    assert [(run.start, run.groups) for run in kv.resting.evict("a", 1, (0,))] == [(1, (0,))]
    assert [(run.start, run.groups) for run in kv.resting.evict("a", 1)] == [(0, (0,))]
    assert list(kv.resting.away) == ["a"]
    kv.check_integrity()


def test_a_block_that_is_being_copied_keeps_its_groups_together() -> None:
    """The copy reads its slots where they are."""
    kv = StageKv(("low", "high"), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    kv.blocks.lend([1])
    assert kv.resting.evict("a", 2, (1,)) == []
    kv.blocks.take_back([1])
    assert len(kv.resting.evict("a", 2, (1,))) == 2


def test_blocks_are_free_soon_where_every_group_of_them_is() -> None:
    kv = StageKv(("low", "high"), 4, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    blocks = kv.blocks
    (run,) = kv.resting.evict("a", 1, (1,))
    assert (blocks.num_free, blocks.num_pending_free, blocks.num_free_soon, blocks.num_idle) == (2, 1, 2, 1)
    kv.blocks.take_back(run.blocks)
    assert (blocks.num_free, blocks.num_pending_free, blocks.num_free_soon, blocks.num_idle) == (2, 0, 2, 2)


def test_a_prompt_takes_the_name_that_its_beginning_rests_under() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    kv.adopt("b", prefix(1, 2, 3, 4, 6, 7, 8))
    assert num_shared(kv.blocks) == 2
    b = kv.resting.get("b")
    assert b is not None
    assert (b.num_ready, tuple(b.chain)) == (2, prefix(1, 2, 3, 4, 6, 7).chain)
    kv.adopt("b", prefix(1, 2, 9, 9, 9))
    assert (b.num_ready, tuple(b.chain)) == (1, prefix(1, 2, 9, 9).chain)
    kv.adopt("b", prefix(5, 5, 5))
    assert (list(kv.resting.owners), list(kv.resting.away)) == (["a"], ["b"])
    kv.check_integrity()


def test_a_sequence_goes_by_another_name() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    parked(kv, "b", keys(7, 8))
    kv.resting.rename("a", "b", keys(1, 2, 3))
    assert (list(kv.resting.owners), kv.blocks.num_free, kv.resting.held_tokens("b")) == (["b"], 6, 3)
    assert kv.cached("b", prefix(1, 2, 3, 4)) == 3
    kv.resting.rename("nobody", "b", keys())
    assert kv.resting.held_tokens("b") == 3
    kv.check_integrity()


class Lent(Conversations):
    """Blocks are evicted, copied, brought back and taken back while sequences come and go. A model knows what
    every slot holds, and which slots copies touch."""

    @initialize(groups=GROUPS, blocks=st.integers(3, 12), ready=READY)
    def begin(self, groups: tuple[str, ...], blocks: int, ready: int | None) -> None:
        super().begin(groups, blocks, ready)
        self.lent: list[tuple[int, Slots]] = []
        """Blocks that copies from the device read, and the slots that they had."""
        self.coming: list[tuple[Arrival, Slots]] = []
        """Copies to the device, in the order in which they will be over."""
        self.named: dict[bytes, Ints] = {}

    @property
    def touched(self) -> Slots:
        """By copies under way."""
        return {place for _, slots in (*self.lent, *self.coming) for place in slots}

    def slots_of(self, block: int, groups: tuple[int, ...] | None = None) -> Slots:
        slots = self.kv.blocks.slots([block])[:, 0].tolist()
        return {(g, at) for g, at in enumerate(slots) if at != ABSENT and (groups is None or g in groups)}

    def open(self, session: str, values: list[int], with_coming: bool) -> None:
        self.name(values)
        super().open(session, values, with_coming)

    def name(self, values: list[int]) -> None:
        """What names of the prompt mean, and those of what it may draw."""
        longest = keys(*values, 0, 1, 0, 1)
        chain = prefix_of(longest, 2).chain
        self.named |= {name: longest[: 2 * index + 2] for index, name in enumerate(chain)}

    def write(self, sequence: Sequence, held: Ints, start: int) -> None:
        super().write(sequence, held, start)
        blocks = sequence.blocks[start // 2 : self.kv.blocks_for(len(held))] if start < len(held) else []
        written = {place for block in blocks for place in self.slots_of(block)}
        assert written.isdisjoint(self.touched), "a block is written while it is copied"

    def may_learn(self, sequence: Sequence) -> bool:
        return not any(set(sequence.blocks) & set(arrival.blocks) for arrival, _ in self.coming)

    def fill(self, names: list[bytes], blocks_slots: list[Slots]) -> None:
        """The copy lands."""
        for name, places in zip(names, blocks_slots, strict=True):
            held = self.named[name]
            for (group, slot), position in product(places, (len(held) - 2, len(held) - 1)):
                self.contents[group, slot, position % 2] = (position, held[: position + 1].tobytes())

    @rule(session=st.sampled_from(SESSIONS), values=VALUES)
    def rest(self, session: str, values: list[int]) -> None:
        """One request from its joining to its end."""
        num_before = len(self.active)
        self.open(session, values, with_coming=False)
        if len(self.active) == num_before:
            return
        _, sequence, prompt, _, have = self.active.pop()
        if not self.kv.grow(sequence, len(prompt)):
            self.kv.discard(sequence, self.busy)
            return
        self.write(sequence, prompt, have)
        self.kv.park(session, sequence, prompt, self.busy)

    @rule(
        session=st.sampled_from(SESSIONS),
        count=st.integers(1, 4),
        keep=st.sets(st.sampled_from(SESSIONS)),
        is_copied=st.booleans(),
    )
    def evict(self, session: str, count: int, keep: set[str], is_copied: bool) -> None:
        others = {name: self.kv.resting.get(name) for name in keep - {session}}
        held = {name: one.num_blocks for name, one in others.items() if one is not None}
        before = self.kv.blocks.num_free_soon
        evicted = self.kv.resting.evict(session, count, keep=keep)
        assert before <= self.kv.blocks.num_free_soon <= before + count
        if is_copied:
            self.take(evicted)
        else:
            now = self.kv.blocks.num_free_soon
            self.kv.blocks.take_back([block for run in evicted for block in run.blocks])
            assert self.kv.blocks.num_free_soon == now
        for name, num_blocks in held.items():
            kept = self.kv.resting.get(name)
            assert kept is not None
            assert kept.num_blocks == num_blocks

    @precondition(lambda self: not self.coming)
    @rule()
    def evict_all(self) -> None:
        """What only resting sequences hold can be had, whatever running ones hold of them."""
        before = -1
        while before != self.kv.resting.num_evicted_blocks:
            before = self.kv.resting.num_evicted_blocks
            for session in (*self.kv.resting.owners,):
                self.take(self.kv.resting.evict(session, 9))
        assert self.kv.blocks.num_idle == 0

    @rule(session=st.sampled_from(SESSIONS), count=st.integers(1, 4), data=st.data())
    def evict_groups(self, session: str, count: int, data: st.DataObject) -> None:
        every = range(len(self.kv.groups))
        groups = tuple(sorted(data.draw(st.sets(st.sampled_from(every), min_size=1))))
        before = self.kv.resting.num_evicted_blocks
        evicted = self.kv.resting.evict(session, count, groups)
        assert sum(len(run.blocks) for run in evicted) <= self.kv.resting.num_evicted_blocks - before <= count
        for run in evicted:
            assert run.groups is None or set(run.groups) <= set(groups) or len(groups) == len(every)
        self.take(evicted)

    def take(self, evicted: list[Evicted]) -> None:
        """They hold what their names say, in the groups that were given up."""
        for run in evicted:
            assert run.names == self.chain_of(run)
            for block, name in zip(run.blocks, run.names, strict=True):
                slots, held = self.slots_of(block), self.named[name]
                wanted = range(len(self.kv.groups)) if run.groups is None else run.groups
                assert sorted(group for group, _ in slots) == sorted(wanted)
                for group, slot in slots:
                    assert self.contents[group, slot, 1] == (len(held) - 1, held.tobytes())
                self.lent.append((block, slots))

    def chain_of(self, run: Evicted) -> list[bytes]:
        sequence = self.kv.resting.get(run.owners[0])
        assert sequence is not None
        return sequence.chain[run.start : run.start + len(run.blocks)]

    @rule(session=st.sampled_from(SESSIONS))
    def lend(self, session: str) -> None:
        """As if they were written down early."""
        sequence = self.kv.resting.get(session)
        if sequence is not None:
            blocks = sequence.blocks[: min(sequence.num_ready, len(sequence.chain))]
            self.kv.blocks.lend(blocks)
            self.lent.extend((block, self.slots_of(block)) for block in blocks)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        block, _ = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        self.kv.blocks.take_back([block])

    @rule(session=st.sampled_from(SESSIONS), values=VALUES)
    def adopt(self, session: str, values: list[int]) -> None:
        self.name(values)
        found = prefix(*values)
        assert self.kv.cached(session, found) == self.kv.find(session, found)[0]
        before = self.kv.cached(session, found) // 2
        self.kv.adopt(session, found)
        sequence = self.kv.resting.get(session)
        assert sequence is not None
        assert tuple(sequence.chain) == found.chain[: (len(values) - 1) // 2]
        assert sequence.num_coming >= before
        assert self.kv.cached(session, found) // 2 == before

    @rule(session=st.sampled_from(SESSIONS), count=st.integers(1, 4))
    def extend(self, session: str, count: int) -> None:
        sequence = self.kv.resting.get(session)
        start = 0 if sequence is None else sequence.num_coming
        arrival = self.kv.resting.extend(session, count)
        if arrival is None:
            return
        assert sequence is not None
        assert sequence is arrival.sequence
        assert arrival.start == start
        assert len(arrival.blocks) <= count
        assert arrival.names == sequence.chain[start : sequence.num_coming]
        slots = {place for block in arrival.blocks for place in self.slots_of(block, arrival.groups)}
        assert slots.isdisjoint(self.touched), "a slot is filled that a copy touches"
        for (group, slot), place in product(slots, (0, 1)):
            self.contents[group, slot, place] = (-1, b"")
        self.kv.blocks.lend(arrival.blocks)
        self.coming.append((arrival, slots))

    @precondition(lambda self: self.coming)
    @rule(is_there=st.booleans())
    def arrive(self, is_there: bool) -> None:
        arrival, _ = self.coming.pop(0)
        if is_there:
            places = [self.slots_of(block, arrival.groups) for block in arrival.blocks]
            self.fill(arrival.names, places)
        self.kv.resting.arrived(arrival, is_there)
        self.kv.blocks.take_back(arrival.blocks)
        if not is_there:
            broken = [one for one in self.active if set(one[1].blocks) & set(arrival.blocks)]
            for one in broken:
                self.active.remove(one)
                self.kv.discard(one[1], self.busy)

    @rule(session=st.sampled_from(SESSIONS), other=st.sampled_from(SESSIONS), kept=st.integers(0, 9))
    def rename(self, session: str, other: str, kept: int) -> None:
        sequence = self.kv.resting.get(session)
        if session == other or sequence is None:
            return
        known = sequence.keys[:kept]
        ready = min(self.kv.resting.resident_tokens(sequence), len(known))
        self.kv.resting.rename(session, other, known)
        renamed = self.kv.resting.get(other)
        assert renamed is not None
        assert self.kv.resting.get(session) is None
        assert self.kv.resting.resident_tokens(renamed) == ready
        assert len(renamed.chain) == len(known) // 2

    def check_pending(self) -> None:
        free = [
            set(pool._free) | {at for _, slots in pool._pending for at in slots}
            for pool in self.kv.blocks._pools
        ]
        assert not any(slot in free[group] for group, slot in self.touched), (
            "a slot is free while it is copied"
        )
        if self.settled == self.step:
            num_lent = [sum(g == group for g, _ in self.touched) for group in range(len(self.kv.groups))]
            assert self.kv.blocks.num_pending_free <= max(num_lent)
        assert self.kv.blocks.num_free <= self.kv.blocks.num_free_soon <= self.kv.blocks.num_spare
        assert self.kv.blocks.num_idle >= 0

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        while self.coming:
            self.arrive(is_there=False)
        self.kv.blocks.take_back([block for block, _ in self.lent])
        super().teardown()


TestLent: Any = Lent.TestCase
TestLent.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
