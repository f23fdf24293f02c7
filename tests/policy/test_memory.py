"""What the baseline moves between the tiers, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from antiphon.policy.lru import Lru
from antiphon.policy.memory import NOTHING, KvView
from antiphon.policy.on_demand import OnDemand
from antiphon.policy.write_back import WriteBack


def kv(num_wanted: int = 0, num_free: int = 0, num_below: int = 0) -> KvView:
    """A tier of 160 blocks, of which 10 are to be kept free."""

    def oldest() -> Iterator[str]:
        yield from ("old", "new")

    def waiting() -> Iterator[str]:
        yield from ("first", "second")

    return cast(
        "KvView",
        SimpleNamespace(
            num_wanted=num_wanted,
            num_free=num_free,
            num_below=num_below,
            num_blocks=160,
            oldest=oldest,
            waiting=waiting,
        ),
    )


@pytest.mark.parametrize(
    ("view", "count"),
    [
        (kv(num_wanted=7, num_free=3), 4),
        (kv(num_wanted=3, num_free=3), 0),
        (kv(num_free=0), 0),
        (kv(num_free=4, num_below=100), 6),
        (kv(num_free=4, num_below=2), 2),
        (kv(num_free=10, num_below=100), 0),
        (kv(num_wanted=7, num_free=3, num_below=100), 14),
        (kv(num_wanted=3, num_free=8, num_below=100), 5),
    ],
)
def test_lru_frees_what_is_short_and_a_little_ahead_where_nothing_is_lost(view: KvView, count: int) -> None:
    selection = Lru().decide(view, 0.0)
    assert selection.count == count
    assert list(selection.owners) == (["old", "new"] if count else [])
    assert selection.groups is selection.wake_at is None
    assert selection.reason


def test_nothing_is_written_early() -> None:
    assert WriteBack().decide(kv(num_wanted=3), 0.0) is NOTHING


def test_what_requests_wait_for_comes_back_whole_and_in_their_order() -> None:
    selection = OnDemand().decide(kv(), 0.0)
    assert list(selection.owners) == ["first", "second"]
    assert (selection.count, selection.reach, selection.wake_at) == (160, None, None)
