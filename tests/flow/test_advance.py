"""Turns that are read before their reply is asked for: it changes no reply, and delays nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ItemCut,
    ItemRemoved,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    TurnAdvised,
)
from antiphon.flow.advance import PART_S, PATIENCE_S, PreparedTokens
from antiphon.metrics.names import Metric
from antiphon.policy.base import Refuse
from antiphon.runtime.record import RecordWriter, replay
from fakes import toy
from fakes.world import World, toy_config
from flow.test_admission import Door
from flow.test_moves import PD as SPLIT

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


def say(world: World, name: str, session: str = "ann", words: str = LONG, tone: int | None = None) -> None:
    parts = (TextPart(f"{name} {words}"), *(() if tone is None else (toy.tone(tone),)))
    world.send(ItemAdded(session, Item(name, "user", parts)))


def ask(world: World, name: str, session: str = "ann", **fields: object) -> None:
    world.send(ResponseRequested(session, name, f"item-{name}", codes=True, **fields))


def advise(world: World, session: str = "ann", **fields: object) -> str:
    """What is done about the turn."""
    reply = ResponseRequested(session, "", "", **fields)
    world.send(TurnAdvised(session, "turn", reply=reply))
    world.turn()
    return world.advised[-1].turn


def prepared(world: World) -> PreparedTokens:
    stats = world.node.stats()
    kinds = (Metric.PREPARED_TOKENS, Metric.PREPARED_USED, Metric.PREPARED_WASTED)
    return PreparedTokens(*(int(stats[kind.of(world.entry.name)]) for kind in kinds))


def opened(depth: int = 0, **sizes: object) -> World:
    world = World(toy_config(**({"blocks": 200} | sizes)), depth)
    world.send(SessionOpened("ann"), SessionOpened("bob"))
    return world


def finished(world: World) -> None:
    """Every reply is the model's, and nothing is held once all have left."""
    world.run()
    for heard in world.responses.values():
        world.check(heard)
    world.send(SessionClosed("ann"), SessionClosed("bob"))
    world.run()
    world.check_empty()
    counts = prepared(world)
    assert counts.tokens == counts.used + counts.wasted


def until_reading(world: World, tokens: int = 8) -> None:
    """Until a preparation has so many tokens reported."""
    for _ in range(50):
        world.turn()
        running = world.entry.rows.running
        if len(running) and world.entry.rows.confirmed[running[0]] >= tokens:
            return
    raise AssertionError("it never reads")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("units", [(), SPLIT])
def test_the_turn_finds_what_was_read_ahead(depth: int, units: tuple[object, ...]) -> None:
    world = opened(depth, units=units)
    say(world, "first", tone=1)
    ask(world, "r0")
    world.run()
    say(world, "second", tone=2)
    assert advise(world) == "begun"
    world.run()
    before = prepared(world)
    assert before.tokens > 16
    assert (before.used, before.wasted) == (0, 0)
    ask(world, "r1")
    world.run()
    after = prepared(world)
    assert after.tokens == before.tokens == after.used + after.wasted
    assert after.wasted <= world.config.ar["thinker"].block_size
    assert len(world.responses) == 2
    finished(world)


def test_instructions_and_tools_of_the_coming_reply_are_read_as_well() -> None:
    asked = {"instructions": "be very brief in all that you say", "tools": ("{}",), "tool_choice": "auto"}
    found: list[int] = []
    for ahead in (asked, {}):
        world = opened()
        say(world, "first")
        advise(world, **ahead)
        world.run()
        ask(world, "r0", **asked)
        finished(world)
        found.append(prepared(world).used)
    assert found[0] > 16
    assert found[1] == 0


def test_what_is_added_later_is_read_on_from_there() -> None:
    world = opened()
    say(world, "first")
    advise(world)
    world.run()
    first = prepared(world).tokens
    say(world, "second")
    assert advise(world) == "begun"
    world.run()
    both = prepared(world)
    assert both.tokens < 2 * first + 8
    ask(world, "r0")
    finished(world)
    assert prepared(world).used > first


