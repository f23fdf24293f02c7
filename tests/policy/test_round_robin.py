"""Stages take turns."""

from __future__ import annotations

import pytest

from antiphon.policy.round_robin import RoundRobin


@pytest.mark.parametrize(
    ("ready", "last", "chosen"),
    [([1, 3], None, 1), ([1, 3], 0, 1), ([1, 3], 1, 3), ([1, 3], 2, 3), ([1, 3], 3, 1), ([2], 2, 2)],
)
def test_the_next_with_work(ready: list[int], last: int | None, chosen: int) -> None:
    assert RoundRobin().decide(ready, last, now=0.0) == chosen


def test_every_stage_with_work_has_its_turn() -> None:
    order, last = [], None
    for _ in range(6):
        last = RoundRobin().decide([0, 1, 2], last, now=0.0)
        order.append(last)
    assert order == [0, 1, 2, 0, 1, 2]
