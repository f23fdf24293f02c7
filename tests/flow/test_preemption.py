"""Turns whose rows are given up on the way, and turns that share what others computed."""

from __future__ import annotations

from collections import Counter

import pytest

from antiphon.core.conversation import Item, Part, TextPart
from antiphon.core.facts import ItemAdded, ResponseCancelled, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.sampling import Sampling
from fakes import toy
from fakes.readings import num_shared
from fakes.whims import whims_of
from fakes.world import Heard, World, toy_config

DEPTHS = pytest.mark.parametrize("depth", [0, 1])
SYSTEM = "you are a kind host who listens to all that is said and answers in one breath"


def begin(world: World, session: str, *parts: Part | str) -> Heard:
    """A session that asks for one response, named as itself."""
    said = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    world.send(SessionOpened(session), ItemAdded(session, Item("u", "user", said)))
    world.send(ResponseRequested(session, session, "reply", codes=True))
    return world.responses[session, session]


def finish(world: World) -> None:
    world.run()
    for heard in world.responses.values():
        world.check(heard)
    world.send(*(SessionClosed(session) for session, _ in world.responses))
    world.run()
    world.check_empty()


@DEPTHS
@pytest.mark.parametrize("stage", ["thinker", "talker"])
@pytest.mark.parametrize("turns", [2, 3, 5, 7, 11, 16])
def test_a_preempted_reply_goes_on_as_if_nothing_had_been(stage: str, turns: int, depth: int) -> None:
    world = World(toy_config(rows=3, step_tokens=5), depth)
    scheduler = world.node.stages.ar[stage]
    whims = whims_of(scheduler)
    for number in range(3):
        begin(world, f"s{number}", f"number {number} says hello", toy.tone(number % 2))
    for turn in range(200):
        if turn % turns == turns - 1:
            whims.victims = [turn]
        world.turn()
    finish(world)
    assert scheduler.num_preemptions
    if depth == 0:
        assert not scheduler.num_surplus_tokens


def test_what_a_step_in_flight_draws_for_a_preempted_row_is_surplus() -> None:
    world = World(toy_config(rows=2, speaks=False), depth=1, lags=True)
    entry = world.entry
    whims = whims_of(entry)
    heard = begin(world, "s", "tell me more")
    while len(heard.text) < 2:
        world.turn()
    whims.victims = [0]
    while not entry.num_preemptions:
        world.turn()
    finish(world)
    assert entry.num_surplus_tokens > 0
    assert len(heard.text) > 3, "it went on after that"


@DEPTHS
def test_many_long_replies_share_a_pool_that_holds_few_of_them(depth: int) -> None:
    """All are let in, though the pool could not hold two replies as long as they may get."""
    world = World(toy_config(rows=6, blocks=14, step_tokens=40), depth)
    for number in range(6):
        begin(world, f"s{number}", f"hi {number}")
    most = 0
    while world.turn():
        most = max(most, world.entry.num_running)
    finish(world)
    assert most > 2
    assert sum(ar.num_preemptions for ar in world.node.stages.ar.values())


@DEPTHS
def test_the_oldest_gets_on_whatever_comes_after_it(depth: int) -> None:
    """The pool is little larger than one reply: whoever is oldest never loses its row."""
    world = World(toy_config(rows=4, blocks=8, step_tokens=3, speaks=False), depth)
    for number in range(6):
        begin(world, f"s{number}", "a b c")
    entry = world.entry
    oldest = -1
    while world.turn():
        rows = entry.rows.running
        assert oldest not in entry.requests or oldest == entry.rows.request[rows[0]]
        oldest = int(entry.rows.request[rows[0]]) if len(rows) else -1
    assert entry.num_preemptions
    finish(world)


@DEPTHS
def test_sessions_that_begin_alike_share_blocks_and_media(depth: int) -> None:
    world = World(toy_config(rows=4, blocks=100, step_tokens=64), depth)
    begin(world, "first", SYSTEM, toy.tone(2), "and who are you")
    world.run()
    later = [begin(world, f"s{number}", SYSTEM, toy.tone(2), f"my name is {number}") for number in range(3)]
    shared = 0
    while world.turn():
        shared = max(shared, num_shared(world.entry.kv.blocks))
    assert shared >= 4
    for heard in later:
        assert heard.end is not None
        assert heard.end.usage.cached_tokens >= 16
    finish(world)


def encoded(world: World) -> Counter[int]:
    """How often each content is encoded from now on."""
    counts: Counter[int] = Counter()
    submit = world.encoder.submit

    def watched(step):
        counts.update(part.key for part in step.media)
        submit(step)

    world.encoder.submit = watched
    return counts


def test_media_that_the_kv_covers_are_not_encoded_again() -> None:
    world = World(toy_config(rows=4, blocks=100, step_tokens=64, media=1))
    counts = encoded(world)
    begin(world, "s", toy.tone(1), toy.tone(2), toy.tone(3), "what is that")
    world.run()
    world.send(ItemAdded("s", Item("u2", "user", (TextPart("and this"), toy.picture(1)))))
    world.send(ResponseRequested("s", "again", "reply2"))
    finish(world)
    assert set(counts.values()) == {1}


@DEPTHS
def test_media_whose_kv_is_evicted_while_a_turn_waits_are_encoded_then(depth: int) -> None:
    """The turn counts on its session's KV, waits for a row, and meanwhile another takes the blocks."""
    world = World(toy_config(rows=1, blocks=12, media=1, speaks=False), depth)
    counts, entry = encoded(world), world.entry
    begin(world, "s", "what is that over there", toy.tone(1))
    world.run()
    begin(world, "other", "a b c d e f g h i j k l m n o p q r s t u v w x y z", toy.tone(3))
    while not entry.num_running:
        world.turn()
    world.send(ResponseRequested("s", "again", "reply2", sampling={"thinker": Sampling(seed=2)}))
    while not entry.num_waiting:
        world.turn()
    assert toy.tone(1).key not in world.encode.pins, "its KV is still there"
    finish(world)
    assert counts[toy.tone(1).key] == 2
    again = world.responses["s", "again"].end
    assert again is not None
    assert again.status in ("completed", "incomplete")


def test_a_preempted_reply_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    world = World(toy_config(rows=1))
    whims = whims_of(world.node.stages.ar["talker"])
    heard = begin(world, "s", "good morning", toy.tone(1))
    while not heard.frames:
        world.turn()
    whims.victims = [0]
    world.send(ResponseCancelled("s", "s"))
    world.turn()
    finish(world)
