"""What policies see of a stage: each candidate with what is its own, and nothing that they could write."""

from __future__ import annotations

import sys
from math import inf
from types import FrameType

import numpy as np

from antiphon.core.config import ClassBounds
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.playback import Source
from antiphon.flow.stages import Scheduler
from antiphon.interaction.frontier import Frontier
from antiphon.policy.base import StepView, Tier
from antiphon.stage.candidates import Surroundings
from fakes import toy
from fakes.world import World, toy_config
from stage import test_ar


def free_rows(scheduler: Scheduler, now: float) -> int:
    """Those that come back by themselves included."""
    view, _ = scheduler.choose(now)
    return view.num_free_rows + view.num_pending_rows


COLUMNS = tuple(StepView.__annotations__)


def test_no_column_can_be_written() -> None:
    world = World(toy_config(rows=2, media=1))
    for number, person in enumerate("abcd"):
        parts = (TextPart(f"{person} has a lot to say"), toy.tone(number))
        world.send(SessionOpened(person), ItemAdded(person, Item(person, "user", parts)))
        world.send(ResponseRequested(person, person, f"reply-{person}"))
    seen: dict[str, int] = dict.fromkeys(("encoders", "thinker", "talker", "code2wav"), 0)
    while world.turn():
        for scheduler in world.node.stages.all:
            view, _ = scheduler.choose(world.now)
            for held in (None, np.ones(len(view), np.bool_)):
                view.hold(held)
                columns = [getattr(view, name) for name in COLUMNS]
                assert not [one for one in columns if isinstance(one, np.ndarray) and one.flags.writeable]
            scheduler.tell_time(world.now)
            seen[scheduler.name] += len(view)
    assert all(seen.values()), seen


def test_each_candidate_is_seen_with_its_own_response() -> None:
    """Rows first and then what waits, whatever slots their responses have."""
    frontier = Frontier(2, frame_s=0.5)
    bounds = {"latency": ClassBounds(ttft_s=0.5, tpot_s=0.1)}
    stage = test_ar.scheduler(around=Surroundings(frontier, 0, bounds), max_rows=1)
    slots = [frontier.take(asked_at, is_spoken=True) for asked_at in (1.0, 2.0, 4.0)]
    for number, at, tier in ((1, 1, Tier.LATENCY), (2, 2, Tier.BEST_EFFORT), (3, 0, Tier.LATENCY)):
        one = test_ar.request(number, 2, first=100 * number)
        one.slot, one.tier = slots[at], tier
        stage.submit(one)
    test_ar.planned(stage, 0)
    frontier.begin(slots[0])
    frontier.play(slots[0], dry_at=8.0, source=Source.ACKED)
    frontier.fall_silent(slots[0])
    frontier.make(0, slots[0], 3)
    frontier.end_speech(slots[2])
    stage.tell_time(5.0)
    view, _ = stage.choose(5.0)
    assert view.request.tolist() == [1, 2, 3]
    assert view.row.tolist() == [0, -1, -1]
    assert view.age_s.tolist() == [3.0, 1.0, 4.0]
    assert view.begun.tolist() == [False, False, True]
    assert view.ahead_s.tolist() == [0.0, 0.0, 1.5]
    assert view.lead_s[2] == 3.0 + 1.5
    assert np.isnan(view.lead_s[:2]).all()
    assert view.source.tolist() == [Source.UNKNOWN, Source.UNKNOWN, Source.ACKED]
    assert view.num_gaps.tolist() == [0, 0, 1]
    assert (view.rate[0], view.rate[2]) == (2.0, 2.0)
    assert np.isnan(view.rate[1])
    assert view.ttft_s.tolist() == [0.5, inf, 0.5]
    assert view.tpot_s.tolist() == [0.1, inf, 0.1]


def test_a_stage_sees_how_full_those_behind_it_are() -> None:
    """Of the talker's and the vocoder's two rows; nothing is behind the vocoder, nor behind what encodes."""
    world = World(toy_config(rows=2, media=1))
    for person in "abc":
        item = Item(person, "user", (TextPart("say a lot"),))
        world.send(SessionOpened(person), ItemAdded(person, item))
        world.send(ResponseRequested(person, person, f"reply-{person}"))
    seen: dict[str, set[float]] = {"encoders": set(), "thinker": set(), "talker": set(), "code2wav": set()}
    while world.turn():
        stages = {one.name: one for one in world.node.stages.all}
        behind = {name: one.choose(world.now)[0].rows_behind for name, one in stages.items()}
        own = {name: 1.0 - free_rows(stages[name], world.now) / 2 for name in ("talker", "code2wav")}
        assert behind["thinker"] == max(own.values())
        assert behind["talker"] == own["code2wav"]
        for name, scheduler in stages.items():
            scheduler.tell_time(world.now)
            seen[name].add(behind[name])
    assert seen["thinker"] == {0.0, 0.5, 1.0}
    assert seen["encoders"] == seen["code2wav"] == {0.0}


def test_a_long_queue_costs_a_view_no_call_per_request() -> None:
    """What is seen of two thousand that wait is kept up as they come, change and go."""
    world = World(toy_config(rows=1))
    for number in range(2000):
        name = f"p{number}"
        world.send(SessionOpened(name), ItemAdded(name, Item(name, "user", (TextPart("hello"),))))
        world.send(ResponseRequested(name, name, f"reply-{name}"))
    world.turn()
    world.turn()
    thinker = world.node.stages.ar["thinker"]
    assert thinker.num_waiting > 1900
    thinker.tell_time(world.now)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        view, _ = thinker.choose(world.now)
        assert len(view.needs) == len(view.tokens) == len(view.age_s) > 1900
    finally:
        sys.setprofile(None)
    assert calls < 1000, "it costs a call for each that waits"
