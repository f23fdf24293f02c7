"""What resting sequences give up, and blocks that are lent to copies meanwhile."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from antiphon.kv.sequences import Evicted, Sequence, StageKv
from kv.test_sequences import SESSIONS, Conversations, Ints, keys, parked, prefix


def test_a_session_gives_up_its_end_and_the_partial_block_is_lost() -> None:
    kv = StageKv(("kv", "hidden"), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    evicted = kv.evict("a", 2)
    names = prefix(1, 2, 3, 4).chain
    assert evicted == [Evicted(("a",), 1, 1, names[1])]
    assert (kv.num_free, kv.num_pending_free, kv.num_idle) == (6, 1, 1)
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6)) == 4, "what is being copied is still there"
    kv.take_back([1])
    assert (kv.num_free, kv.cached("a", prefix(1, 2, 3, 4, 5, 6))) == (7, 2)
    assert kv.num_evicted_blocks == 2
    kv.check_integrity()
    assert len(kv.evict("a", 9)) == 1
    assert kv.sessions == ()
    assert kv.evict("a", 1) == kv.evict("nobody", 1) == []


def test_a_shared_block_goes_once_it_ends_everybody_who_holds_it() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    parked(kv, "b", keys(1, 2, 5, 6))
    assert [one.sessions for one in kv.evict("a", 9)] == [("a",)]
    assert [(one.sessions, one.index) for one in kv.evict("b", 9)] == [(("b",), 1), (("a", "b"), 0)]
    assert kv.sessions == ()
    kv.check_integrity()


def test_what_a_running_sequence_holds_stays() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    running, cached = kv.open("b", prefix(1, 2, 3, 4, 5), 3, None)
    assert cached == 4
    assert kv.evict("a", 9) == []
    assert all(kv.is_active(block) for block in running.blocks)
    kv.check_integrity()


def test_a_lent_block_is_not_written_again() -> None:
    kv = StageKv(("kv",), 8, 4)
    parked(kv, "a", keys(1, 2, 3, 4, 5, 6, 7, 8))
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 6
    kv.lend([1])
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 4
    kv.take_back([1])
    assert kv.cached("a", prefix(1, 2, 3, 4, 5, 6, 9, size=4)) == 6


def test_fetched_blocks_follow_the_full_ones_and_have_no_names_yet() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3))
    sequence, cached = kv.open("a", prefix(1, 2, 3, 4, 5, 6, 7), 4, None, until=6)
    assert cached == 6
    assert kv.slots(sequence.blocks).tolist() == [[0, 2, 3]]
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 2
    kv.check_integrity()
    kv.learn(sequence, keys(1, 2, 3, 4, 5, 6, 7))
    assert kv.cached("b", prefix(1, 2, 3, 4, 5)) == 4


class Lent(Conversations):
    """Blocks are evicted, copied and taken back while sequences come and go."""

    @property
    def lent(self) -> list[int]:
        if not hasattr(self, "_under_way"):
            self._under_way: list[int] = []
        return self._under_way

    def write(self, sequence: Sequence, held: Ints, start: int) -> None:
        super().write(sequence, held, start)
        touched = sequence.blocks[start // 2 : self.kv.blocks_for(len(held))]
        assert set(touched).isdisjoint(self.lent), "a block is written while it is copied"

    @rule(session=st.sampled_from(SESSIONS), count=st.integers(1, 4))
    def evict(self, session: str, count: int) -> None:
        before = self.kv.num_free + self.kv.num_pending_free
        evicted = self.kv.evict(session, count)
        assert before <= self.kv.num_free + self.kv.num_pending_free <= before + count
        self.lent.extend(one.block for one in evicted)

    @rule(session=st.sampled_from(SESSIONS))
    def lend(self, session: str) -> None:
        """As if they were written down early."""
        sequence = self.kv.resting(session)
        if sequence is not None:
            blocks = sequence.blocks[: len(sequence.chain)]
            self.kv.lend(blocks)
            self.lent.extend(blocks)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        block = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        self.kv.take_back([block])

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "kv"):
            self.kv.check_integrity()
            if self.settled == self.step:
                assert self.kv.num_pending_free <= len(set(self.lent))

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            self.kv.take_back(self.lent)
            super().teardown()


TestLent: Any = Lent.TestCase
TestLent.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
