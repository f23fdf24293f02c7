"""Sequences over tiny pools: whatever is opened, grown, parked and evicted, no block is lost or shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.core.facts import Ints
from antiphon.kv.sequences import Sequence, StageKv, common_prefix

SESSIONS = ("a", "b", "c")


def keys(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [((), (), 0), ((1, 2), (), 0), ((1, 2, 3), (1, 2), 2), ((1, 2, 3), (1, 9, 3), 1), ((4,), (4,), 1)],
)
def test_common_prefix(left: tuple[int, ...], right: tuple[int, ...], length: int) -> None:
    assert common_prefix(keys(*left), keys(*right)) == length


def parked(kv: StageKv, session: str, positions: Ints, after_step: int | None = None) -> None:
    sequence, _ = kv.open(session, np.append(positions, 99), len(positions) + 1, None)
    assert kv.grow(sequence, len(positions)) is not None
    kv.park(session, sequence, positions, after_step)


def test_the_longest_equal_prefix_is_reused_with_its_blocks() -> None:
    kv = StageKv(("kv", "hidden"), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4, 5))
    sequence, cached = kv.open("a", keys(1, 2, 3, 7, 8), 8, None)
    assert cached == 3
    assert sequence.blocks == {"kv": [0, 1], "hidden": [0, 1]}
    assert kv.grow(sequence, 5) == [("kv", 2, 3), ("hidden", 2, 3)]
    kv.check_integrity()


def test_of_a_prompt_that_is_wholly_cached_the_last_token_is_left() -> None:
    kv = StageKv(("kv",), 8, 2)
    parked(kv, "a", keys(1, 2, 3, 4))
    assert kv.open("a", keys(1, 2, 3, 4), 6, None)[1] == 3


def test_nothing_is_evicted_for_blocks_that_come_back_anyway() -> None:
    kv = StageKv(("kv",), 4, 1)
    parked(kv, "old", keys(1, 2))
    sequence, _ = kv.open("b", keys(5), 2, None)
    assert kv.grow(sequence, 2) is not None
    kv.discard(sequence, after_step=7)
    assert kv.num_limbo == 2
    following, _ = kv.open("c", keys(6), 2, 7)
    assert kv.grow(following, 2) is None
    assert kv.num_idle == 2
    kv.settle(7)
    assert kv.grow(following, 2) is not None
    assert kv.num_evicted_blocks == 0


def test_the_least_recently_parked_goes_first_and_waits_for_its_steps() -> None:
    kv = StageKv(("kv",), 4, 1)
    parked(kv, "a", keys(1, 2), after_step=3)
    parked(kv, "b", keys(3, 4))
    sequence, _ = kv.open("c", keys(5), 2, 3)
    assert kv.grow(sequence, 1) is None, "the blocks of a are named by step 3"
    assert kv.num_evicted_blocks == 2
    kv.settle(3)
    assert kv.grow(sequence, 1) == [("kv", 0, 0)]
    kv.check_integrity()


class Conversations(RuleBasedStateMachine):
    """Sequences come and go while steps are in flight; a model keeps who should hold what."""

    @initialize(groups=st.sampled_from([("kv",), ("kv", "hidden")]), blocks=st.integers(3, 12))
    def begin(self, groups: tuple[str, ...], blocks: int) -> None:
        self.kv = StageKv(groups, blocks, 2)
        self.active: list[tuple[str, Sequence, Ints, int, int]] = []
        self.step = 0
        self.settled = 0

    @property
    def busy(self) -> int | None:
        return self.step if self.step > self.settled else None

    @rule(session=st.sampled_from(SESSIONS), values=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def open(self, session: str, values: list[int]) -> None:
        prompt, most = keys(*values), len(values) + 4
        if not self.kv.fits(most):
            return
        sequence, cached = self.kv.open(session, prompt, most, self.busy)
        assert 0 <= cached < len(prompt)
        assert (sequence.keys == prompt[:cached]).all()
        assert sequence.num_blocks == self.kv.blocks_for(cached)
        self.active.append((session, sequence, prompt, most, cached))

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.active) - 1))
        session, sequence, prompt, most, have = self.active[at]
        size = data.draw(st.integers(have, most))
        before = sequence.num_blocks
        entries = self.kv.grow(sequence, size)
        if entries is None:
            assert self.busy is not None, "what was promised is there once no step is in flight"
            return
        assert len(entries) == len(self.kv.groups) * (sequence.num_blocks - before)
        self.active[at] = (session, sequence, prompt, most, size)

    @precondition(lambda self: self.active)
    @rule(data=st.data(), kept=st.integers(0, 20))
    def park(self, data: st.DataObject, kept: int) -> None:
        at = data.draw(st.integers(0, len(self.active) - 1))
        session, sequence, prompt, _, have = self.active.pop(at)
        held = np.concatenate([prompt, keys(*range(50, 60))])[: min(kept, have)]
        self.kv.park(session, sequence, held, self.busy)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        sequence = self.active.pop(data.draw(st.integers(0, len(self.active) - 1)))[1]
        self.kv.discard(sequence, self.busy)

    @rule(session=st.sampled_from(SESSIONS))
    def drop(self, session: str) -> None:
        self.kv.drop(session, self.busy)

    @rule()
    def launch(self) -> None:
        self.step += 1

    @precondition(lambda self: self.step > self.settled)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.settled = data.draw(st.integers(self.settled + 1, self.step))
        self.kv.settle(self.settled)

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity()
        if self.settled == self.step:
            assert self.kv.num_limbo == 0

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.settle(self.step)
        for _, sequence, *_ in self.active:
            self.kv.discard(sequence, None)
        for session in SESSIONS:
            self.kv.drop(session, None)
        assert self.kv.num_free == self.kv.num_blocks


TestConversations: Any = Conversations.TestCase
TestConversations.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
