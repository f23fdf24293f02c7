"""A node whose stages keep their KV in several groups of layers: same turns, blocks of every group."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from fakes import toy
from fakes.world import World, toy_config

SPLIT = (("low", 0, 1), ("mid", 1, 3), ("high", 3, 4))


@pytest.mark.parametrize("depth", [0, 1])
def test_turns_over_several_groups(depth: int) -> None:
    """Small pools, so that rows wait and idle KV is evicted in every group alike."""
    world = World(toy_config(blocks=16, layer_groups=SPLIT), depth)
    sessions = ("a", "b", "c")
    for session in sessions:
        world.send(SessionOpened(session))
    for turn in ("first", "second"):
        for session in sessions:
            item = Item(f"{turn}-{session}", "user", (TextPart(f"{turn} words"), toy.tone(1)))
            world.send(ItemAdded(session, item))
            world.send(ResponseRequested(session, f"{turn}-{session}", f"reply-{turn}-{session}", codes=True))
        world.run()
    for heard in world.responses.values():
        world.check(heard)
        assert heard.end.status in ("completed", "incomplete")
    assert world.node.stages.ar["thinker"].kv.groups == ("low", "mid", "high", "hidden")
    assert world.node.stages.ar["thinker"].kv.resting.num_evicted_blocks > 0
    assert {group for group, _, _ in world.talker.kv} == {"low", "mid", "high"}
    for session in sessions:
        world.send(SessionClosed(session))
    world.run()
    world.check_empty()
