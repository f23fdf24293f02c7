"""After an interruption the next turn says what the reference says to a history cut at what was heard."""

from __future__ import annotations

import pytest

from antiphon.core.conversation import Item, TokensPart
from exactness.conftest import World, user
from exactness.talk import Talk
from exactness.test_reference import check

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")


def next_turn(world: World, talk: Talk, first: Item, keep: int) -> None:
    """Say more, and hold the reply to the reference's on the first reply's first `keep` tokens."""
    tokens = tuple(talk.said["r0"].text[:keep])
    history = (first, Item("reply-r0", "assistant", (TokensPart(tokens),))) if keep else (first,)
    second = user("Go on.", "user-1")
    talk.add("s", second)
    talk.ask("s", "r1")
    talk.run()
    check(talk.said["r1"], world.expect((*history, second)), world.eos)
    talk.close("s")
    talk.run()
    talk.check_all_free()


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_reply_cut_while_it_was_made(world: World, keep: int) -> None:
    talk, first = world.talk(), user(world.contents[1], "user-0")
    talk.open("s", first)
    talk.ask("s", "r0")
    while len(talk.said["r0"].text) < 6:
        talk.step()
    talk.cancel("s", "r0", keep)
    talk.run()
    next_turn(world, talk, first, keep)


@pytest.mark.parametrize("keep", [2, 7])
def test_a_reply_cut_after_its_end(world: World, keep: int) -> None:
    talk, first = world.talk(), user(world.contents[4], "user-0")
    talk.open("s", first)
    talk.ask("s", "r0")
    talk.run()
    talk.cut("s", "reply-r0", 1)
    talk.step()
    talk.cut("s", "reply-r0", keep)
    next_turn(world, talk, first, keep)
