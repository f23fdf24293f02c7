"""The policies that stand in nobody's way: nothing is held back, nothing is refused."""

from __future__ import annotations

from antiphon.policy.base import NO_HOLD, Candidate, Tier
from antiphon.policy.unlimited import Unlimited
from antiphon.policy.unpaced import Unpaced
from policy.views import short, stage


def test_unpaced_holds_nothing_however_far_ahead_it_is() -> None:
    hold = Unpaced().decide(stage(2, 3, lead_s=[900.0, 0.0, 5.0]), 1.0)
    assert hold is NO_HOLD
    assert hold.held is hold.wake_at is None


def test_unlimited_takes_a_request_whatever_the_stage_has_to_do() -> None:
    candidate = Candidate(tokens=10_000, cached=0, tier=Tier.LATENCY, ttft_s=0.1)
    assert Unlimited().decide(short(3, 9, num_free_rows=0), candidate, 1.0) is None
