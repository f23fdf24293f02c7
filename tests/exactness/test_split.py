"""Prompts read by one unit and replies written by another, encoders on a device of their own: the tokens stay
transformers', turn after turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon import Omni
from antiphon.core.config import Unit
from antiphon.engine import copies
from antiphon.metrics.names import Metric
from antiphon.runtime.record import RecordWriter, replay
from exactness.conftest import World
from exactness.talk import SIZES, Talk
from exactness.turns import Turns
from fakes.whims import whims_of

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

SPLIT = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.p", "thinker", "b", role="prefill"),
    Unit("thinker.d", "thinker", "c", role="decode"),
    Unit("talker", "talker", "d"),
    Unit("code2wav", "code2wav", "d"),
)
TURNS = ([0, "And now?", "Thanks."], [3, "Then?", "Go on."], [4, "Where?", "Why?"], [5, 1, "No."])
"""Of each person: numbers of contents with media, or words."""
PEOPLE = range(len(TURNS))


class Conversations(Turns):
    turns = TURNS

    def finish(self) -> None:
        super().finish()
        for scheduler in self.talk.driver.node.stages.ar.values():
            assert scheduler.kv.blocks.num_free == scheduler.kv.num_blocks
            assert not scheduler.leases


def split_talk(world: World, recorder: RecordWriter | None = None, **options) -> Talk:
    omni = Omni(world.path, dtype="float64", units=SPLIT, **SIZES, **options)
    return Talk(omni.engine, recorder)


@pytest.mark.parametrize("layer_groups", [1, 2])
@pytest.mark.parametrize("depth", [0, 1])
def test_conversations(world: World, depth: int, layer_groups: int) -> None:
    talk = split_talk(world, depth=depth, layer_groups=layer_groups)
    conversations = Conversations(world, talk)
    for turn in range(3):
        for person in PEOPLE:
            conversations.ask(person, turn)
        talk.run()
        for person in PEOPLE:
            conversations.check(person, turn)
    stats = talk.driver.stats()
    assert stats[Metric.KV_BLOCKS_MOVED.of("thinker.d")] > 0
    assert stats[Metric.EMITTED.of("thinker.p")] == 3 * len(TURNS)
    assert stats[Metric.EMITTED.of("thinker.d")] > 3 * len(TURNS)
    conversations.finish()


def test_a_prompt_is_sent_only_as_far_as_it_is_not_there(world: World) -> None:
    talk = split_talk(world)
    conversations = Conversations(world, talk)
    moved = []
    for turn in range(2):
        before = talk.driver.stats()[Metric.KV_BLOCKS_MOVED.of("thinker.d")]
        conversations.ask(2, turn)
        talk.run()
        conversations.check(2, turn)
        moved.append(talk.driver.stats()[Metric.KV_BLOCKS_MOVED.of("thinker.d")] - before)
    assert 0 < moved[1] < moved[0]
    conversations.finish()


MOST_PREEMPTIONS = 12
"""Who is preempted for ever before its prompt is read never gets on."""


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("unit", ["thinker.p", "thinker.d"])
def test_preempted(world: World, unit: str, depth: int) -> None:
    """Who is preempted where it writes computes its past again there, media included."""
    talk = split_talk(world, depth=depth, layer_groups=2, step_tokens=40)
    scheduler = talk.driver.node.stages.ar[unit]
    whims, conversations, steps = whims_of(scheduler), Conversations(world, talk), 0
    for turn in range(2):
        for person in PEOPLE:
            conversations.ask(person, turn)
        while talk.step():
            steps += 1
            is_enough = scheduler.num_preemptions >= MOST_PREEMPTIONS
            if not is_enough and steps % (2 if unit == "thinker.p" else 5) == 0:
                whims.victims = [steps]
        for person in PEOPLE:
            conversations.check(person, turn)
    assert scheduler.num_preemptions > 1
    conversations.finish()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("group", ["hidden", "layers"])
def test_a_move_that_breaks_off(
    world: World, depth: int, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other move of a group's last layer fails: its requests compute anew what was not brought."""
    talk = split_talk(world, depth=depth, layer_groups=2)
    executor = talk.engine.executors["thinker.d"]
    pool = getattr(executor, "inner", executor).runner.pool
    name = "hidden" if group == "hidden" else pool.layer_groups[-1]
    touched, copy_runs, count = id(pool.device[name][-1]), copies.copy_runs, 0

    def breaks(source, target, pieces):
        nonlocal count
        if id(target) == touched:
            count += 1
            if count % 2:
                raise RuntimeError("out of luck")
        copy_runs(source, target, pieces)

    monkeypatch.setattr(copies, "copy_runs", breaks)
    conversations = Conversations(world, talk)
    for turn in range(2):
        for person in PEOPLE:
            conversations.ask(person, turn)
        talk.run()
        for person in PEOPLE:
            conversations.check(person, turn)
    assert count > 1
    assert talk.driver.node.stages.ar["thinker.d"].num_preemptions, "a step waited for one in vain"
    conversations.finish()


def test_a_record_of_it_is_decided_alike(world: World, tmp_path: Path) -> None:
    talk = split_talk(world, depth=1)
    writer = RecordWriter(tmp_path / "record", talk.engine.node, 1)
    talk.driver.recorder = writer
    for person in PEOPLE:
        talk.open(str(person), world.item(person))
        talk.ask(str(person))
    talk.run()
    writer.close()
    count, differences = replay(tmp_path / "record")
    assert count > 10
    assert not differences
