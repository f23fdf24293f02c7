"""Which replica serves a turn."""

from __future__ import annotations

import pytest

from antiphon.policy.base import ReplicaPolicy, ReplicaView
from antiphon.policy.least_loaded import LeastLoaded
from antiphon.policy.sticky import Sticky


@pytest.mark.parametrize("policy", [Sticky(), LeastLoaded()])
def test_a_new_conversation_goes_where_least_is_to_do(policy: ReplicaPolicy) -> None:
    assert policy.decide(ReplicaView([2, 1, 3], [0, 9, 0], None), 0.0) == 1
    assert policy.decide(ReplicaView([1, 1, 1], [4, 2, 3], None), 0.0) == 1, "among equals, fewest sessions"


def test_sticky_stays_whatever_the_load() -> None:
    assert Sticky().decide(ReplicaView([9, 0], [9, 0], 0), 0.0) == 0


def test_least_loaded_leaves_its_kv_behind() -> None:
    assert LeastLoaded().decide(ReplicaView([9, 0], [0, 9], 0), 0.0) == 1