def test_one_that_is_repeated_does_nothing() -> None:
    world = opened()
    assert advise(world) == "nothing"
    say(world, "first")
    assert advise(world) == "begun"
    assert advise(world) == "running"
    assert advise(world, "bob") == "nothing"
    say(world, "other", "bob")
    assert advise(world, "bob") == "busy"
    world.run()
    steps, counts = world.entry.num_in_flight, prepared(world)
    assert advise(world) == "done"
    assert (world.entry.num_in_flight, prepared(world)) == (steps, counts)
    world.send(TurnAdvised("ann"))
    world.turn()
    assert world.advised[-1].turn == ""
    ask(world, "r0")
    world.run()
    assert advise(world) == "nothing"
    finished(world)


def test_it_gives_way_to_another_session_once_it_had_its_part() -> None:
    world = opened(step_tokens=4)
    for name in ("ann", "bob"):
        say(world, f"first of {name}", name, words=" ".join([LONG] * 4))
    assert advise(world) == "begun"
    until_reading(world)
    assert advise(world, "bob") == "busy"
    world.now += PART_S
    read_before = prepared(world).tokens
    assert advise(world, "bob") == "begun"
    assert prepared(world).tokens >= read_before + 8, "what was read is kept"
    assert advise(world) == "busy"
    world.run()
    assert advise(world) == "begun"
    ask(world, "r0")
    finished(world)
    assert prepared(world).used >= 8


def test_one_session_does_not_keep_the_others_waiting_with_short_turns() -> None:
    """Whoever was turned away goes before those that came later, and only so long."""
    world = opened(step_tokens=4)
    world.send(SessionOpened("cleo"))
    for name in ("ann", "bob", "cleo"):
        say(world, f"first of {name}", name)
    assert advise(world) == "begun"
    assert advise(world, "bob") == "busy"
    world.run()
    say(world, "second of ann")
    assert advise(world) == "begun", "nobody's turn is kept free"
    assert advise(world, "cleo") == "busy"
    assert advise(world, "bob") == "begun"
    assert advise(world, "cleo") == "busy", "bob came first"
    world.run()
    world.now += PATIENCE_S + 1.0
    say(world, "third of ann")
    assert advise(world) == "begun"
    assert advise(world, "cleo") == "busy", "it asked again too late to keep its place"
    assert advise(world) == "running"
    world.send(SessionClosed("cleo"))
    finished(world)
    assert not world.node._orchestrator._advance._turned_away


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("whose", ["ann", "bob"])
def test_it_ends_when_anybody_wants_a_reply_and_what_was_read_is_kept(depth: int, whose: str) -> None:
    world = opened(depth, step_tokens=4)
    say(world, "first")
    say(world, "other", "bob")
    assert advise(world) == "begun"
    until_reading(world)
    ask(world, "r0", whose)
    world.turn()
    assert all(heard.end is None for heard in world.responses.values())
    assert world.entry.requests <= world.node.responses.keys()
    world.run()
    assert prepared(world).tokens >= 8
    ask(world, "r1")
    world.run()
    assert prepared(world).used >= 8
    finished(world)


def test_none_begins_while_a_reply_is_made() -> None:
    world = opened()
    say(world, "first")
    say(world, "other", "bob")
    ask(world, "r0")
    world.turn()
    assert advise(world, "bob") == "busy"
    world.run()
    assert prepared(world) == PreparedTokens()
    assert advise(world, "bob") == "begun"
    finished(world)


def test_nobody_is_asked_to_admit_it() -> None:
    world, door = opened(), Door(refuse=Refuse("the queue is long", 1.0, 1.0))
    world.entry._policies = replace(world.entry._policies, admission=door)
    say(world, "first")
    assert advise(world) == "begun"
    world.run()
    assert prepared(world).tokens > 16
    assert not door.asked
    door.refuse = None
    ask(world, "r0")
    finished(world)


def test_it_takes_only_blocks_that_hold_nothing() -> None:
    world = opened(blocks=24)
    say(world, "first")
    ask(world, "r0")
    world.run()
    resting = world.entry.kv.resting.get("ann")
    assert resting is not None
    spare = world.entry.kv.blocks.num_free
    say(world, "other", "bob", words=" ".join([LONG] * 4))
    assert spare * 4 < 4 * 16, "it fits only if the other past leaves"
    assert advise(world, "bob") == "begun"
    world.run()
    assert prepared(world) == PreparedTokens()
    assert world.entry.kv.resting.get("ann") is resting
    assert world.entry.kv.resting.num_evicted_blocks == 0
    ask(world, "r1", "bob")
    world.run()
    assert world.entry.kv.resting.num_evicted_blocks > 0
    finished(world)


