"""A turn that is coming is written down and read in its pauses: no turn is lost by it, and nobody waits."""

from __future__ import annotations

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    StepDone,
    TurnAdvised,
    TurnDropped,
    TurnForeseen,
    UnitLost,
    UnitReady,
)
from antiphon.core.plans import ArStep, Join
from fakes.transcribing import World, foreseen, recording, written
from fakes.whims import whims_of


def test_a_turn_that_is_coming_is_written_down_and_read_ahead():
    world = World()
    world.facts += [SessionOpened("s"), ItemAdded("s", Item("q", "user", (recording(1),)))]
    world.facts.append(TurnAdvised("s", "turn"))
    world.run()
    assert [one.turn for one in world.advised] == ["begun"]
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}]
    assert not world.ends
    world.facts.append(ResponseRequested("s", "s", "a"))
    world.run()
    assert world.encoded == [1]
    assert world.ends["s"].usage.cached_tokens > 0
    world.check_empty()


def test_what_was_said_before_a_pause_is_written_down_and_read_in_it():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1)]
    world.run()
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}]
    assert (world.ends, world.advised) == ({}, [])
    world.facts += [foreseen(2)]  # more was said
    world.run()
    world.facts += [ItemAdded("s", Item("q", "user", (recording(2),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.encoded == [1, 2]
    assert [one.transcripts for one in world.prompts] == [{1: written(1)}, *[{2: written(2)}] * 2]
    assert world.ends["s"].usage.cached_tokens > 0
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_a_turn_that_ends_while_its_pause_is_read_goes_on_from_there():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1)]
    for _ in range(3):
        world.turn()
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.encoded == [1]
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_a_transcript_that_was_begun_in_a_pause_goes_on_where_it_gave_its_row_up():
    world = World()
    whims = whims_of(world.node.stages.ar["transcriber"])
    world.facts += [SessionOpened("s"), foreseen(1)]
    while not transcriber_joins(world, 1):
        world.turn()
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.ask("other", recording(2))
    while not transcriber_joins(world, 2):
        world.turn()
    whims.victims = [0]
    world.run()
    joins = transcriber_joins(world, 1)
    assert len(joins) > 1, "it gave its row up"
    assert len({join.request for join in joins}) == 1
    assert world.ends["s"].status == "completed"
    world.check_empty()


def transcriber_joins(world: World, number: int) -> list[Join]:
    """Of a recording."""
    orders = [order for _, _, decision in world.log for order in decision.orders]
    return [
        join
        for order in orders
        if isinstance(order, ArStep) and order.stage == "transcriber"
        for join in order.joins
        if join.prompt.spans[0].key == number
    ]


def test_what_fails_in_a_pause_is_tried_again_for_the_turn():
    for is_well_again in (True, False):
        world = World()
        world.bad.add(1)
        world.facts += [SessionOpened("s"), foreseen(1)]
        world.run()
        if is_well_again:
            world.bad.clear()
        world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
        world.run()
        assert world.ends["s"].status == ("completed" if is_well_again else "failed")
        assert [one.transcripts for one in world.prompts] == [{1: written(1)}] * is_well_again
        world.check_empty()


def test_a_unit_that_is_lost_in_a_pause_costs_no_turn():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1)]
    for _ in range(3):
        world.turn()
    world.facts += [UnitLost("transcriber", "gone"), UnitReady("transcriber")]
    world.facts += [ItemAdded("s", Item("q", "user", (recording(1),))), ResponseRequested("s", "s", "a")]
    world.run()
    assert world.ends["s"].status == "completed"
    world.check_empty()


def test_what_was_read_is_not_read_again():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1), foreseen(1)]
    world.run()
    world.facts.append(foreseen(1))
    world.run()
    assert len(world.prompts) == 1
    world.check_empty()


def test_a_pause_is_not_read_while_somebody_is_served_nor_longer_than_that():
    world = World()
    world.reply_length = 30
    world.serve_another(turns=4)
    world.facts += [SessionOpened("s"), foreseen(1)]
    world.turn()
    assert not world.encoded
    world.run()
    world.facts.append(foreseen(2))
    world.turn()
    world.facts.append(ResponseRequested("other", "again", "b"))
    world.run()
    assert [one.transcripts for one in world.prompts] == [{}, {}], "what is read ahead gives way"
    world.facts += [SessionClosed("s"), foreseen(3)]
    world.run()
    assert 3 not in world.encoded
    world.check_empty()


def test_a_pause_goes_before_a_preface():
    """Whoever has paused may want a reply in 300 ms; whoever begins to speak does not."""
    preface = TurnForeseen("b", Item("", "user", (TextPart(""),)), ResponseRequested("b", "", ""))
    world = World()
    world.facts += [SessionOpened("s"), SessionOpened("b"), preface]
    world.turn()
    world.facts += [foreseen(1), preface]
    world.run()
    assert [one.transcripts for one in world.prompts] == [{}, {1: written(1)}]
    world.facts.append(preface)
    world.run()
    assert len(world.prompts) == 3, "it may be told again"
    world.check_empty()


def test_what_is_read_of_a_turn_that_does_not_come_ends_at_once():
    for end in (TurnDropped("s", "q"), SessionClosed("s")):
        world = World()
        world.facts += [SessionOpened("s"), foreseen(1)]
        for _ in range(3):
            world.turn()
        assert world.node.stages.ar["transcriber"].requests
        world.facts = [fact for fact in world.facts if isinstance(fact, StepDone)] + [end]
        world.turn()
        assert not world.node.stages.ar["transcriber"].requests
        world.run()
        assert not world.prompts
        world.check_empty()


def test_the_clear_of_another_turn_ends_nothing():
    world = World()
    world.facts += [SessionOpened("s"), foreseen(1), TurnDropped("s", "other"), TurnDropped("t", "q")]
    world.run()
    assert len(world.prompts) == 1
    world.check_empty()
