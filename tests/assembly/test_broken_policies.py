"""Broken policies under people: whatever each of them does wrong costs nobody a reply."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from antiphon.assembly.preset import with_preset
from antiphon.metrics.log import ErrorSeen, ResponseEnded
from antiphon.runtime.record import RecordWriter, encode, read_record, replay
from antiphon.sim.model import released
from antiphon.sim.run import Outcome
from corpus.make import talk
from fakes.broken import BROKEN, LATE, preset_with
from fakes.world import World, toy_config
from sim.runs import SMALL, outcome


def voice_chat(concurrency: int, duration_s: float, engine: Any) -> Outcome:
    load = {"load": {"closed": {"concurrency": concurrency, "duration_s": duration_s}}}
    return outcome("voice-chat", settings=load, engine=engine)


def statuses(made: Outcome) -> list[str]:
    return [event.status for event in made.events if isinstance(event, ResponseEnded)]


@cache
def good_statuses(concurrency: int, duration_s: float) -> list[str]:
    """How replies end where no policy is broken."""
    return statuses(voice_chat(concurrency, duration_s, released(sizes=SMALL)))


@pytest.mark.parametrize(
    "policy", [one for one in BROKEN if one not in LATE and not one.startswith("Restless")]
)
def test_a_broken_policy_costs_nobody_a_reply(policy: str, tmp_path: Path) -> None:
    tiered = replace(SMALL, host_kv_tokens=16384, kv_tokens=4096)
    load = (1, 2.0) if policy == "Slow" else (3, 10.0)  # Slow sleeps in wall time
    made = voice_chat(*load, released(preset_with(tmp_path, policy), sizes=tiered))
    ends = statuses(made)
    assert ends == good_statuses(*load)
    assert "completed" in ends or policy == "Slow"
    assert not [event for event in made.events if isinstance(event, ErrorSeen)]
    seldom = "Slow", "Endless", "Stubborn", "FromNobody"
    assert made.incidents or policy in seldom, "slow in wall time only, or rarely wrong at this load"


def talked(preset: str, record: Path) -> tuple[World, list[bytes]]:
    """A world in which people talked, and what was recorded of it."""
    config = with_preset(toy_config(rows=3, blocks=18, host_blocks=12), preset)
    recorder = RecordWriter(record, config, 1)
    world = World(config, depth=1, copy_lag=1, recorder=recorder)
    world.is_lenient = True
    talk(world)
    recorder.close()
    return world, [encode(entry) for entry in read_record(record)[1]]


@pytest.fixture(scope="module")
def decided_by_the_baseline(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return talked("baseline", tmp_path_factory.mktemp("baseline") / "record")[1]


@pytest.mark.parametrize("policy", [one for one in BROKEN if one != "Slow"])
def test_a_broken_policy_that_is_observed_changes_nothing(
    policy: str, tmp_path: Path, decided_by_the_baseline: list[bytes]
) -> None:
    path = Path(preset_with(tmp_path, policy))
    path.write_text(path.read_text() + "observe: true\n")
    world, decided = talked(str(path), tmp_path / "record")
    assert decided == decided_by_the_baseline
    assert not world.node.guard.overruled
    asked = [one for one in world.node.guard._watched if one.is_observed]
    assert {one.decision for one in asked} == {*BROKEN[policy]}
    assert sum(one.num_asked for one in asked) > 0


def test_a_stage_does_not_stand_still(tmp_path: Path) -> None:
    """Every row waits for a block, and the policy preempts none."""
    config = with_preset(toy_config(rows=3, blocks=18), preset_with(tmp_path, "Stubborn"))
    world = World(config, depth=1)
    world.is_lenient = True
    talk(world)
    assert not [one for one in world.responses.values() if one.end is None]
    assert world.node.guard.counts["thinker", "Stubborn", "stalled"] > 0


def test_who_is_not_brought_computes_though_others_would_fit_first(tmp_path: Path) -> None:
    """A fetch policy that names all of them, in an order of its own, and brings nothing."""
    config = with_preset(toy_config(rows=3, blocks=18, host_blocks=12), preset_with(tmp_path, "FromNobody"))
    world = World(config, depth=1, copy_lag=1)
    world.is_lenient = True
    talk(world)
    assert not [one for one in world.responses.values() if one.end is None]


@pytest.mark.parametrize("keeps", [False, True])
def test_requests_that_are_preempted_for_ever_get_on(keeps: bool, tmp_path: Path) -> None:
    """Two steps are in flight, so that none finds its rows still there."""
    path = preset_with(tmp_path, "RestlessKeeping" if keeps else "Restless")
    config = with_preset(toy_config(rows=3, blocks=18), path)
    recorder = RecordWriter(tmp_path / "record", config, 1)
    world = World(config, depth=1, recorder=recorder)
    world.is_lenient = True
    talk(world)
    recorder.close()
    assert not [one for one in world.responses.values() if one.end is None]
    assert sum(n for (_, _, event), n in world.node.guard.counts.items() if event == "stalled") > 0
    assert any("no request gets a token" in str(one) for one in world.node.guard.incidents())
    assert replay(tmp_path / "record", path)[1] == []
