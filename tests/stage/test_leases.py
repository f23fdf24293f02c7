"""A request that moves brings its KV along."""

from __future__ import annotations

from antiphon.core.facts import (
    CopyDone,
)
from stage.test_ar import STOP, done, planned, request
from stage.tiering import away, ordered, small


def test_a_request_that_moves_is_brought_what_it_computed() -> None:
    origin, target = small(num_blocks=8), small(num_blocks=8)
    origin.submit(request(1, 5, max_tokens=9))
    order = planned(origin, 0)
    done(origin, order, 7)
    moving = origin.hand_on(1, "t")
    (lease,) = origin.leases
    assert (lease.num_tokens, len(lease.blocks)) == (5, 3)
    origin.forget("session-1")
    assert origin.kv.blocks.num_free == 5, "what is leased is not handed out"
    target.submit(moving)
    step = planned(target, 0)
    (copy,) = target.drain()
    assert [(join.cached, step.tickets) for join in step.joins] == [(5, (copy.ticket,))]
    assert target.tiers.leases.num_moved_blocks == 3
    target.copied(CopyDone("s", copy.ticket))
    assert target.tiers.leases.returned() == [lease]
    origin.take_back(lease)
    origin.take_back(lease)
    assert origin.kv.blocks.num_free == 8
    for stage in (origin, target):
        stage.check_integrity()


def test_cache_that_it_begins_with_is_no_room_for_what_it_is_brought() -> None:
    origin, target = small(num_blocks=8), small(num_blocks=8, host_blocks=0)
    origin.submit(request(9, 9, max_tokens=9))
    done(origin, planned(origin, 0), 7)
    for number, length, first in ((1, 4, 100), (2, 8, 500)):
        target.submit(request(number, length, first=first))
        done(target, planned(target, number), STOP)
    target.forget("session-1", as_cache=True)
    blocks = target.kv.blocks
    assert (blocks.num_free, blocks.num_cache, blocks.num_idle) == (4, 2, 4)
    target.submit(origin.hand_on(9, "t"))
    (join,) = planned(target, 3).joins
    (copy,) = target.drain()
    assert join.cached == 9
    assert len(copy.targets) == 3, "two blocks were found here"
    assert target.kv.resting.num_evicted_blocks > 0, "others gave up what was lacking"
    target.copied(CopyDone("s", copy.ticket))
    target.check_integrity()


def test_who_moves_does_not_take_what_another_one_is_being_brought() -> None:
    """Else the one would be brought again and again, and the other never get its room."""
    origin, target = small(num_blocks=8), small()
    origin.submit(request(9, 9, max_tokens=9))
    done(origin, planned(origin, 0), 7)
    step = away(target)
    target.submit(request(1, 9, first=100))
    (copy,) = ordered(target)
    assert copy.to == "device"
    target.submit(origin.hand_on(9, "t"))
    num_evicted = target.kv.resting.num_evicted_blocks
    assert target.plan(step, 0.0) is None
    assert target.kv.resting.num_evicted_blocks == num_evicted
    target.copied(CopyDone("s", copy.ticket))
    ordered(target)
    assert [join.request for join in planned(target, step).joins] == [1]
    target.check_integrity()


def test_a_lease_of_a_lost_unit_is_of_no_use() -> None:
    origin, target = small(num_blocks=8), small(num_blocks=8)
    origin.submit(request(1, 5, max_tokens=9))
    done(origin, planned(origin, 0), 7)
    moving = origin.hand_on(1, "t")
    assert moving.lease is not None
    moving.lease.is_void = True
    target.submit(moving)
    assert [join.cached for join in planned(target, 0).joins] == [0]
    assert target.drain() == ()
