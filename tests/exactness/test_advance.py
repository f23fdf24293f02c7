"""What was read of a turn before its reply was asked for changes nothing of what the reference says."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import Item, TokensPart
from antiphon.core.facts import ItemRemoved, ResponseRequested, TurnAdvised
from antiphon.metrics.names import Metric
from exactness.conftest import World, user
from exactness.talk import Talk
from exactness.test_reference import check

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")

STEP_TOKENS = 16
"""Few, so that a preparation takes several steps."""


def used(talk: Talk) -> int:
    return int(talk.driver.stats()[Metric.PREPARED_USED.of("thinker")])


def advise(talk: Talk, session: str = "s") -> None:
    talk.tell(TurnAdvised(session, "turn", reply=ResponseRequested(session, "", "")))


def replied(world: World, talk: Talk, *items: Item) -> tuple[Item, ...]:
    """The conversation after a first turn."""
    talk.open("s", *items)
    talk.ask("s", "r0")
    talk.run()
    return (*items, Item("reply-r0", "assistant", (TokensPart(tuple(talk.said["r0"].text)),)))


def leave(talk: Talk, *sessions: str) -> None:
    talk.close(*sessions)
    talk.run()
    talk.check_all_free()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_turn_that_was_prepared(world: World, index: int) -> None:
    talk = world.talk(step_tokens=STEP_TOKENS)
    history = replied(world, talk, user(world.contents[1], "user-0"))
    second = user(world.contents[index], "user-1")
    talk.add("s", second)
    advise(talk)
    talk.run()
    talk.ask("s", "r1")
    talk.run()
    check(talk.said["r1"], world.expect((*history, second)), world.eos)
    assert used(talk) > 0
    leave(talk, "s")


def test_a_part_of_it_was_deleted(world: World) -> None:
    talk = world.talk(step_tokens=STEP_TOKENS)
    history = replied(world, talk, user(world.contents[1], "user-0"))
    gone, second = user(world.contents[2], "user-1"), user(world.contents[0], "user-2")
    talk.add("s", gone)
    talk.add("s", second)
    advise(talk)
    talk.run()
    talk.tell(ItemRemoved("s", "user-1"))
    talk.ask("s", "r1")
    talk.run()
    check(talk.said["r1"], world.expect((*history, second)), world.eos)
    leave(talk, "s")


@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_another_reply_was_wanted_meanwhile(world: World, num_steps: int) -> None:
    """It ends midway, the other is made, and then the turn comes: both say what the reference says."""
    talk = world.talk(step_tokens=STEP_TOKENS)
    history = replied(world, talk, user(world.contents[1], "user-0"))
    second, other = user(world.contents[4], "user-1"), user(world.contents[2], "user-o")
    talk.add("s", second)
    talk.open("o", other)
    advise(talk)
    talk.step(num_steps)
    talk.ask("o")
    talk.step(2)
    talk.ask("s", "r1")
    talk.run()
    check(talk.said["o"], world.expect((other,)), world.eos)
    check(talk.said["r1"], world.expect((*history, second)), world.eos)
    leave(talk, "s", "o")


def test_the_first_reply_was_cut_and_the_next_turn_prepared(world: World) -> None:
    talk, first = world.talk(step_tokens=STEP_TOKENS), user(world.contents[1], "user-0")
    talk.open("s", first)
    talk.ask("s", "r0")
    while len(talk.said["r0"].text) < 6:
        talk.step()
    talk.cancel("s", "r0", 3)
    second = user("Go on.", "user-1")
    talk.add("s", second)
    advise(talk)
    talk.run()
    assert talk.driver.stats()[Metric.PREPARED_TOKENS.of("thinker")] > 0
    talk.ask("s", "r1")
    talk.run()
    heard = Item("reply-r0", "assistant", (TokensPart(tuple(talk.said["r0"].text[:3])),))
    check(talk.said["r1"], world.expect((first, heard, second)), world.eos)
    assert used(talk) > 0
    leave(talk, "s")
