"""Sessions of one request each, closed after their reply: what they leave as cache, and for whom."""

from __future__ import annotations

import pytest

from antiphon.core.config import Unit
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.metrics.names import Metric
from fakes import toy
from fakes.cache import check_cache_leaves
from fakes.world import HURRIED, READERS, World, toy_config

LONG = "please listen to all of what is said here before you say anything at all"
APART = tuple(Unit(name, name, process=name) for name in ("encoders", "thinker", "talker", "code2wav"))


def request(name: str, text: str, salt: str = "") -> ResponseRequested:
    items = (Item("all", "user", (TextPart(LONG), toy.tone(1), TextPart(text))),)
    return ResponseRequested(
        name, name, "reply", speech=False, remember=False, items=items, cache_salt=salt, codes=True
    )


def ask(world: World, name: str, salt: str = "", keeps_kv: bool = True) -> float:
    """Asks, waits for the reply and closes; returns the share of the prompt that was cached."""
    world.send(SessionOpened(name), request(name, f"and that is {name}", salt))
    world.run()
    world.send(SessionClosed(name, keeps_kv))
    world.run()
    heard = world.responses[name, name]
    world.check(heard)
    assert heard.end is not None
    assert heard.end.status in ("completed", "incomplete")
    usage = heard.end.usage
    return usage.cached_tokens / (usage.input_text_tokens + usage.input_audio_tokens)


def left(world: World) -> None:
    world.check_empty()
    for ar in world.node.stages.ar.values():
        check_cache_leaves(ar.kv)


@pytest.mark.parametrize("preset", ["baseline", HURRIED, READERS])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_finds_what_a_closed_session_left(depth: int, preset: str) -> None:
    world = World(toy_config(blocks=48, preset=preset), depth)
    assert ask(world, "a") == 0
    assert ask(world, "b") > 0.6
    assert world.node.stats()[Metric.KV_BLOCKS_CACHED.of("thinker")] >= 5
    left(world)


def test_nothing_is_found_of_what_was_not_kept_or_of_another_salt_or_a_unit_that_was_lost() -> None:
    world = World(toy_config(blocks=96, units=APART))
    ask(world, "a", keeps_kv=False)
    assert ask(world, "b") == 0
    assert ask(world, "c", salt="mine") == 0
    assert ask(world, "d", salt="mine") > 0.6
    assert ask(world, "e") > 0.6
    world.kill("thinker")
    assert ask(world, "f") == 0
    left(world)


def test_a_reply_that_its_client_cut_leaves_its_kv_too() -> None:
    """Its row is in a step in flight when its session closes."""
    world = World(toy_config(blocks=48), depth=1)
    world.send(SessionOpened("k"), request("k", "and that is k"))
    for _ in range(100):
        if world.responses["k", "k"].text:
            break
        world.turn()
    assert world.node.num_in_flight
    assert world.responses["k", "k"].end is None
    world.send(ResponseCancelled("k", "k", "stop"), SessionClosed("k", keeps_kv=True))
    world.turn()
    assert world.entry.kv.blocks.num_cache >= 5
    assert ask(world, "b") > 0.6
    left(world)


@pytest.mark.parametrize("preset", ["baseline", HURRIED, READERS])
def test_cache_costs_the_living_nothing_and_never_goes_to_the_host(preset: str) -> None:
    """A person's KV stays while there is cache that can go, however long ago they spoke."""
    world = World(toy_config(blocks=56, host_blocks=100, preset=preset, speaks=False))
    world.send(SessionOpened("ann"))
    item = Item("first", "user", (TextPart(f"ann says that {LONG}"),))
    world.send(ItemAdded("ann", item), ResponseRequested("ann", "first", "reply-first"))
    world.run()
    rests = world.entry.kv.resting.held_tokens("ann")
    written = world.entry.tiers.writes.num_written_blocks
    for number in range(8):
        world.send(SessionOpened(f"s{number}"))
        text = f"{number} is what this one has to say, and it says so at some length"
        asked = Item("all", "user", (TextPart(text),))
        world.send(ResponseRequested(f"s{number}", f"s{number}", "reply", remember=False, items=(asked,)))
        world.run()
        world.send(SessionClosed(f"s{number}", keeps_kv=True))
        world.run()
    assert world.entry.kv.resting.held_tokens("ann") == rests > 0
    assert world.entry.kv.resting.num_evicted_blocks == 0
    assert preset != "baseline" or world.entry.tiers.writes.num_written_blocks == written
    assert not world.entry.tiers.host.owners - {"ann"}
    world.send(SessionClosed("ann"))
    world.run()
    left(world)
