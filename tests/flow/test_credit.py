"""Credit of an edge: who is ahead of its consumer by so much waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.core.config import Unit
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseRequested, SessionOpened
from antiphon.core.graph import Edge, StageKind
from antiphon.core.plans import ArStep
from antiphon.core.sampling import Sampling
from antiphon.flow import reply_route
from antiphon.graphs import all_graphs
from fakes import toy
from fakes.world import World, toy_config

APART = tuple(Unit(name, name, device=name) for name in ("encoders", "thinker", "talker", "code2wav"))


VOICES = [
    edge for graph in all_graphs() for edge in graph.edges if graph.stage(edge.target).kind is StageKind.CODEC
]


def talking(monkeypatch: pytest.MonkeyPatch, credit: int | None, depth: int = 0) -> World:
    """A talker and a vocoder on devices of their own, and a long reply."""
    return talking_over(monkeypatch, Edge("talker", "code2wav", first_chunk=2, chunk=4, credit=credit), depth)


def talking_over(
    monkeypatch: pytest.MonkeyPatch, edge: Edge, depth: int = 0, blocks: int = 48, **asked: object
) -> World:
    monkeypatch.setattr(reply_route.StageGraph, "edge", _with(edge))
    world = World(toy_config(units=APART, rows=4, blocks=blocks), depth)
    for session in "abc":
        item = Item(f"q-{session}", "user", (TextPart(f"please talk for long, {session}"),))
        world.send(SessionOpened(session), ItemAdded(session, item))
        world.send(ResponseRequested(session, session, f"reply-{session}", **asked))
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
    vocoder.reopen()
    world.run()
    for heard in world.responses.values():
        world.check(heard)
        assert heard.end.status in ("completed", "incomplete")


@pytest.mark.parametrize("voice", VOICES, ids=lambda edge: edge.target)
def test_so_it_is_with_every_model(monkeypatch: pytest.MonkeyPatch, voice: Edge) -> None:
    """With its own chunks and credit, and replies that would never end."""
    monkeypatch.setattr(toy, "draw_frame", lambda state, seed: (3, state % 97, 0))
    edge = replace(voice, source="talker", target="code2wav")
    world = talking_over(monkeypatch, edge, blocks=1200, sampling={"talker": Sampling(max_tokens=1000)})
    talker = world.node.stages.ar["talker"]
    vocoder = world.node.stages.codec["code2wav"]
    plan, vocoder.plan = vocoder.plan, lambda step, now: None
    for _ in range(voice.credit + 200):
        world.turn()
    assert frames_ahead(world) == voice.credit
    assert not talker.has_work
    vocoder.plan = plan
    vocoder.reopen()
    for _ in range(50):
        world.turn()
    assert vocoder.num_requests
    assert talker.has_work


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
