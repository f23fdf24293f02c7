"""Conversations of which few fit on the device: what waits its turn lies on the host, and comes back."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import CopyBlocks
from antiphon.metrics.names import Metric
from fakes import toy
from fakes.early import WriteEarly
from fakes.world import HURRIED, World, toy_config
from stage.tiering import says

SPLIT = (("low", 0, 1), ("high", 1, 2))
PEOPLE = ("ann", "bob", "cleo", "dan")
WORDS = "and then she went on to say what had happened before that on the very same day"


def ask(world: World, turn: int, person: str, with_audio: bool = True) -> None:
    text = TextPart(f"{person} {turn} {WORDS}")
    item = Item(f"{turn}-{person}", "user", (text, toy.tone(turn)) if with_audio else (text,))
    world.send(ItemAdded(person, item))
    world.send(ResponseRequested(person, f"{turn}-{person}", f"reply-{turn}-{person}", codes=True))


def converse(world: World, turns: int = 3, at_once: bool = False) -> None:
    for person in PEOPLE:
        world.send(SessionOpened(person))
    for turn in range(turns):
        for person in PEOPLE:
            ask(world, turn, person)
            if not at_once:
                world.run()
        world.run()
    for heard in world.responses.values():
        world.check(heard)
        assert heard.end.status in ("completed", "incomplete")


def leave(world: World) -> None:
    for person in PEOPLE:
        world.send(SessionClosed(person))
    world.run()
    world.check_empty()


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("copy_lag", [0, 2])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("groups", [(), SPLIT])
def test_what_left_the_device_comes_back(groups: object, depth: int, copy_lag: int, at_once: bool) -> None:
    world = World(toy_config(blocks=32, host_blocks=200, layer_groups=groups), depth, copy_lag=copy_lag)
    converse(world, at_once=at_once)
    stats = world.node.stats()
    for stage in ("thinker", "talker"):
        assert stats[Metric.KV_BLOCKS_EVICTED.of(stage)] > 0
        assert stats[Metric.KV_BLOCKS_HOST.of(stage)] > 0
        assert stats[Metric.KV_BLOCKS_RELOADED.of(stage)] > 0
        assert stats[Metric.RELOAD_SECONDS.of(stage)] > 0
    leave(world)


def test_little_is_computed_twice() -> None:
    """With a host tier all but the last tokens of a conversation are found again; without one, little is."""
    shares = []
    for host_blocks in (0, 200):
        world = World(toy_config(blocks=32, host_blocks=host_blocks))
        converse(world)
        usages = [heard.end.usage for (_, name), heard in world.responses.items() if name[0] != "0"]
        prompts = sum(usage.input_text_tokens + usage.input_audio_tokens for usage in usages)
        shares.append(sum(usage.cached_tokens for usage in usages) / prompts)
        leave(world)
    assert shares[0] < 0.2
    assert shares[1] > 0.45


def test_a_host_that_is_too_small_keeps_what_was_used_last() -> None:
    world = World(toy_config(blocks=32, host_blocks=24))
    converse(world)
    assert world.node.stats()[Metric.KV_BLOCKS_HOST.of("thinker")] > 12
    leave(world)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("copy_lag", [0, 3])
@pytest.mark.parametrize("way", ["host", "device"])
def test_copies_that_break_off_cost_time_and_nothing_else(depth: int, copy_lag: int, way: str) -> None:
    world = World(toy_config(blocks=32, host_blocks=200), depth, copy_lag=copy_lag)
    world.mover.failing_to = (way,)
    for person in PEOPLE:
        world.send(SessionOpened(person))
    for turn in range(3):
        for number, person in enumerate(PEOPLE):
            ask(world, turn, person, with_audio=turn == 0)  # later ones join while their KV is on its way
            world.mover.num_failing = (number + turn) % 4
            world.run()
    assert world.mover.num_failed > 2
    stats = world.node.stats()
    failed = {
        purpose: sum(stats[Metric.KV_COPIES_FAILED.of_copy(stage, purpose)] for stage in world.node.stages.ar)
        for purpose in ("store", "load", "preload")
    }
    assert failed.pop("store" if way == "host" else "load") > 0
    assert not any(failed.values())
    num_preemptions = sum(ar.num_preemptions for ar in world.node.stages.ar.values())
    assert (num_preemptions > 0) == (way == "device"), num_preemptions
    for heard in world.responses.values():
        world.check(heard)
        assert heard.end.status in ("completed", "incomplete")
    leave(world)


def test_a_host_that_takes_nothing_is_asked_once_a_turn() -> None:
    """The node comes to rest, which `run` waits for."""
    world = World(toy_config(blocks=32, host_blocks=200, preset=HURRIED))
    world.mover.failing_to, world.mover.num_failing = ("host",), 1 << 30
    for person in PEOPLE[:2]:
        world.send(SessionOpened(person))
    num_failed = [0]
    for turn in range(3):
        for person in PEOPLE[:2]:
            ask(world, turn, person, with_audio=False)
            world.run()
            num_failed.append(world.mover.num_failed)
    assert num_failed[-1] > num_failed[-2] > 0, "it is tried again once the KV is another one"
    world.mover.num_failing = 0
    for person in PEOPLE[:2]:
        ask(world, 3, person, with_audio=False)
        world.run()
    assert world.node.stats()[Metric.KV_BLOCKS_HOST.of("thinker")] > 0
    for heard in world.responses.values():
        world.check(heard)


@pytest.mark.parametrize("is_busy", [False, True])
def test_kv_is_looked_after_at_every_decision(is_busy: bool) -> None:
    """Also while nothing runs, and while the device is busy and no step is planned."""
    world = World(toy_config(blocks=64, host_blocks=200), depth=1)
    for person in PEOPLE[:2]:
        world.send(SessionOpened(person))
    ask(world, 0, PEOPLE[0])
    world.run()
    if is_busy:
        ask(world, 0, PEOPLE[1])
        while world.node.num_in_flight < 2:
            world.turn()
    WriteEarly.take_over(world.entry)
    orders = world.node.decide((), world.now).orders
    assert orders
    assert all(isinstance(order, CopyBlocks) for order in orders)
    fetch = says(world.entry, "fetch")
    world.node.decide((), world.now)
    assert fetch.views, "what is to come is asked for as well"
