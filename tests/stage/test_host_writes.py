"""What is copied to the host, and what leaves it for that."""

from __future__ import annotations

import math

import numpy as np

from antiphon.core.facts import (
    ResponseRequested,
    SessionOpened,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.core.plans import AudioOut, ResponseEnded, Usage
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import NEAR_S, NextUseTimes
from antiphon.kv.transfers import CHUNK_BLOCKS, MAX_CHUNKS
from antiphon.policy.memory import KvState, Selection
from fakes.early import WriteEarly
from fakes.readings import places
from stage.tiering import answered, away, run, says, small, three_resting


def test_what_is_written_early_is_not_copied_again_when_it_leaves() -> None:
    stage = small()
    run(stage, 0, 1, 100)
    WriteEarly.take_over(stage)
    stage.write()
    assert {copy.to for copy in answered(stage)} == {"host"}
    assert stage.kv.blocks.num_idle == 4, "it stays where it is"
    stage.write()
    answered(stage)
    written = stage.tiers.writes.num_written_blocks
    assert written == 4
    stage.tiers.room.make_room(6)
    assert stage.kv.blocks.num_free == 6
    assert stage.tiers.writes.num_written_blocks == written
    assert stage.drain() == ()


def test_early_writes_take_only_what_is_free_on_the_host() -> None:
    stage = three_resting(host_blocks=3)
    says(stage, "evict")
    says(stage, "write", Selection(["session-1", "session-2"], 9, "early"))
    stage.write()
    assert stage.tiers.writes.num_written_blocks == 3
    answered(stage)
    assert (places(stage.tiers.host, "session-1"), places(stage.tiers.host, "session-2")) == ([0, 1], [0])
    stage.write()
    assert stage.drain() == (), "nothing leaves the host for it"


def test_what_displaces_others_leaves_it_to_the_evict_policy_which() -> None:
    stage = three_resting(host_blocks=3)
    says(stage, "evict", Selection(["session-1"], 1, "needed last"))
    says(stage, "write", Selection(["session-1", "session-2"], 9, "early"))
    stage.write()
    answered(stage)
    assert (places(stage.tiers.host, "session-1"), places(stage.tiers.host, "session-2")) == ([0, 1], [0])
    says(stage, "write", Selection(["session-2"], 9, "early", displaces=True))
    stage.write()
    answered(stage)
    assert (places(stage.tiers.host, "session-1"), places(stage.tiers.host, "session-2")) == ([0], [0, 1])
    says(stage, "evict")
    stage.write()
    assert stage.drain() == (), "the evict policy gives up nothing"
    stage.check_integrity()


def test_the_policy_is_not_asked_what_to_write_where_nothing_can_be_taken() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    run(stage, 0, 1, 100, length=300)
    policy = says(stage, "write", Selection(["session-1"], 999, "early"))
    stage.write(lambda: 0.0)
    assert len(policy.views) == 1
    stage.write(lambda: 0.0)
    assert len(policy.views) == 1, "as much is on its way as may be"
    answered(stage)
    stage.write(lambda: 0.0)
    assert len(policy.views) == 2


def test_what_the_host_gave_up_is_written_again() -> None:
    stage = three_resting(host_blocks=8)
    says(stage, "evict")
    says(stage, "write", Selection(["session-1", "session-2"], 9, "early"))
    for _ in range(2):
        stage.write()
        answered(stage)
        assert places(stage.tiers.host, "session-1") == [0, 1]
        stage.tiers.host.forget("session-1")
        assert places(stage.tiers.host, "session-1") == []
    assert stage.tiers.writes.num_written_blocks == 6
    stage.check_integrity()


def test_early_writes_go_in_chunks() -> None:
    stage = small(num_blocks=200, host_blocks=200, step_tokens=999, max_context_tokens=999)
    run(stage, 0, 1, 100, length=300)
    says(stage, "write", Selection(["session-1"], 999, "early"))
    stage.write()
    most = MAX_CHUNKS * CHUNK_BLOCKS
    assert stage.tiers.writes.num_written_blocks == most
    stage.write()
    assert stage.tiers.writes.num_written_blocks == most, "the link has enough to do"
    answered(stage)
    stage.write()
    assert stage.tiers.writes.num_written_blocks == 2 * most


def test_a_full_host_keeps_the_front_of_what_was_used_last() -> None:
    stage = small(host_blocks=2)
    run(stage, run(stage, 0, 1, 100), 2, 300)
    stage.tiers.room.make_room(6)
    answered(stage)
    assert list(stage.tiers.host.owners) == ["session-2"]
    assert places(stage.tiers.host, "session-2") == [0, 1]
    stage.forget("session-2")
    assert stage.tiers.host.num_free == 2
    assert np.all(stage.rows.request == -1)


def known_people(*sessions: str) -> NextUseTimes:
    """Of open sessions whose person has just heard a reply of one second, each a second after the other."""
    frontier = Frontier(1, 0.0)
    monitor = Monitor(frontier)
    next_use = NextUseTimes(monitor, frontier)
    for at, session in enumerate(sessions):
        for fact in (SessionOpened(session), ResponseRequested(session, f"r-{session}", "item")):
            monitor.observe(fact, float(at))
            next_use.observe(fact, float(at))
        outputs = (
            AudioOut(session, f"r-{session}", bytes(4 * 24_000)),
            ResponseEnded(session, f"r-{session}", "completed", "", "", Usage()),
        )
        monitor.hear(outputs, float(at))
        next_use.hear(outputs, float(at))
    return next_use


def test_a_view_reads_one_owner_without_a_look_at_its_blocks() -> None:
    stage = small()
    next_use = known_people("session-1")
    stage.tiers.asks.meet(next_use)
    run(stage, 0, 1, 100)
    view = stage.tiers.asks.view("device", 0)
    assert (view.state("session-1"), view.device("session-1")) == (KvState.RESTING, 4)
    assert view.due_s("session-1") == next_use.due_s("session-1", view.now) > 0
    assert math.isnan(view.due_below_s)
    stage.tiers.room.make_room(6)
    answered(stage)
    assert view.due_below_s == view.due_s("session-1")
    assert (view.state("none"), view.device("none")) == (None, 0)
    assert math.isnan(view.due_s("none"))
    assert not view.is_expected("session-1")
    next_use.observe(TurnAdvised("session-1", expected_s=100.0), 6.0)
    assert view.expects_at == 6.0 + 100.0 - NEAR_S
    next_use.observe(SpeechStarted("session-1"), 6.0)
    stage.tell_time(6.0)
    assert stage.tiers.asks.view("device", 0).is_expected("session-1")


def test_early_writing_begins_with_what_is_needed_last_and_passes_over_what_is_written() -> None:
    stage = small(num_blocks=8)
    sessions = ("session-3", "session-2", "session-1")
    next_use = known_people(*sessions)
    stage.tiers.asks.meet(next_use)
    step = 0
    for number in (1, 2, 3):
        step = run(stage, step, number, 100 * number, length=4)
    stage.tell_time(3.0)
    view = stage.tiers.asks.view("device", 0)
    assert [*view.dirty()] == ["session-1", "session-2", "session-3"]
    assert [*view.farthest_dirty()] == ["session-1", "session-2", "session-3"]
    stage.tell_time(60.0)
    assert [*stage.tiers.asks.view("device", 0).farthest_dirty()] == [*sessions], "the longest overdue"
    says(stage, "write", Selection(["session-3"], 9, "early"))
    stage.write()
    answered(stage, 60.0)
    assert [*stage.tiers.asks.view("device", 0).farthest_dirty()] == ["session-2", "session-1"]
    assert "session-3" not in stage.tiers.known.unwritten
    run(stage, step, 4, 900, length=4)
    found = [*stage.tiers.asks.view("device", 0).farthest_dirty()]
    assert found == ["session-1", "session-2", "session-4"], "then that of which nothing is known"


def test_what_the_policy_keeps_on_the_host_stays_and_what_comes_is_lost() -> None:
    stage = small(host_blocks=4)
    run(stage, away(stage), 2, 300)
    policy = says(stage, "evict")
    stage.tiers.room.make_room(6)
    answered(stage)
    assert list(stage.tiers.host.owners) == ["session-1"]
    assert "session-2" not in stage.tiers.known.session, "nothing of it is left anywhere"
    host = next(view for view in policy.views if view.tier == "host")
    assert host.incoming == {"session-2": 4}
