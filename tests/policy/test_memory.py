"""What the baseline moves between the tiers, and what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from antiphon.policy.lru import Lru
from antiphon.policy.memory import NOTHING, FetchView
from antiphon.policy.on_demand import OnDemand
from antiphon.policy.write_back import WriteBack


@dataclass
class View:
    num_wanted: int = 0
    num_free: int = 0
    num_below: int = 0
    num_blocks: int = 160
    sessions: tuple[str, ...] = ("old", "new")


@pytest.mark.parametrize(
    ("view", "count"),
    [
        (View(num_wanted=7, num_free=3), 4),
        (View(num_wanted=3, num_free=3), 0),
        (View(num_free=0), 0),
        (View(num_free=4, num_below=100), 6),
        (View(num_free=4, num_below=2), 2),
        (View(num_free=10, num_below=100), 0),
        (View(num_wanted=7, num_free=3, num_below=100), 14),
        (View(num_wanted=3, num_free=8, num_below=100), 5),
    ],
)
def test_lru_frees_what_is_short_and_a_little_ahead_where_nothing_is_lost(view: View, count: int) -> None:
    selection = Lru().decide(view, 0.0)
    assert selection.count == count
    assert selection.sessions == (view.sessions if count else ())
    assert selection.reason


def test_nothing_is_written_early_and_all_comes_back() -> None:
    assert WriteBack().decide(View(num_wanted=3), 0.0) is NOTHING
    assert OnDemand().decide(FetchView("a", 2, 5, 16), 0.0) == 5
