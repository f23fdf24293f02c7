"""The host tier: copies found by what they hold, held by sessions, pinned by copies under way."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.kv.host import HostCopy, HostTier

SESSIONS = ("a", "b", "c")
CHAINS = {"a": [b"0", b"1", b"2", b"3"], "b": [b"0", b"1", b"x", b"y"], "c": [b"z"]}


def written(host: HostTier, session: str, chain: list[bytes]) -> list[HostCopy]:
    copies = []
    for index, name in enumerate(chain):
        copy = host.find(name)
        if copy is None:
            copy = host.begin(name)
            host.hold(session, index, copy)
            copy.is_ready = True
            host.unpin([copy])
        host.hold(session, index, copy)
        copies.append(copy)
    host.check_integrity()
    return copies


def test_a_run_ends_where_nothing_is_ready() -> None:
    host = HostTier(2, 8)
    written(host, "a", CHAINS["a"])
    late = host.begin(b"late")
    host.hold("a", 4, late)
    assert [copy.name for copy in host.run_of([b"0", b"1", b"late"])] == [b"0", b"1"]
    assert host.run_of([b"1", b"2"])[0].block != host.run_of([b"2"])[0].block
    assert host.run_of([b"none"]) == []
    assert (host.num_free, host.num_used) == (3, 5)


def test_what_two_hold_stays_until_both_let_go() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    written(host, "b", CHAINS["b"])
    assert host.num_used == 6
    host.forget("a")
    assert (host.num_used, host.sessions) == (4, ("b",))
    assert len(host.run_of(CHAINS["a"])) == 2
    host.forget("b")
    assert host.num_free == 8


def test_the_last_copies_go_first_and_shared_ones_free_nothing() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    written(host, "b", CHAINS["b"])
    assert host.evict("a", 1) == 1
    assert host.held("a") == [0, 1, 2]
    assert host.evict("a", 9) == 1
    assert host.sessions == ("b",)
    assert host.evict("b", 9) == 4
    assert host.num_free == 8
    assert host.evict("b", 1) == 0


def test_a_pinned_copy_is_free_once_nobody_reads_it() -> None:
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
    assert host.held("a") == [0, 1, 2, 3], "the device may hold less than there is"
    host.rest("a", CHAINS["b"])
    assert host.held("a") == [0, 1]
    host.rest("nobody", [b"0"])
    host.check_integrity()


def test_what_is_lost_is_lost_for_everybody() -> None:
    host = HostTier(1, 8)
    written(host, "a", CHAINS["a"])
    copies = written(host, "b", CHAINS["b"])
    host.lose(copies[1:2])
    assert (host.held("a"), host.held("b")) == ([0, 2, 3], [0, 2, 3])
    assert len(host.run_of(CHAINS["a"])) == 1
    host.check_integrity()
    host.lose(copies)
    assert host.sessions == ("a",)
    host.check_integrity()


def test_least_recently_used_first() -> None:
    host = HostTier(1, 8)
    for session in SESSIONS:
        written(host, session, CHAINS[session])
    host.touch("a")
    host.touch("nobody")
    assert host.sessions == ("b", "c", "a")


class Copies(RuleBasedStateMachine):
    """Sessions write, read, drop and lose; the ledger agrees with itself after each step."""

    @initialize(blocks=st.integers(0, 6), groups=st.integers(1, 2))
    def begin(self, blocks: int, groups: int) -> None:
        self.host = HostTier(groups, blocks)
        self.under_way: list[tuple[list[HostCopy], bool]] = []

    @rule(session=st.sampled_from(SESSIONS), start=st.integers(0, 3))
    def write(self, session: str, start: int) -> None:
        new = []
        for index, name in list(enumerate(CHAINS[session]))[start:]:
            copy = self.host.find(name)
            if copy is None and self.host.num_free:
                copy = self.host.begin(name)
                new.append(copy)
            if copy is not None:
                self.host.hold(session, index, copy)
        if new:
            self.under_way.append((new, True))

    @rule(session=st.sampled_from(SESSIONS), start=st.integers(0, 3))
    def read(self, session: str, start: int) -> None:
        run = self.host.run_of(CHAINS[session][start:])
        assert all(copy.is_ready for copy in run)
        if run:
            self.host.pin(run)
            self.host.touch(session)
            self.under_way.append((run, False))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        copies, is_write = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if fails:
            self.host.lose(copies)
        elif is_write:
            for copy in copies:
                copy.is_ready = True
        self.host.unpin(copies)

    @rule(session=st.sampled_from(SESSIONS), count=st.integers(1, 4))
    def evict(self, session: str, count: int) -> None:
        before = self.host.num_free + self.host.num_leaving
        freed = self.host.evict(session, count)
        assert self.host.num_free + self.host.num_leaving == before + freed

    @rule(session=st.sampled_from(SESSIONS), other=st.sampled_from(SESSIONS))
    def rest(self, session: str, other: str) -> None:
        self.host.rest(session, CHAINS[other])

    @rule(session=st.sampled_from(SESSIONS))
    def forget(self, session: str) -> None:
        self.host.forget(session)

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "host"):
            self.host.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        for copies, _ in self.under_way:
            self.host.unpin(copies)
        for session in SESSIONS:
            self.host.forget(session)
        assert self.host.num_free == self.host.num_blocks


TestCopies: Any = Copies.TestCase
TestCopies.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
