"""Among stages that share a device the most urgent goes first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from antiphon.policy.base import Head
from antiphon.policy.most_urgent import MostUrgent


@pytest.mark.parametrize(
    ("heads", "last", "index"),
    [
        ([(0, 2), (1, 0), (3, 1)], None, 1),
        ([(0, 1), (1, 1), (3, 1)], 0, 1),
        ([(0, 1), (1, 1), (3, 1)], 1, 2),
        ([(0, 1), (1, 1), (3, 1)], 3, 0),
        ([(0, 1), (3, 0)], 3, 1),
    ],
    ids=["the least", "equals take turns", "the next", "and begin anew", "again, if it is more urgent"],
)
def test_the_most_urgent_head(heads: list[tuple[int, int]], last: int | None, index: int) -> None:
    made = [cast(Head, SimpleNamespace(place=place, urgency=urgency)) for place, urgency in heads]
    choice = MostUrgent().decide(made, last, 0.0)
    assert (choice.index, choice.most, choice.wake_at) == (index, None, None)


@pytest.mark.parametrize(
    ("urgencies", "count"),
    [((0, 1, 1), 2), ((0, 2, 3), 0), ((1, 1, 2), 0)],
    ids=["behind what runs dry", "there are none", "one of them goes"],
)
def test_stages_whose_first_sounds_wait_are_counted(urgencies: tuple[int, ...], count: int) -> None:
    """In overload what runs dry starves them, as in the paper."""
    policy = MostUrgent()
    made = [cast(Head, SimpleNamespace(place=at, urgency=one)) for at, one in enumerate(urgencies)]
    policy.decide(made, None, 0.0)
    assert policy.events["first_sound_waits"] == count
