"""What policies see of a stage cannot be written by them."""

from __future__ import annotations

import numpy as np

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.policy.base import StepView
from fakes import toy
from fakes.world import World, toy_config

COLUMNS = tuple(name for name, what in vars(StepView).items() if isinstance(what, property))


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
                view.held_back = held
                columns = [getattr(view, name) for name in COLUMNS]
                assert not [one for one in columns if isinstance(one, np.ndarray) and one.flags.writeable]
            scheduler.tell_time(world.now)
            seen[scheduler.name] += len(view)
    assert all(seen.values()), seen
