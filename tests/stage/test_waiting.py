"""The queue of requests without a row: by age and tier, with its columns kept up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.config import ArConfig
from antiphon.core.facts import StagePrompt
from antiphon.core.plans import ints
from antiphon.core.sampling import Sampling
from antiphon.policy.base import Tier
from antiphon.stage.requests import ArRequest, RequestSizes
from antiphon.stage.waiting import WaitingQueue

HELD: Any = SimpleNamespace(
    sizes=RequestSizes(ArConfig(max_rows=4, block_size=4, num_blocks=16, step_tokens=8), 16)
)
"""Of the KV only the sizes."""


def request(number: int, tier: Tier = Tier.LATENCY, size: int = 6, *, waits: bool = False) -> ArRequest:
    ids = ints(range(size))
    prompt = StagePrompt(ids, ids, (), 0, ids[:0])
    made = ArRequest(number, f"s{number}", prompt, Sampling(max_tokens=8), tier=tier, waits_for_payload=waits)
    made.order = number
    return made


def queue(*requests: ArRequest, conditioned: bool = False) -> WaitingQueue:
    made = WaitingQueue(conditioned, HELD)
    for one in requests:
        made.add(one)
    made.check_integrity()
    return made


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from(list(Tier))), unique_by=lambda one: one[0]))
def test_whoever_came_first_stands_first(given: list[tuple[int, Tier]]) -> None:
    requests = [request(number, tier) for number, tier in given]
    waiting = queue(*requests)
    assert [one.order for one in waiting] == sorted(one.order for one in requests)
    assert waiting.columns.request.tolist() == [one.request for one in waiting]
    assert [one.request for one in waiting.in_turn] == [
        one.request for one in sorted(requests, key=lambda one: (one.tier, one.order))
    ]
    for tier in Tier:
        same = [one for one in requests if one.tier is tier]
        assert waiting.first(tier) is min(same, key=lambda one: one.order, default=None)


def test_those_that_left_are_gone() -> None:
    one, two, three = request(1), request(2), request(3)
    waiting = queue(one, two, three)
    waiting.note_lacking(two, frozenset([9]))
    waiting.remove(two)
    waiting.check_integrity()
    assert [*waiting] == [one, three]
    assert not waiting.is_lacking


def test_who_waits_for_its_payload_or_its_text_cannot_run() -> None:
    late, early = request(1, waits=True), request(2)
    waiting = queue(late, early)
    assert waiting.columns.could_run.tolist() == [0, 1]
    assert waiting.in_turn == [early]
    late.waits_for_payload = False
    waiting.changed(late)
    waiting.check_integrity()
    assert waiting.in_turn == [late, early]
    behind = request(3)
    behind.tokens = [ints([1]), ints([2])]
    spoken = queue(behind, conditioned=True)
    assert not spoken.could_run(behind)
    behind.inputs = [5, 6]
    assert spoken.could_run(behind)
    behind.inputs, behind.closed = [], True
    assert spoken.could_run(behind)


def test_who_has_drawn_all_that_it_was_granted_leaves_the_row_to_others() -> None:
    ahead, other = request(1), request(2)
    ahead.tokens, ahead.granted = [ints([1]), ints([2])], 2
    waiting = queue(ahead, other)
    assert waiting.in_turn == [other]
    ahead.granted = 3
    waiting.changed(ahead)
    waiting.check_integrity()
    assert waiting.in_turn == [ahead, other]


def test_media_are_asked_for_once() -> None:
    one = request(1)
    waiting = queue(one)
    waiting.note_lacking(one, frozenset([7]))
    assert waiting.is_lacking
    assert waiting.lacking() == {1: frozenset([7])}
    waiting.note_lacking(one, frozenset([7]))
    assert waiting.lacking() == {}
    waiting.note_lacking(one, frozenset([7, 8]))
    assert waiting.lacking() == {1: frozenset([7, 8])}
