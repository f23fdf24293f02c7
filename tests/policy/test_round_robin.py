"""Stages take turns."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import pytest

from antiphon.policy.round_robin import RoundRobin


@dataclass
class Stage:
    """Implements `policy.base.Head`."""

    place: int
    unit: str = ""
    urgency: int = 0
    slack_s: float = nan
    step_s: float = nan


def chosen(places: list[int], last: int | None) -> int:
    choice = RoundRobin().decide([Stage(place) for place in places], last, now=0.0)
    assert choice.wake_at is None
    return places[choice.index]


@pytest.mark.parametrize(
    ("places", "last", "place"),
    [([1, 3], None, 1), ([1, 3], 0, 1), ([1, 3], 1, 3), ([1, 3], 2, 3), ([1, 3], 3, 1), ([2], 2, 2)],
)
def test_the_next_with_work(places: list[int], last: int | None, place: int) -> None:
    assert chosen(places, last) == place


def test_every_stage_with_work_has_its_turn() -> None:
    order, last = [], None
    for _ in range(6):
        last = chosen([0, 1, 2], last)
        order.append(last)
    assert order == [0, 1, 2, 0, 1, 2]
