"""A policy may leave a device idle for a while; longer than that only those wait who are ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.stage_options import EdgeOptions
from antiphon.metrics.log import ResponseEnded
from antiphon.policy.base import Hold
from antiphon.policy.unpaced import Unpaced
from antiphon.runtime.record import RecordWriter, replay
from antiphon.sim.model import SimEngine, released
from corpus import policies
from fakes.broken import LATE, preset_with
from fakes.world import World, toy_config
from sim.runs import SMALL, outcome


def holding(folder: Path) -> SimEngine:
    """Whoever is ahead of the listener."""
    return released(preset_with(folder, "HoldAhead", policies.__file__, ("pace",)), sizes=SMALL)


@pytest.mark.parametrize("policy", LATE)
def test_no_device_is_left_idle_while_a_person_waits(policy: str, tmp_path: Path) -> None:
    """Whenever the policy wishes to be asked again; and the record says the same again."""
    engine = released(preset_with(tmp_path, policy), sizes=SMALL)
    writer = RecordWriter(tmp_path / "run.rec", engine.node, engine.depth)
    load = {"load": {"closed": {"concurrency": 1, "duration_s": LATE[policy]}}}
    made = outcome("voice-chat", settings=load, engine=engine, recorder=writer)
    writer.close()
    assert "completed" in [event.status for event in made.events if isinstance(event, ResponseEnded)]
    assert any("left the device idle for 2 s" in str(one) for one in made.incidents)
    assert replay(tmp_path / "run.rec", engine.node.preset)[1] == []


@pytest.mark.parametrize("late_s", [0.0, 3.0])
def test_who_was_not_asked_in_time_held_nobody_up(late_s: float) -> None:
    """Its wish is to hold somebody for a moment. The node is called as it wishes, again and again; or far too
    late, once."""

    class Moment:
        name = "moment"

        def decide(self, view: Any, now: float) -> Hold:
            return Hold(np.ones(len(view.row), np.bool_), "in a moment", wake_at=now + 0.05)

    world = World(toy_config())
    world.is_lenient = True
    pace = world.node.guard.watched("pace", world.entry.name, Moment(), Unpaced())
    world.entry._policies = replace(world.entry._policies, pace=pace)
    world.send(SessionOpened("a"), ItemAdded("a", Item("q", "user", (TextPart("how are you"),))))
    world.send(ResponseRequested("a", "r", "reply", speech=False))
    for _ in range(5):
        world.turn()
    world.now += late_s
    for _ in range(20 if late_s else 60):
        world.turn()
    assert bool(world.node.guard.counts) == (not late_s), world.node.guard.counts


def test_who_is_ahead_of_the_listener_may_be_held(tmp_path: Path) -> None:
    load = {"load": {"closed": {"concurrency": 2, "duration_s": 40.0}}}
    made = outcome("voice-chat", settings=load, engine=holding(tmp_path))
    assert any(event.status == "completed" for event in made.events if isinstance(event, ResponseEnded))
    assert not [one for one in made.incidents if "wake_at is 0 s" not in str(one)]


def test_who_has_heard_all_that_is_sound_is_not_held_for_ever(tmp_path: Path) -> None:
    """What is held may be less than a chunk, which the vocoder waits for: it is ahead for good."""
    engine = holding(tmp_path)
    node = msgspec.structs.replace(engine.served.node, edges=(EdgeOptions("talker", "code2wav", 2, 60, 64),))
    engine = SimEngine(msgspec.structs.replace(engine.served, node=node), engine.block_bytes)
    load = {"load": {"closed": {"concurrency": 1, "sessions": 1}}}
    made = outcome("voice-chat", settings=load, engine=engine, patience_s=600.0)
    assert {event.status for event in made.events if isinstance(event, ResponseEnded)} == {"completed"}
    assert made.events[-1].t_s < 300
    assert any("left the device idle for 2 s" in str(one) for one in made.incidents)
