"""An advisory changes no reply, and is answered with what is there and what is brought."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from antiphon.core.facts import SessionClosed, SessionOpened, TurnAdvised
from antiphon.core.plans import StagePrepared
from antiphon.policy.base import Told
from antiphon.policy.memory import KvView
from antiphon.policy.on_demand import OnDemand
from antiphon.runtime.record import RecordWriter, read_record, replay
from fakes.world import HURRIED, World, toy_config
from flow.test_tiers import PEOPLE, ask, converse


class Announced(OnDemand):
    """A fetch policy that says that it acts on advisories."""

    prepares = True

    def tell(self, view: KvView, owner: str, now: float) -> Told:
        return Told("", f"{view.num_away(owner)} blocks are put off")


def answers(world: World, *facts: TurnAdvised) -> list[tuple[StagePrepared, ...]]:
    world.advised.clear()
    world.send(*facts)
    world.turn()
    return [answer.stages for answer in world.advised]


def test_without_a_past_there_is_nothing_to_bring() -> None:
    world = World(toy_config())
    world.send(SessionOpened("ann"))
    assert answers(world, TurnAdvised("ann")) == [()]


def test_each_is_answered_once_and_those_of_sessions_that_are_not_open_never() -> None:
    world = World(toy_config())
    world.send(SessionOpened("ann"), SessionOpened("bob"), SessionClosed("bob"))
    answers(world, TurnAdvised("ann", "turn"), TurnAdvised("gone"), TurnAdvised("bob"), TurnAdvised("ann"))
    assert [(one.session, one.prepare) for one in world.advised] == [("ann", "turn"), ("ann", "history")]


def test_what_rests_on_the_device_is_counted() -> None:
    world = World(toy_config(blocks=200))
    world.send(SessionOpened("ann"))
    ask(world, 0, "ann")
    world.run()
    ((thinker, *_),) = answers(world, TurnAdvised("ann"))
    resting = world.entry.kv.resting.get("ann")
    assert resting is not None
    assert thinker == StagePrepared("thinker", len(resting.blocks), 0, 0, False)


def test_what_only_the_host_has_is_counted_and_whether_it_is_brought() -> None:
    world = World(toy_config(blocks=32, host_blocks=200))
    converse(world)
    found = [answers(world, TurnAdvised(person))[0] for person in PEOPLE]
    lacking = {person: stages[0].lacking for person, stages in zip(PEOPLE, found, strict=True)}
    assert max(lacking.values()) > 0
    assert not any(stage.brings for stages in found for stage in stages)
    tiers = world.entry.tiers
    tiers.asks.policies = replace(tiers.asks.policies, fetch=Announced())
    person = max(PEOPLE, key=lambda one: lacking[one])
    ((thinker, *_),) = answers(world, TurnAdvised(person))
    assert thinker.brings
    assert thinker.lacking == lacking[person]
    assert thinker.lacking <= thinker.host
    assert thinker.why == f"{thinker.lacking} blocks are put off"


def test_what_is_on_its_way_to_the_device_is_not_there_yet() -> None:
    """A short past is ordered whole at once: the answer says that it is brought."""
    world = World(toy_config(blocks=32, host_blocks=200, preset=HURRIED))
    converse(world, turns=1)
    fetches = world.entry.tiers.fetches
    person = max(PEOPLE, key=fetches.num_lacking)
    num_away = fetches.num_lacking(person)
    world.mover.lag = 1 << 30
    for _ in range(2):
        ((thinker, *_),) = answers(world, TurnAdvised(person))
        resting = world.entry.kv.resting.get(person)
        assert resting is not None
        assert fetches.num_lacking(person) < num_away, "it was ordered"
        assert (thinker.device, thinker.lacking) == (resting.num_ready, num_away)
        assert thinker.brings
        assert "brought" in thinker.why or "on its way" in thinker.why
    world.mover.lag = 0
    world.run()
    ((thinker, *_),) = answers(world, TurnAdvised(person))
    assert thinker.lacking == fetches.num_lacking(person) == 0
    world.run()


def test_what_is_in_use_lacks_nothing() -> None:
    world = World(toy_config(blocks=32, host_blocks=200))
    converse(world, turns=1)
    ask(world, 1, "ann")
    for _ in range(50):
        world.turn()
        if world.entry.tiers.known.running:
            break
    ((thinker, *_),) = answers(world, TurnAdvised("ann"))
    assert thinker.device > 0
    assert thinker.lacking == 0
    world.run()


def test_replies_do_not_depend_on_advisories_and_a_record_of_them_replays(tmp_path: Path) -> None:
    texts: list[list[list[int]]] = []
    for is_advised in (False, True):
        path = tmp_path / f"{is_advised}"
        config = toy_config(blocks=32, host_blocks=200)
        writer = RecordWriter(path, config, 0)
        world = World(config, 0, writer)
        for person in PEOPLE:
            world.send(SessionOpened(person))
        for turn in range(3):
            for person in PEOPLE:
                if is_advised:
                    world.send(TurnAdvised(person, "turn", 1.5, 0.5), TurnAdvised(person))
                ask(world, turn, person)
                world.run()
        writer.close()
        texts.append([heard.text for heard in world.responses.values()])
        assert len(world.advised) == 24 * is_advised
        _, entries = read_record(path)
        recorded = [one for entry in entries for one in entry.facts if isinstance(one, TurnAdvised)]
        assert len(recorded) == 24 * is_advised
        count, differences = replay(path)
        assert count > 50
        assert not differences
    assert texts[0] == texts[1]
