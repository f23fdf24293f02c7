"""An edge that streams: every token of the text goes with its state, whatever happens to rows meanwhile."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from antiphon.assembly import units
from antiphon.core.config import Unit
from antiphon.core.facts import PayloadArrived, ResponseCancelled, ResponseRequested, StagePrompt
from antiphon.core.graph import StageGraph
from antiphon.core.plans import DropPayload, Handoff
from antiphon.graphs import find_graph
from fakes import toy
from fakes.executors import FakeTalker, FakeThinker, Row
from fakes.whims import whims_of
from fakes.world import World, toy_config
from flow.test_preemption import DEPTHS, begin, finish
from flow.test_turns import ask

answer = toy.answer


class StreamTalker(FakeTalker):
    """Beside a token of the text it is shown the thinker's state after it."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.states: dict[int, list[int]] = defaultdict(list)

    def _spoken(self, row: Row, frame: tuple[int, ...], at: int) -> int:
        states = self.states.get(row.join.request, [])
        text = row.inputs[at] if at < len(row.inputs) else toy.PAD
        assert at < len(states) or text in (toy.PAD, toy.END_INPUT), "a token came without its state"
        return toy.spoken(frame, toy.mix(text, states[at]) if at < len(states) else text)


class StreamWorld(World):
    """A first hand-off brings the prompt's states, each later one the state of one token."""

    def _execute(self, order) -> None:
        assert isinstance(self.talker, StreamTalker)
        if isinstance(order, Handoff) and order.request in self.started:
            source = self.fleet.executors[order.source]
            assert isinstance(source, FakeThinker)
            assert source.rows[order.row].join.request == order.request, "the row is another's"
            (state,) = source.payload(order.row, order.positions)
            self.talker.states[order.request].append(state)
            if self.fleet.units[order.source].process != self.fleet.units[order.target].process:
                self._facts.append(PayloadArrived(order.target, order.request))
            return
        if isinstance(order, Handoff):
            self.started.add(order.request)
        if isinstance(order, DropPayload):
            self.talker.states.pop(order.request, None)
        super()._execute(order)


def streaming(name: str) -> StageGraph:
    graph = find_graph(name)
    edges = tuple(replace(edge, streams=edge.prompt_group is not None) for edge in graph.edges)
    return replace(graph, edges=edges)


def streamed_answer(prompts: dict[str, StagePrompt], spec: ResponseRequested, config) -> toy.Answer:
    """Of the toy: the talker's inputs are mixed with the states of the tokens that they stand for."""
    plain = answer(prompts, spec, config)
    keys = prompts["thinker"].keys.tolist()
    context, spoken = toy.states([*keys, *plain.text]), toy.spoken

    def shown(frame: tuple[int, ...], text: int) -> int:
        place, shown.at = shown.at, shown.at + 1
        is_word = place < len(words)
        return spoken(frame, toy.mix(text, context[len(keys) + 1 + place]) if is_word else text)

    words, shown.at = plain.text[1 : len(plain.text) - plain.cut], 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(toy, "spoken", shown)
        return answer(prompts, spec, config)


@pytest.fixture(autouse=True)
def _streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "find_graph", streaming)
    monkeypatch.setattr(toy, "answer", streamed_answer)
    monkeypatch.setattr("fakes.fleet.FakeTalker", StreamTalker)


def make(depth: int, *, lags: bool = False, **sizes: Any) -> StreamWorld:
    world = StreamWorld(toy_config(**sizes), depth, lags=lags)
    world.started = set()
    return world


def crowd(world: StreamWorld, count: int) -> None:
    for number in range(count):
        begin(world, f"s{number}", f"number {number} says hello", toy.tone(number % 2))


APART = tuple(Unit(name, name, process=name) for name in ("encoders", "thinker", "talker", "code2wav"))


SPLIT = (
    APART[0],
    Unit("thinker.p", "thinker", process="p", role="prefill"),
    Unit("thinker.d", "thinker", process="d", role="decode"),
    *APART[2:],
)
SPLIT_HERE = tuple(Unit(unit.name, unit.stage, unit.process, role=unit.role) for unit in SPLIT)


@DEPTHS
@pytest.mark.parametrize(
    "placed", [(), APART, SPLIT, SPLIT_HERE], ids=["together", "apart", "split", "split here"]
)
def test_many_at_once(depth: int, placed: tuple[Unit, ...]) -> None:
    world = make(depth, rows=3, blocks=100, units=placed)
    crowd(world, 6)
    finish(world)
    assert not world.talker.states
    assert sum(bool(heard.frames) for heard in world.responses.values()) >= 3


@DEPTHS
@pytest.mark.parametrize("stage", ["thinker", "talker"])
@pytest.mark.parametrize("turns", [2, 3, 5, 8])
def test_rows_are_given_up_on_the_way(stage: str, turns: int, depth: int) -> None:
    world = make(depth, rows=3, step_tokens=5)
    scheduler = world.node.stages.ar[stage]
    whims = whims_of(scheduler)
    crowd(world, 3)
    for turn in range(200):
        if turn % turns == turns - 1:
            whims.victims = [turn]
        world.turn()
    finish(world)
    assert scheduler.num_preemptions
    assert not world.talker.states


@DEPTHS
@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("turns", [2, 5, 9, 14])
def test_who_is_gone_is_handed_nothing(turns: int, depth: int, lags: bool) -> None:
    world = make(depth, lags=lags, rows=2, blocks=40)
    crowd(world, 3)
    for _ in range(turns):
        world.turn()
    world.send(ResponseCancelled("s0", "s0"), ResponseCancelled("s1", "s1"))
    finish(world)
    assert not world.talker.states


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_short_reply(most: int) -> None:
    """Of one token nothing is spoken; of two the first, with the end of the text behind it."""
    world = make(0, blocks=100)
    begin(world, "s", "hello", toy.tone(1))
    short = [ask(world, "s", f"short{n}", max_tokens=most, remember=False) for n in range(5)]
    finish(world)
    cut = [heard for heard in short if len(heard.text) == most]
    assert cut
    assert any(heard.frames for heard in cut) == (most > 1)
