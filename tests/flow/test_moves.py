"""Prompts read by one unit and replies written by another: the tokens are the same, and nothing is lost."""

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
    UnitLost,
    UnitReady,
)
from antiphon.core.plans import ArStep, MoveBlocks
from antiphon.metrics.names import Metric
from fakes import toy
from fakes.whims import whims_of
from fakes.world import World, toy_config

SPLIT = (("low", 0, 1), ("high", 1, 2))
PEOPLE = ("ann", "bob", "cleo", "dan")
WORDS = "and then she went on to say what had happened"
PD = (
    Unit("encoders", "encoders", process="e"),
    Unit("thinker.p", "thinker", process="p", role="prefill"),
    Unit("thinker.d", "thinker", process="d", role="decode"),
    Unit("talker", "talker", process="t"),
    Unit("code2wav", "code2wav", process="t"),
)
ONE_PROCESS = tuple(Unit(one.name, one.stage, one.process, "", one.role) for one in PD)


def ask(world: World, turn: int, person: str, **wanted: object) -> None:
    item = Item(f"{turn}-{person}", "user", (TextPart(f"{person} {turn} {WORDS}"), toy.tone(turn)))
    world.send(ItemAdded(person, item))
    world.send(ResponseRequested(person, f"{turn}-{person}", f"reply-{turn}-{person}", codes=True, **wanted))


def meet(world: World) -> None:
    for person in PEOPLE:
        world.send(SessionOpened(person))


def talk(world: World) -> None:
    """Three turns of everybody, together."""
    for turn in range(3):
        for person in PEOPLE:
            ask(world, turn, person)
        world.run()


def leave(world: World) -> None:
    for heard in world.responses.values():
        world.check(heard)
    world.send(*(SessionClosed(person) for person in PEOPLE))
    world.run()
    world.check_empty()


class Seen:
    """Orders that went out, kept."""

    def __init__(self, world: World) -> None:
        self.moves: list[MoveBlocks] = []
        self.steps: list[ArStep] = []
        move, submit = world.fleet.move, world.fleet.submit

        def moved(order) -> None:
            self.moves.append(order)
            move(order)

        def submitted(step) -> None:
            if isinstance(step, ArStep):
                self.steps.append(step)
            submit(step)

        world.fleet.move, world.fleet.submit = moved, submitted


@pytest.mark.parametrize("units", [PD, ONE_PROCESS], ids=["processes", "devices"])
@pytest.mark.parametrize("copy_lag", [0, 3])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("groups", [(), SPLIT], ids=["one group", "two groups"])
def test_replies_are_written_where_their_kv_was_moved(groups, depth, copy_lag, units) -> None:
    world = World(
        toy_config(rows=3, blocks=48, layer_groups=groups, units=units, step_tokens=16),
        depth,
        copy_lag=copy_lag,
    )
    seen = Seen(world)
    meet(world)
    talk(world)
    assert all(heard.end.status in ("completed", "incomplete") for heard in world.responses.values())
    assert {move.group for move in seen.moves} == {*(name for name, *_ in groups), "hidden"} | (
        set() if groups else {"kv"}
    )
    by = {name: [step for step in seen.steps if step.stage == name] for name in ("thinker.p", "thinker.d")}
    assert all(len(join.generated) == 0 for step in by["thinker.p"] for join in step.joins)
    assert all(len(join.generated) > 0 for step in by["thinker.d"] for join in step.joins)
    assert any(step.tickets for step in by["thinker.d"])
    leave(world)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_row_whose_kv_is_on_its_way_holds_up_no_other(depth: int) -> None:
    world = World(toy_config(rows=4, blocks=60, units=PD, step_tokens=16), depth, copy_lag=3)
    seen = Seen(world)
    meet(world)
    talk(world)
    waiting = [step for step in seen.steps if step.stage == "thinker.d" and step.tickets]
    assert waiting, "where nothing else can run, the step waits layer by layer"
    for step in waiting:
        assert set(step.rows.tolist()) == set(step.waits[0].tolist())
    leave(world)


