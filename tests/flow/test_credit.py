"""Credit of an edge: who is ahead of its consumer by so much waits for it."""

from __future__ import annotations

import pytest

from antiphon.core.config import Unit
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.graph import Edge
from antiphon.core.plans import ArStep
from antiphon.flow import routes
from fakes.world import World, toy_config

APART = tuple(Unit(name, name, device=name) for name in ("encoders", "thinker", "talker", "code2wav"))


def talking(monkeypatch: pytest.MonkeyPatch, credit: int | None, depth: int = 0) -> World:
    """A talker and a vocoder on devices of their own, and a long reply."""
    edge = Edge("talker", "code2wav", first_chunk=2, chunk=4, credit=credit)
    monkeypatch.setattr(routes.StageGraph, "edge", _with(edge))
    world = World(toy_config(units=APART, rows=4, blocks=48), depth)
    for session in "abc":
        item = Item(f"q-{session}", "user", (TextPart(f"please talk for long, {session}"),))
        world.send(SessionOpened(session), ItemAdded(session, item))
        world.send(ResponseRequested(session, session, f"reply-{session}"))
    return world


def _with(edge: Edge):
    from antiphon.core.graph import StageGraph

    original = StageGraph.edge

    def find(graph: StageGraph, source: str, target: str) -> Edge:
        return edge if (source, target) == ("talker", "code2wav") else original(graph, source, target)

    return find


def frames_ahead(world: World) -> int:
    """The most frames that wait for the vocoder, of any reply."""
    streams = world.node.stages.codec["code2wav"]._streams.values()
    return max((len(stream.frames) for stream in streams), default=0)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_vocoder_that_stops_stops_the_talker(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    world = talking(monkeypatch, credit=5, depth=depth)
    vocoder = world.node.stages.codec["code2wav"]
    plan = vocoder.plan
    vocoder.plan = lambda step, now: None
    for _ in range(200):
        world.turn()
    assert frames_ahead(world) == 5
    assert not world.node.stages.ar["talker"].has_work
    vocoder.plan = plan
    world.run()
    for heard in world.responses.values():
        world.check(heard)
        assert heard.end.status in ("completed", "incomplete")


def test_without_credit_nothing_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = talking(monkeypatch, credit=None)
    world.node.stages.codec["code2wav"].plan = lambda step, now: None
    for _ in range(200):
        world.turn()
    assert frames_ahead(world) > 5


@pytest.mark.parametrize("credit", [4, 5, 8])
def test_replies_are_the_same_under_any_credit(monkeypatch: pytest.MonkeyPatch, credit: int) -> None:
    """Rows that wait for credit may be preempted and join again."""
    world = talking(monkeypatch, credit)
    counts: list[int] = []
    submit = world.fleet.submit

    def watched(step) -> None:
        if isinstance(step, ArStep) and step.stage == "talker":
            counts.append(len(step.rows))
        submit(step)

    world.fleet.submit = watched
    world.run()
    for heard in world.responses.values():
        world.check(heard)
    assert counts


def test_credit_is_a_chunk_or_more() -> None:
    with pytest.raises(ValueError, match="credit 3 is less than a chunk"):
        Edge("talker", "code2wav", first_chunk=2, chunk=4, credit=3)
