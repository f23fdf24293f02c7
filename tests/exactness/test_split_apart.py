"""Encoders, prompts and replies in processes of their own: KV goes over a link, and the tokens stay
transformers', also where a process is killed while it does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from antiphon import Omni
from antiphon.core.config import LinkOptions, Unit
from antiphon.core.errors import ConfigError
from antiphon.core.plans import MoveBlocks
from antiphon.metrics.names import Metric
from exactness.conftest import World, user
from exactness.talk import SIZES, Talk
from exactness.test_apart import wait_until_whole
from exactness.test_reference import check
from exactness.test_split import PEOPLE, Conversations

pytestmark = [
    pytest.mark.usefixtures("forked_processes"),
    pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`"),
    pytest.mark.timeout(120),
]

SPLIT = (
    Unit("encoders", "encoders", process="e"),
    Unit("thinker.p", "thinker", process="p", role="prefill"),
    Unit("thinker.d", "thinker", process="d", role="decode"),
    Unit("talker", "talker", process="t"),
    Unit("code2wav", "code2wav", process="t"),
)
WAYS = {
    "shared memory": {"layer_groups": 2},
    "tcp, a step ahead": {"depth": 1, "links": (LinkOptions("thinker", "thinker", "tcp"),)},
}


@pytest.fixture(scope="module", params=WAYS)
def apart(world: World, request: pytest.FixtureRequest) -> Iterator[Omni]:
    if request.param != "shared memory" and world.seed:
        pytest.skip("one checkpoint is enough")
    omni = Omni(world.path, device="cpu", dtype="float64", units=SPLIT, **SIZES, **WAYS[request.param])
    yield omni
    omni.close()


def test_conversations(world: World, apart: Omni) -> None:
    talk = Talk(apart.engine)
    wait_until_whole(talk)
    conversations = Conversations(world, talk)
    for turn in range(3):
        for person in PEOPLE:
            conversations.ask(person, turn)
        talk.run()
        for person in PEOPLE:
            conversations.check(person, turn)
    stats = talk.driver.stats()
    assert stats[Metric.KV_BLOCKS_MOVED.of("thinker.d")] > 0
    assert stats[Metric.EMITTED.of("thinker.p")] == 3 * len(PEOPLE)
    conversations.finish()


@pytest.mark.parametrize("victim", ["thinker.p", "thinker.d"])
def test_a_side_dies_while_kv_moves(world: World, apart: Omni, victim: str) -> None:
    """Who has lost what was to be sent computes it; who has lost where it is written is told so."""
    talk = Talk(apart.engine)
    wait_until_whole(talk)
    for person in PEOPLE:
        talk.open(str(person), world.item(person))
        talk.ask(str(person), f"{person}-0")
    mover, pids = talk.engine.mover, apart.engine.processes.processes.pids
    move, killed = mover.move, []

    def moved(order: MoveBlocks) -> None:
        move(order)
        if not killed:
            os.kill(pids[victim[-1]], signal.SIGKILL)
            killed.append(time.monotonic())

    mover.move = moved
    talk.run()
    mover.move = move
    assert killed
    ends = [talk.said[f"{person}-0"] for person in PEOPLE]
    for person, said in zip(PEOPLE, ends, strict=True):
        if said.end.status == "failed":
            assert said.end.reason == "stage_lost"
        else:
            check(said, world.expect((world.item(person),)), world.eos)
    if victim == "thinker.d":
        assert any(said.end.status == "failed" for said in ends)
    wait_until_whole(talk)
    talk.open("late", user(world.contents[1], "user"))
    talk.ask("late", "late")
    talk.run()
    check(talk.said["late"], world.expect((user(world.contents[1], "user"),)), world.eos)
    talk.close("late", *map(str, PEOPLE))
    talk.run()
    for scheduler in talk.driver.node.stages.ar.values():
        assert scheduler.kv.blocks.num_free == scheduler.kv.num_blocks
        assert not scheduler.leases


def test_a_stage_half_in_the_engines_process_is_refused(world: World) -> None:
    units = (*SPLIT[:2], Unit("thinker.d", "thinker", role="decode"), *SPLIT[3:])
    with pytest.raises(ConfigError, match="give each of its units a process, or none"):
        Omni(world.path, device="cpu", dtype="float64", units=units)
