"""What policies share: which rows lack a block, and which row gives way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from antiphon.policy.base import Tier, is_crowded, is_short, is_starved, last_come
from policy.views import short, stage

B = Tier.BEST_EFFORT


def test_a_row_is_short_when_its_next_token_needs_another_block() -> None:
    view = stage(3, 4, context=[4, 3, 4, 4], ready=[True, True, False, True])
    assert is_short(view).tolist() == [True, False, False, False], "nor is a candidate without a row"


@pytest.mark.parametrize(
    ("told", "starved"),
    [
        ({}, True),
        ({"num_free": 1}, True),
        ({"num_free": 2}, False),
        ({"num_pending_free": 1, "num_evictable": 1}, False),
        ({"context": [4, 3]}, True),
        ({"context": [4, 3], "num_free": 1}, False),
        ({"ready": [False, False]}, False),
    ],
)
def test_rows_are_starved_when_more_are_short_than_blocks_can_be_had(
    told: dict[str, Any], starved: bool
) -> None:
    assert is_starved(short(2, 2, **told)) is starved


@pytest.mark.parametrize(
    ("told", "crowded"),
    [
        ({"tier": [B, 0], "num_free_rows": 0}, True),
        ({"tier": [B, 0], "needs": [0, 65]}, True),
        ({"tier": [B, 0], "needs": [0, 64], "num_promised": 1}, True),
        ({"tier": [B, 0], "needs": [0, 64]}, False),
        ({"tier": [B, 0], "needs": [0, 64], "context": [4, 0]}, True),
        ({"tier": [0, 0], "num_free_rows": 0}, False),
        ({"tier": [B, B], "num_free_rows": 0}, False),
        ({"tier": [B, 0], "num_free_rows": 0, "num_pending_rows": 1}, False),
        ({"tier": [B, 0], "num_free_rows": 0, "num_pending_free": 1}, False),
        ({"tier": [B, 0], "num_free_rows": 0, "ready": [True, False]}, False),
    ],
)
def test_best_effort_work_is_in_the_way_of_a_request_that_could_join(
    told: dict[str, Any], crowded: bool
) -> None:
    assert is_crowded(stage(1, 2, **told)) is crowded


def test_nothing_is_in_the_way_where_nothing_waits() -> None:
    assert not is_crowded(stage(1, 1, tier=[B], num_free_rows=0))


@pytest.mark.parametrize(("tier", "victim"), [([0, 0, 0], 2), ([0, B, 0], 1), ([B, B, 0], 1)])
def test_the_youngest_gives_way_best_effort_before_all_else(tier: list[int], victim: int) -> None:
    assert last_come(short(3, 3, tier=tier)).tolist() == [victim]


@pytest.mark.parametrize("view", [stage(2, 2), stage(0, 2, num_free=0), short(2, 2, num_blocks=0)])
def test_nothing_is_preempted_without_need_nor_where_there_is_no_kv(view: Any) -> None:
    assert last_come(view).tolist() == []
    assert last_come(view).dtype == np.int64


def test_a_person_is_not_kept_waiting_by_what_nobody_waits_for() -> None:
    """Older best-effort work stands before it in the queue."""
    late = Tier.BEST_EFFORT
    view = stage(2, 4, tier=[late, late, late, Tier.LATENCY], num_free_rows=0)
    assert is_crowded(view)
    assert last_come(view).tolist() == [1]
