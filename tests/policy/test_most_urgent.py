"""Among stages that share a device the most urgent goes first."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import cast

import pytest

from antiphon.core.errors import ConfigError
from antiphon.policy.base import URGENCIES, Head
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
    assert (choice.index, choice.wake_at) == (index, None)
    assert choice.reason == URGENCIES[heads[index][1]]


@pytest.mark.parametrize(
    ("urgencies", "count"),
    [((1, 0, 1), 2), ((0, 2, 3), 2), ((1, 1, 2), 0)],
    ids=["first sounds", "whatever they are", "nothing runs dry"],
)
def test_stages_that_yield_to_what_runs_dry_are_counted(urgencies: tuple[int, ...], count: int) -> None:
    """In overload it starves them, as in the paper."""
    policy = MostUrgent()
    made = [cast(Head, SimpleNamespace(place=at, urgency=one)) for at, one in enumerate(urgencies)]
    policy.decide(made, None, 0.0)
    assert policy.events["others_yield"] == count


def test_behind_what_runs_dry_nothing_is_asked() -> None:
    """To ask a stage costs more than all else of a decision."""
    asked: list[int] = []

    class Asked:
        def __init__(self, place: int, urgency: int) -> None:
            self.place, self._urgency = place, urgency

        @property
        def urgency(self) -> int:
            asked.append(self.place)
            return self._urgency

    heads = [cast(Head, Asked(place, urgency)) for place, urgency in enumerate((2, 1, 0, 2))]
    assert MostUrgent().decide(heads, 0, 0.0).index == 2
    assert asked == [1, 2]


@pytest.mark.parametrize(
    ("spare_s", "slack_s", "index"),
    [(0.5, 0.6, 1), (0.5, 0.4, 0), (inf, 9.0, 0), (0.5, nan, 0)],
    ids=["it can wait", "it cannot", "as the paper has it", "nobody knows"],
)
def test_first_sounds_take_turns_with_what_can_wait(spare_s: float, slack_s: float, index: int) -> None:
    heads = [
        cast(Head, SimpleNamespace(place=place, urgency=place, slack_s=slack))
        for place, slack in ((0, slack_s), (1, nan))
    ]
    policy = MostUrgent(spare_s)
    assert policy.decide(heads, 0, 0.0).index == index
    again = policy.decide(heads, 1, 0.0)
    assert (again.index, again.reason) == (0, "in turn with first sounds" if index else "runs dry")
    assert policy.events["others_yield"] == (0 if index else 2)


def test_a_stage_that_tells_no_urgency_takes_turns_with_first_sounds() -> None:
    """As if nothing were known of it: it keeps no other stage from the device."""
    policy = MostUrgent()
    made = [cast(Head, SimpleNamespace(place=at, urgency=one)) for at, one in enumerate((None, 1, 2))]
    assert [policy.decide(made, last, 0.0).index for last in (None, 0, 1)] == [0, 1, 0]
    assert policy.events["urgency_unknown"] == 3


def taken(policy: MostUrgent, urgencies: tuple[int, ...], every_s: float, count: int) -> list[int]:
    """The places that step one after the other."""
    heads = [cast(Head, SimpleNamespace(place=at, urgency=one)) for at, one in enumerate(urgencies)]
    turns = list[int]()
    for step in range(count):
        turns.append(policy.decide(heads, turns[-1] if turns else None, step * every_s).index)
    return turns


def test_first_sounds_wait_for_what_runs_dry_for_so_long_at_most() -> None:
    """Then they have one turn, once those have had theirs that come before them in pipeline order."""
    assert taken(MostUrgent(yields_s=0.25), (1, 2, 0, 0), 0.07, 11) == [0, 2, 3, 2, 3, 0, 2, 3, 2, 3, 0]
    assert taken(MostUrgent(), (1, 2, 0, 0), 0.07, 6) == [2, 3, 2, 3, 2, 3]


def test_the_turn_is_of_the_first_sounds_that_are_nearest() -> None:
    """Others come after them: nobody who has come so far waits for all who come later."""
    assert taken(MostUrgent(yields_s=0.25), (1, 1, 2, 0), 0.3, 4) == [1, 3, 1, 3]
    assert taken(MostUrgent(yields_s=0.25), (1, 2, 2, 0), 0.3, 4) == [0, 3, 0, 3]


def test_what_runs_dry_has_its_turn_where_steps_take_longer_than_first_sounds_wait() -> None:
    """Whichever stages have them."""
    assert taken(MostUrgent(yields_s=0.25), (1, 0, 1), 0.5, 6) == [2, 1, 2, 1, 2, 1]


def test_what_is_well_buffered_takes_no_turn_of_what_runs_dry() -> None:
    policy = MostUrgent(yields_s=0.25)
    assert taken(policy, (2, 0), 0.1, 9) == [1] * 9
    assert policy.events["others_yield"] == 6


def named(policy: MostUrgent, urgencies: dict[int, int], last: int | None, now: float) -> int:
    """The place that is named, of stages at these."""
    heads = [cast(Head, SimpleNamespace(place=place, urgency=one)) for place, one in urgencies.items()]
    return heads[policy.decide(heads, last, now).index].place


def test_a_turn_of_which_the_stage_can_make_nothing_is_of_the_next_nearest() -> None:
    policy = MostUrgent(yields_s=0.25)
    assert named(policy, {0: 1, 1: 0, 2: 1}, 1, 9.0) == 2
    assert named(policy, {0: 1, 1: 0}, 1, 9.0) == 0
    assert named(policy, {0: 1, 1: 0, 2: 1}, 0, 9.1) == 1, "they had their turn"
    assert named(policy, {0: 0, 1: 1, 2: 0, 3: 1}, 2, 9.4) == 3
    assert named(policy, {0: 0, 1: 1, 2: 0}, 2, 9.4) == 1, "whoever is next in pipeline order"


def test_a_turn_that_nobody_could_take_is_still_owed() -> None:
    policy = MostUrgent(yields_s=0.25)
    assert named(policy, {0: 1, 1: 0, 2: 0}, 2, 9.0) == 0
    assert named(policy, {1: 0, 2: 0}, 2, 9.0) == 1
    assert named(policy, {0: 1, 1: 0, 2: 0}, 1, 9.1) == 2, "those that run dry have theirs"
    assert named(policy, {0: 1, 1: 0, 2: 0}, 2, 9.2) == 0
    assert named(policy, {0: 1, 1: 0, 2: 0}, 0, 9.3) == 1
    assert named(policy, {0: 1, 1: 0, 2: 0}, 2, 9.4) == 1, "it was taken at 9.2"


@pytest.mark.parametrize("name", ["spare_s", "yields_s"])
def test_times_are_above_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is 0\.0; it must be above 0"):
        MostUrgent(**{name: 0.0})
