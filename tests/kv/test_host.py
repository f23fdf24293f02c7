"""The host tier: copies found by what they hold, held by owners, pinned by copies under way."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.kv.blocks import ABSENT
from antiphon.kv.host import HostCopy, HostTier
from fakes.readings import places

OWNERS = ("a", "b", "c")
CHAINS = {"a": [b"0", b"1", b"2", b"3"], "b": [b"0", b"1", b"x", b"y"], "c": [b"z"]}


def written(
    host: HostTier, owner: str, chain: list[bytes], groups: tuple[int, ...] | None = None
) -> list[HostCopy]:
    copies: list[HostCopy] = []
    for index, name in enumerate(chain):
        lacking = host.lacks(name, groups)
        if lacking:
            copy = host.begin(name, lacking)
            host.hold(owner, index, copy)
            host.landed([copy], lacking)
            host.unpin([copy])
        found = host.find(name)
        assert found is not None
        host.hold(owner, index, found)
        copies.append(found)
    host.check_integrity()
    return copies


def test_what_was_counted_as_copied_stays_so_until_a_copy_is_gone() -> None:
    host = HostTier(2, 8)
    chain = CHAINS["a"]
    written(host, "a", chain[:1])
    host.begin(chain[1], (0,))
    assert host.num_copied(chain) == 1, "the second lacks a group"
    assert host.num_copied(chain, 1) == 1
    host = HostTier(2, 8)
    written(host, "a", chain)
    assert (host.num_copied(chain), host.num_copied(chain, 4), host.num_gone) == (4, 4, 0)
    host.evict("a", 1)
    assert (host.num_copied(chain), host.num_gone) == (3, 1)


def test_a_run_ends_where_nothing_is_ready() -> None:
    host = HostTier(2, 8)
    written(host, "a", CHAINS["a"])
    late = host.begin(b"late")
    host.hold("a", 4, late)
    assert [copy.name for copy in host.run_of([b"0", b"1", b"late"])] == [b"0", b"1"]
    assert host.run_of([b"1", b"2"])[0].slots != host.run_of([b"2"])[0].slots
    assert host.run_of([b"none"]) == []
    assert (host.num_free, host.num_used) == (3, 5)


def test_a_copy_may_have_some_groups_only_and_get_the_others_later() -> None:
    host = HostTier(3, 4)
    (copy,) = written(host, "c", CHAINS["c"], (1,))
    assert (copy.slots, host.num_free) == ([ABSENT, 0, ABSENT], 3)
    assert host.lacks(b"z") == (0, 2)
    assert host.lacks(b"z", (1, 2)) == (2,)
    assert host.lacks(b"other", (1,)) == (1,)
    assert host.run_of([b"z"]) == []
    assert host.run_of([b"z"], (1,)) == [copy]
    assert host.begin(b"z", (0, 2)) is copy
    assert host.lacks(b"z") == (), "the others are on their way"
    assert host.run_of([b"z"]) == []
    host.landed([copy], (0, 2))
    host.unpin([copy])
    assert host.run_of([b"z"]) == [copy]
    host.check_integrity()
    host.forget("c")
    assert host.num_free == 4


def test_a_block_is_free_where_every_group_of_it_is() -> None:
    host = HostTier(2, 2)
    written(host, "a", [b"0"], (0,))
    written(host, "b", [b"x"], (1,))
    assert host.num_free == 1
    assert host.evict("a", 1) == 0, "group 1 has no more room than before"
    assert host.num_free == 1
    assert host.evict("b", 1) == 1
    assert host.num_free == 2


def test_what_two_hold_stays_until_both_let_go() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    written(host, "b", CHAINS["b"])
    assert host.num_used == 6
    host.forget("a")
    assert (host.num_used, list(host.owners)) == (4, ["b"])
    assert len(host.run_of(CHAINS["a"])) == 2
    host.forget("b")
    assert host.num_free == 8


def test_the_last_copies_go_first_and_shared_ones_free_nothing() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    written(host, "b", CHAINS["b"])
    assert host.evict("a", 1) == 1
    assert places(host, "a") == [0, 1, 2]
    assert host.evict("a", 9) == 1
    assert list(host.owners) == ["b"]
    assert host.evict("b", 9) == 4
    assert host.num_free == 8
    assert host.evict("b", 1) == 0


def test_a_pinned_copy_is_free_once_nothing_reads_it() -> None:
    host = HostTier(1, 4)
    copies = written(host, "c", CHAINS["c"])
    host.pin(copies)
    assert host.evict("c", 1) == 1
    assert (host.num_free, host.num_leaving, host.find(b"z")) == (3, 1, None)
    host.check_integrity()
    host.unpin(copies)
    assert (host.num_free, host.num_leaving) == (4, 0)


def test_another_past_gives_up_what_it_does_not_share() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    host.rest("a", [b"0", b"1"])
    assert places(host, "a") == [0, 1, 2, 3], "the device may hold less than there is"
    host.rest("a", CHAINS["b"])
    assert places(host, "a") == [0, 1]
    host.rest("nobody", [b"0"])
    host.check_integrity()


def test_another_name_takes_over_what_is_held() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    written(host, "c", CHAINS["c"])
    host.rename("a", "c")
    assert (list(host.owners), places(host, "c"), host.num_used) == (["c"], [0, 1, 2, 3], 4)
    host.rename("nobody", "c")
    assert host.num_held("c") == 4, "there was nothing to take over"
    host.rename("c", "c")
    assert host.num_held("c") == 4
    host.check_integrity()


def test_what_is_lost_is_lost_for_all() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    copies = written(host, "b", CHAINS["b"])
    host.lose(copies[1:2])
    assert (places(host, "a"), places(host, "b")) == ([0, 2, 3], [0, 2, 3])
    assert len(host.run_of(CHAINS["a"])) == 1
    host.check_integrity()
    host.lose(copies)
    assert list(host.owners) == ["a"]
    host.check_integrity()


def test_least_recently_used_first() -> None:
    host = HostTier(1, 8)
    for owner in OWNERS:
        written(host, owner, CHAINS[owner])
    host.touch("a")
    host.touch("nobody")
    assert list(host.owners) == ["b", "c", "a"]


class Copies(RuleBasedStateMachine):
    """Owners write, read, drop, rename and lose; the ledger agrees with itself after each step, and no slot
    that a copy touches is free."""

    @initialize(blocks=st.integers(0, 6), groups=st.integers(1, 3))
    def begin(self, blocks: int, groups: int) -> None:
        self.host = HostTier(groups, blocks)
        self.groups = tuple(range(groups))
        self.under_way: list[tuple[list[HostCopy], tuple[int, ...] | None]] = []
        """Copies and the groups that are written; None: they are read."""
        self.wanted: dict[str, list[bytes]] = {}
        """The past of each owner, as far as the host was told."""

    @rule(owner=st.sampled_from(OWNERS), start=st.integers(0, 3), data=st.data())
    def write(self, owner: str, start: int, data: st.DataObject) -> None:
        groups = tuple(sorted(data.draw(st.sets(st.sampled_from(self.groups), min_size=1))))
        self.rest(owner, owner)
        for index, name in list(enumerate(CHAINS[owner]))[start:]:
            lacking = self.host.lacks(name, groups)
            if lacking and self.host.num_free:
                before = self.host.num_free
                copy = self.host.begin(name, lacking)
                assert before - 1 <= self.host.num_free <= before
                assert self.host.lacks(name, groups) == ()
                self.under_way.append(([copy], lacking))
            found = self.host.find(name)
            if found is not None:
                self.host.hold(owner, index, found)

    @rule(owner=st.sampled_from(OWNERS), start=st.integers(0, 3), data=st.data())
    def read(self, owner: str, start: int, data: st.DataObject) -> None:
        groups = tuple(data.draw(st.sets(st.sampled_from(self.groups), min_size=1)))
        run = self.host.run_of(CHAINS[owner][start:], groups)
        assert len(run) >= len(self.host.run_of(CHAINS[owner][start:]))
        assert all(copy.written.issuperset(groups) for copy in run)
        assert [copy.name for copy in run] == CHAINS[owner][start : start + len(run)]
        if run:
            self.host.pin(run)
            self.host.touch(owner)
            self.under_way.append((run, None))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        copies, written_groups = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if fails:
            holders = [owner for owner in self.host.owners if {*copies} & {*self.host._held[owner]}]
            assert self.host.lose(copies) == holders
            assert all(self.host.find(copy.name) is not copy for copy in copies)
        elif written_groups is not None:
            self.host.landed(copies, written_groups)
        self.host.unpin(copies)

    @rule(owner=st.sampled_from(OWNERS), count=st.integers(1, 4))
    def evict(self, owner: str, count: int) -> None:
        before = self.host.num_free + self.host.num_leaving
        freed = self.host.evict(owner, count)
        assert 0 <= freed <= count
        assert self.host.num_free + self.host.num_leaving == before + freed
        assert freed == count or not self.host.num_held(owner)

    @rule(owner=st.sampled_from(OWNERS), other=st.sampled_from(OWNERS))
    def rest(self, owner: str, other: str) -> None:
        self.host.rest(owner, CHAINS[other])
        self.wanted[owner] = CHAINS[other]

    @rule(owner=st.sampled_from(OWNERS), name=st.sampled_from(OWNERS))
    def rename(self, owner: str, name: str) -> None:
        held = places(self.host, owner)
        kept = held or ([] if owner == name else places(self.host, name))
        self.host.rename(owner, name)
        assert places(self.host, name) == kept
        assert owner == name or not self.host.num_held(owner)
        if held:
            self.wanted[name] = self.wanted[owner]

    @rule(owner=st.sampled_from(OWNERS))
    def forget(self, owner: str) -> None:
        self.host.forget(owner)
        assert owner not in self.host.owners

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "host"):
            return
        self.host.check_integrity()
        for owner in self.host.owners:
            for index in places(self.host, owner):
                found = self.host._held[owner][index]
                assert found is not None
                assert found.name in self.wanted[owner][index : index + 1] or index >= len(self.wanted[owner])
        for copies, _ in self.under_way:
            for group, pool in enumerate(self.host._pools):
                assert not {copy.slots[group] for copy in copies} & {*pool._free}, "a slot is free too early"

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        for copies, _ in self.under_way:
            self.host.unpin(copies)
        for owner in OWNERS:
            self.host.forget(owner)
        assert self.host.num_free == self.host.num_blocks
        assert not self.host.num_leaving


TestCopies: Any = Copies.TestCase
TestCopies.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