@pytest.mark.parametrize("change", ["removed", "cut", "closed", "failed", "lost", "unspeakable"])
def test_whatever_ends_it_leaves_nothing_wrong(change: str) -> None:
    world = opened(step_tokens=4)
    say(world, "zero")
    ask(world, "r0")
    world.run()
    say(world, "first", tone=1)
    if change == "unspeakable":
        world.send(ItemAdded("ann", Item("bad", "user", (TextPart(toy.UNSPEAKABLE),))))
    assert advise(world) == "begun"
    if change != "unspeakable":
        until_reading(world)
    facts = {"removed": [ItemRemoved("ann", "zero")], "cut": [ItemCut("ann", "item-r0", 1)]}
    facts["closed"] = [SessionClosed("ann")]
    world.send(*facts.get(change, []))
    if change == "failed":
        world.device.failing.add("thinker")
    if change == "lost":
        world.kill(world.node.stages.units["thinker"].process)
    if change in facts:
        world.turn()
        assert not world.entry.requests
    world.run()
    if change == "removed":
        say(world, "last")
    if change not in ("closed", "unspeakable"):
        ask(world, "r1")
    finished(world)


@pytest.mark.parametrize("is_aside", [False, True])
def test_it_is_wasted_where_the_turn_says_something_else(is_aside: bool) -> None:
    world = opened()
    say(world, "first")
    advise(world)
    world.run()
    world.send(ItemRemoved("ann", "first"))
    say(world, "second", words="quite another thing")
    ask(world, "r0", remember=not is_aside)
    world.run()
    counts, same = prepared(world), 2
    """Tokens with which every item of a user begins."""
    assert counts.tokens > 16
    if is_aside:
        assert (counts.used, counts.wasted) == (0, 0)
    else:
        assert (counts.used, counts.wasted) == (same, counts.tokens - same)
    finished(world)
    assert prepared(world).used == (0 if is_aside else same)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["say", "ask", "advise", "cancel", "remove"]), st.integers(0, 2), st.integers(0, 4)
    ),
    max_size=24,
)


@pytest.mark.parametrize("preset", ["baseline", "fcfs", "liveserve", "tokenflow"])
@pytest.mark.parametrize("depth", [0, 1])
@settings(max_examples=12, deadline=None)
@given(moves=MOVES, blocks=st.sampled_from([32, 200]), host_blocks=st.sampled_from([0, 100]))
def test_no_step_reads_ahead_while_a_reply_is_being_made(
    depth: int,
    preset: str,
    moves: list[tuple[str, int, int]],
    blocks: int,
    host_blocks: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("records") / "record"
    config = toy_config(blocks=blocks, host_blocks=host_blocks, step_tokens=6, preset=preset)
    writer = RecordWriter(path, config, depth)
    world = World(config, depth, writer)
    people = ("ann", "bob", "cleo")
    world.send(*(SessionOpened(one) for one in people))

    def turn() -> bool:
        goes_on = world.turn()
        ahead = [one for one in world.node._orchestrator._sessions.by_request.values() if one.is_ahead]
        assert len(ahead) <= 1
        assert not (ahead and world.node.responses)
        return goes_on

    num_items = 0
    for kind, who, num_turns in moves:
        session = people[who]
        match kind:
            case "say":
                say(world, f"i{num_items}", session, tone=num_items % 3)
                num_items += 1
            case "ask":
                ask(world, f"r{len(world.responses)}", session)
            case "advise":
                world.send(TurnAdvised(session, "turn"))
            case "cancel":
                world.send(*(ResponseCancelled(*name) for name in list(world.responses)[-1:]))
            case _:
                world.send(ItemRemoved(session, f"i{num_items - 1}"))
        for _ in range(num_turns):
            turn()
    while turn():
        pass
    for heard in world.responses.values():
        world.check(heard)
    world.send(*(SessionClosed(one) for one in people))
    world.run()
    world.check_empty()
    counts = prepared(world)
    assert counts.tokens == counts.used + counts.wasted
    writer.close()
    _, differences = replay(path)
    assert not differences