def test_what_is_left_there_is_not_sent_again() -> None:
    world = World(toy_config(rows=3, blocks=60, units=PD, step_tokens=64))
    seen = Seen(world)
    world.send(SessionOpened("ann"))
    blocks = []
    for turn in range(3):
        seen.moves.clear()
        ask(world, turn, "ann")
        world.run()
        blocks.append(max(len(move.targets) for move in seen.moves))
    prompts = [len(world.responses["ann", f"{turn}-ann"].prompts["thinker"].keys) for turn in range(3)]
    assert blocks[0] == -(-prompts[0] // 4)
    assert blocks[1] <= -(-(prompts[1] - prompts[0]) // 4) + 1
    assert blocks[2] <= -(-(prompts[2] - prompts[1]) // 4) + 1
    last = world.responses["ann", "2-ann"].end.usage
    assert last.cached_tokens >= prompts[1], "the next prompt begins where the last one was read"
    leave(world)


@pytest.mark.parametrize("copy_lag", [0, 3])
@pytest.mark.parametrize("depth", [0, 1])
def test_moves_that_break_off_cost_time_and_nothing_else(depth: int, copy_lag: int) -> None:
    """The decode unit computes anew, with media that are encoded or sent once more."""
    world = World(toy_config(rows=3, blocks=60, units=PD, step_tokens=16), depth, copy_lag=copy_lag)
    meet(world)
    for turn in range(2):
        for number, person in enumerate(PEOPLE):
            ask(world, turn, person)
            world.mover.num_failing = (number + turn) % 3
            world.run()
    assert world.mover.num_failed > 2
    assert world.node.stats()[Metric.KV_COPIES_FAILED.of_copy("thinker.d", "move")] > 0
    assert world.node.stages.ar["thinker.d"].num_preemptions
    assert all(heard.end.status in ("completed", "incomplete") for heard in world.responses.values())
    leave(world)


def until_moving(world: World, seen: Seen) -> None:
    while not seen.moves:
        assert world.turn()


@pytest.mark.parametrize("copy_lag", [0, 4])
def test_a_cancel_in_mid_move(copy_lag: int) -> None:
    """The blocks stay where they are until the copies are over; the next turn begins with them."""
    world = World(toy_config(rows=3, blocks=60, units=PD, step_tokens=64), copy_lag=copy_lag)
    seen = Seen(world)
    world.send(SessionOpened("ann"))
    ask(world, 0, "ann")
    until_moving(world, seen)
    assert world.node.stages.ar["thinker.p"].leases
    world.send(ResponseCancelled("ann", "0-ann", keep_tokens=0))
    ask(world, 1, "ann")
    world.run()
    assert world.responses["ann", "0-ann"].end.status == "cancelled"
    assert world.responses["ann", "1-ann"].end.usage.cached_tokens > 0
    leave(world)


def test_a_cancel_before_there_is_room() -> None:
    """Who waits for a row there has its KV lent; without it, nothing is."""
    world = World(toy_config(rows=1, blocks=60, units=PD, step_tokens=64))
    reader = world.node.stages.ar["thinker.p"]
    meet(world)
    for person in PEOPLE:
        ask(world, 0, person)
    while len(reader.leases) < 2:
        assert world.turn()
    world.send(*(ResponseCancelled(person, f"0-{person}") for person in PEOPLE))
    world.run()
    assert not reader.leases
    leave(world)


@pytest.mark.parametrize("copy_lag", [0, 4])
@pytest.mark.parametrize("victim", ["p", "d"])
def test_one_side_dies_in_mid_move(victim: str, copy_lag: int) -> None:
    world = World(toy_config(rows=3, blocks=60, units=PD, step_tokens=64), copy_lag=copy_lag)
    seen = Seen(world)
    meet(world)
    ask(world, 0, "ann", speech=False)
    until_moving(world, seen)
    world.kill(victim)
    world.run()
    end = world.responses["ann", "0-ann"].end
    assert (end.reason == "stage_lost") == (victim == "d"), "who writes it has what it needs, or computes it"
    ask(world, 1, "ann")
    world.run()
    assert world.responses["ann", "1-ann"].end.status in ("completed", "incomplete")
    leave(world)


def test_without_a_decode_unit_replies_are_written_where_they_began() -> None:
    world = World(toy_config(rows=3, blocks=60, units=PD, step_tokens=64))
    world.fleet.kill("d")
    world.send(UnitLost("thinker.d", "killed"))
    meet(world)
    for person in PEOPLE:
        ask(world, 0, person)
    for _ in range(8):
        world.turn()
    world.fleet.dead = ""
    world.send(UnitReady("thinker.d"))
    world.run()
    assert all(heard.end.status in ("completed", "incomplete") for heard in world.responses.values())
    leave(world)


def test_preempted_where_it_is_written() -> None:
    world = World(toy_config(rows=3, blocks=40, units=PD, step_tokens=16), depth=1, copy_lag=2)
    whims = whims_of(world.node.stages.ar["thinker.d"])
    meet(world)
    for person in PEOPLE:
        ask(world, 0, person)
    for count in range(400):
        whims.victims = [count] if count % 2 == 0 else []
        world.turn()
    world.run()
    assert world.node.stages.ar["thinker.d"].num_preemptions > 1
    assert all(heard.end.status in ("completed", "incomplete") for heard in world.responses.values())
    leave(world)


def test_decode_units_share_the_work() -> None:
    """Each conversation stays at one of them, where its past is."""
    two = (*PD, Unit("thinker.d2", "thinker", process="d2", role="decode"))
    world = World(toy_config(rows=3, blocks=60, units=two, step_tokens=64))
    seen = Seen(world)
    meet(world)
    talk(world)
    writers: dict[int, set[str]] = {}
    for step in seen.steps:
        for join in step.joins if step.stage in ("thinker.d", "thinker.d2") else ():
            writers.setdefault((join.request - 1) % len(PEOPLE), set()).add(step.stage)
    assert all(len(units) == 1 for units in writers.values())
    assert len(set.union(*writers.values())) == 2
    leave(world)


def test_a_move_that_breaks_off_while_no_encoder_is_there() -> None:
    """Who has to read media again and finds nobody to encode them is told so; who has none goes on."""
    world = World(toy_config(rows=3, blocks=60, units=PD, step_tokens=64), copy_lag=1)
    seen = Seen(world)
    world.send(SessionOpened("ann"), SessionOpened("bob"))
    ask(world, 1, "ann")
    world.send(ItemAdded("bob", Item("b", "user", (TextPart(WORDS),))))
    world.send(ResponseRequested("bob", "bob", "reply-bob"))
    world.mover.num_failing = 100
    until_moving(world, seen)
    world.fleet.kill("e")
    world.send(UnitLost("encoders", "killed"))
    world.run()
    assert world.responses["ann", "1-ann"].end.reason == "stage_lost"
    assert "encoders" in world.responses["ann", "1-ann"].end.message
    assert world.responses["bob", "bob"].end.status in ("completed", "incomplete")
    world.fleet.dead = ""
    world.mover.num_failing = 0
    world.send(UnitReady("encoders"))
    ask(world, 2, "ann")
    world.run()
    assert world.responses["ann", "2-ann"].end.status in ("completed", "incomplete")
    leave(world)
