"""Sessions that are evicted to the host between turns and come back: the tokens stay transformers'."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch

from antiphon.assembly.preset import with_preset
from antiphon.core.config import PolicyChoice
from antiphon.core.facts import SpeechEnded, SpeechStarted, TurnAdvised
from antiphon.engine import copies
from antiphon.engine.load import Engine, in_lane
from antiphon.metrics.names import Metric
from exactness.conftest import World
from exactness.rig import regrouped
from exactness.talk import WAIT_S, Talk
from exactness.turns import Turns
from fakes.whims import whims_of
from fakes.world import HURRIED

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

TURNS = ([1, "And now?"], [3, "Thanks."], [4, "Go on."], [2, "Where?"])
"""Of each person: a content with media, then words."""
STAGES = ("thinker", "talker")


def small_pool(
    world: World,
    num_groups: int,
    host_blocks: int = 200,
    depth: int = 0,
    preset: str = "",
    is_paced: bool = False,
    num_blocks: int = 10,
) -> Talk:
    """A device that holds the longest conversation and little more. Unless `is_paced`, nobody waits until
    what was made is heard."""
    engine: Engine = regrouped(world.omni.engine, num_groups, host_blocks)
    if preset:
        node = with_preset(engine.node, preset)
        if not is_paced:
            node.policies["pace"] = PolicyChoice("unpaced")
        engine = replace(engine, node=node)
    if depth:
        engine = in_lane(engine, torch.device("cpu"))
    return Talk(engine, num_blocks=num_blocks)


class Conversations(Turns):
    turns = TURNS

    def finish(self) -> None:
        super().finish()
        self.talk.check_all_free()
        for scheduler in self.talk.driver.node.stages.ar.values():
            assert scheduler.tiers.host.num_free == scheduler.tiers.host.num_blocks
            assert not scheduler.tiers.num_in_flight


@pytest.mark.parametrize(("num_groups", "depth"), [(0, 0), (2, 0), (2, 1)])
def test_evicted_between_turns_and_reloaded(world: World, num_groups: int, depth: int) -> None:
    talk = small_pool(world, num_groups, depth=depth)
    conversations = Conversations(world, talk)
    for turn in range(2):
        for person in range(len(TURNS)):
            conversations.ask(person, turn)
            talk.run()
            conversations.check(person, turn)
    stats = talk.driver.stats()
    for stage in STAGES:
        assert stats[Metric.KV_BLOCKS_RELOADED.of(stage)] > 0
        assert stats[Metric.RELOAD_SECONDS.of(stage)] > 0
    cached = [talk.said[f"{person}-1"].end.usage.cached_tokens for person in range(len(TURNS))]
    size = talk.engine.node.ar["thinker"].block_size
    assert min(cached) >= size
    conversations.finish()


def test_preloaded_as_they_speak_and_cancelled(world: World) -> None:
    """By what people hear: who begins to speak finds their KV there; some fall silent again, or break in."""
    talk = small_pool(world, 2, depth=1, preset=HURRIED)
    conversations = Conversations(world, talk)
    for turn in range(2):
        for person in range(len(TURNS)):
            talk.tell(SpeechStarted(str(person)), TurnAdvised(str((person + 1) % len(TURNS))))
            talk.step(3)
            talk.tell(SpeechEnded(str(person)))
            conversations.ask(person, turn)
            talk.run()
            conversations.check(person, turn)
    counts = talk.driver.node.guard.events
    assert sum(n for (_, _, event), n in counts.items() if event.startswith("preload_begun")) > 0
    assert not talk.driver.node.guard.counts
    conversations.finish()


class Gate:
    """Copies wait here once it is shut, and `reached` says that one does."""

    def __init__(self) -> None:
        self._copy_runs = copies.copy_runs
        self._open = Event()
        self._open.set()
        self.reached = Event()

    def copy_runs(self, *about: Any) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(WAIT_S)
        self._copy_runs(*about)

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("why", ["falls silent", "leaves", "another asks", "asks and cancels"])
def test_a_preload_is_called_off_while_it_is_under_way(
    world: World, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy to the device is held up until that has happened. Nobody's tokens change by it."""
    gate = Gate()
    monkeypatch.setattr(copies, "copy_runs", gate.copy_runs)
    talk = small_pool(world, 2, depth=1, preset=HURRIED)
    conversations = Conversations(world, talk)
    for person in range(len(TURNS)):
        conversations.ask(person, 0)
        talk.run()
        conversations.check(person, 0)
    tiers = [scheduler.tiers for scheduler in talk.driver.node.stages.ar.values()]
    assert any(one.fetches.num_lacking("2") for one in tiers)
    before = sum(one.fetches.num_fetched_blocks for one in tiers)
    gate.shut()
    talk.tell(SpeechStarted("2"))
    talk.turn()
    assert gate.reached.wait(WAIT_S)
    assert sum(one.fetches.num_fetched_blocks for one in tiers) > before
    match why:
        case "falls silent":
            talk.tell(SpeechEnded("2"))
        case "leaves":
            talk.close("2")
        case "another asks":
            conversations.ask(1, 1)
        case _:
            conversations.ask(2, 1)
            talk.cancel("2", "2-1")
    for _ in range(3):
        talk.turn()
        assert any(one._transfers.num_blocks["device"] for one in tiers), "it is still under way"
    gate.open()
    talk.run()
    for person in range(len(TURNS)):
        if person != 2 or why in ("falls silent", "another asks"):
            if f"{person}-1" not in talk.said:
                conversations.ask(person, 1)
                talk.run()
            conversations.check(person, 1)
    conversations.finish()


@pytest.mark.parametrize("depth", [0, 1])
def test_all_at_once_and_preempted(world: World, depth: int) -> None:
    """Rows are given up while blocks come and go; more want to run than fit."""
    talk = small_pool(world, 2, depth=depth)
    whims = [whims_of(talk.driver.node.stages.ar[stage]) for stage in STAGES]
    conversations = Conversations(world, talk)
    steps = 0
    for turn in range(2):
        for person in range(len(TURNS)):
            conversations.ask(person, turn)
        while talk.step():
            steps += 1
            for whim in whims if steps % 9 == 0 else ():
                whim.victims = [steps]
        for person in range(len(TURNS)):
            conversations.check(person, turn)
    assert sum(ar.num_preemptions for ar in talk.driver.node.stages.ar.values()) > 4
    assert talk.driver.stats()[Metric.KV_BLOCKS_RELOADED.of("thinker")] > 0
    conversations.finish()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("group", ["hidden", "layers"])
def test_a_copy_that_breaks_off(
    world: World, depth: int, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round every other copy of a group's last layer back to the device fails."""
    talk = small_pool(world, 2, depth=depth)
    conversations = Conversations(world, talk)
    pool = talk.engine.executors["thinker"]
    pool = getattr(pool, "inner", pool).runner.pool
    name = "hidden" if group == "hidden" else pool.layer_groups[-1]
    touched = {id(pool.device[name][-1])}
    copy_runs, failing, count = copies.copy_runs, [], 0

    def breaks(source, target, pieces):
        nonlocal count
        if id(target) in touched and failing:
            count += 1
            if count % 2:
                raise RuntimeError("out of luck")
        copy_runs(source, target, pieces)

    monkeypatch.setattr(copies, "copy_runs", breaks)
    for turn in range(2):
        for person in range(len(TURNS)):
            conversations.ask(person, turn)
            talk.run()
            conversations.check(person, turn)
        failing.append(turn)
    assert count > 1
    assert talk.driver.node.stages.ar["thinker"].num_preemptions, "a step waited for one in vain"
    conversations.finish()
