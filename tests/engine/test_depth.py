"""With a step in flight while the next is decided, everybody hears what they hear without."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon import Omni, Request, Sampling
from antiphon.core.conversation import Item
from antiphon.core.plans import ArStep
from antiphon.engine.lanes import LanedExecutor
from antiphon.engine.load import Engine, in_lane
from antiphon.metrics.names import Metric
from antiphon.runtime.omni import Content, parts_of
from exactness.talk import GREEDY, SIZES, Said, Talk

HOT = {
    "thinker": Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, max_tokens=8, seed=5),
    "talker": Sampling(temperature=0.9, top_k=50, repetition_penalty=1.05, max_tokens=12, seed=6),
}
STAGES = ("encoders", "thinker", "talker", "code2wav")


@pytest.fixture(scope="module")
def inline(tiny_checkpoint: Path) -> Engine:
    """fp64, so that the shape of a batch cannot be felt."""
    return Omni(tiny_checkpoint, device="cpu", dtype="float64", max_rows=4, **SIZES).engine


@pytest.fixture(scope="module")
def laned(inline: Engine) -> Engine:
    return in_lane(inline, torch.device("cpu"))


class Gate:
    """Holds the lane before a step of one stage, so that facts can come late."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self._num_let = math.inf
        for name in STAGES:
            executor = engine.executors[name]
            assert isinstance(executor, LanedExecutor)
            monkeypatch.setattr(executor, "inner", Held(executor.inner, self._pass))

    def close(self) -> None:
        self._let(0)

    def let_one(self) -> None:
        """Lets one step through, and holds the next."""
        self._let(1)

    def open(self) -> None:
        self._let(math.inf)

    def _let(self, num: float) -> None:
        with self._changed:
            self._num_let = num
            self._changed.notify_all()

    def _pass(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_let > 0, 30)
            self._num_let -= 1


class Held:
    def __init__(self, inner: Any, pass_gate: Callable[[], None]) -> None:
        self._inner = inner
        self._pass_gate = pass_gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, step: Any) -> Any:
        self._pass_gate()
        return self._inner.launch(step)


@pytest.fixture
def gate(laned: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(laned, monkeypatch)
    yield gate
    gate.open()


def say(content: Content) -> Item:
    return Item("q", "user", parts_of(content))


def tone(seed: int) -> Content:
    samples = np.random.default_rng(seed).standard_normal(int(16000 * 1.2))
    return [{"audio": (0.1 * samples).astype(np.float32)}, "hm?"]


def words(said: Said) -> tuple[list, list, str]:
    assert said.end is not None
    return said.text, said.codes, said.end.status


CROWD = {
    "greedy": (tone(0), GREEDY),
    "hot": (tone(1), HOT),
    "text": ("one two three", GREEDY),
    "warm": ("hello", {**HOT, "thinker": Sampling(temperature=0.3, seed=9, max_tokens=11)}),
    "late": (tone(0), HOT),
}


def crowd(engine: Engine, names: list[str], pause: int = 0, **overrides: Any) -> Talk:
    """Everybody asks, some greedily and some not."""
    talk = Talk(engine, **overrides)
    for name in names:
        content, sampling = CROWD[name]
        talk.open(name, say(content))
        talk.ask(name, sampling=sampling)
        talk.step(pause)
    return talk


@pytest.fixture(scope="module")
def alone(inline: Engine) -> dict[str, tuple[list, list, str]]:
    """Each without neighbours, step by step."""
    out = {}
    for name in CROWD:
        talk = crowd(inline, [name])
        talk.run()
        out[name] = words(talk.said[name])
    return out


def check(talk: Talk, alone: dict[str, tuple[list, list, str]], names: list[str]) -> None:
    for name in names:
        assert words(talk.said[name]) == alone[name]
    talk.close(*CROWD)
    talk.run()
    talk.check_all_free()


@pytest.mark.parametrize(("pause", "overrides"), [(0, {}), (3, {}), (2, {"max_rows": 2, "step_tokens": 7})])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_mixed_crowd(
    inline: Engine, laned: Engine, alone: dict, depth: int, pause: int, overrides: dict
) -> None:
    talk = crowd([inline, laned][depth], list(CROWD), pause, **overrides)
    talk.run()
    check(talk, alone, list(CROWD))


@pytest.mark.parametrize("moment", [0, 3, 9, 20])
@pytest.mark.parametrize("depth", [0, 1])
def test_neighbours_that_leave_are_not_felt(
    inline: Engine, laned: Engine, alone: dict, depth: int, moment: int
) -> None:
    talk = crowd([inline, laned][depth], list(CROWD))
    talk.step(moment)
    talk.cancel("greedy")
    talk.cancel("warm")
    talk.run()
    check(talk, alone, ["hot", "text", "late"])


def test_two_steps_are_in_flight_and_a_stop_comes_late(laned: Engine, alone: dict, gate: Gate) -> None:
    """The step after the last token is planned before that token is known: it is dropped and counted."""
    stop = alone["hot"][0][3]
    assert stop not in alone["hot"][0][:3]
    talk = Talk(laned, thinker={"stop_ids": (stop,)})
    talk.open("hot", say(CROWD["hot"][0]))
    talk.ask("hot", sampling=HOT, speech=False)
    talk.step()
    deepest, more = 0, True
    while more:
        gate.close()
        while more and not talk.driver.idle_s(1.0):
            more = talk.driver.advance([])
        deepest = max(deepest, talk.driver.node.num_in_flight)
        gate.let_one()
        talk.driver.wait(30.0)
        more = talk.driver.advance([])
    assert deepest == 2
    assert talk.said["hot"].text == alone["hot"][0][:3]
    assert talk.said["hot"].end.status == "completed"
    assert talk.driver.stats()[Metric.SURPLUS_TOKENS.of("thinker")] == 1


def test_an_abort_with_a_step_in_flight(laned: Engine, alone: dict, gate: Gate) -> None:
    talk = crowd(laned, ["hot", "greedy"])
    while not talk.said["greedy"].codes:
        talk.step()
    gate.close()
    talk.driver.advance([])
    assert talk.driver.node.num_in_flight
    talk.cancel("greedy")
    facts, talk._facts = talk._facts, []
    talk.driver.advance(facts)
    assert talk.said["greedy"].end.status == "cancelled", "who leaves need not wait for the step"
    gate.open()
    talk.run()
    check(talk, alone, ["hot"])


@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_failing_step_loses_whom_it_ran(
    inline: Engine, laned: Engine, alone: dict, monkeypatch: pytest.MonkeyPatch, depth: int, stage: str
) -> None:
    """Nobody else is lost, although the step after it was planned with the broken rows in it."""
    executor = inline.executors[stage]
    launched, lost = executor.launched, []

    def watched(order: Any, begin: Any, names: Any) -> Any:
        running = _requests(executor, order)
        joining = [join.request for join in order.joins] if isinstance(order, ArStep) else []
        if lost or not 0 < len({*running.tolist(), *joining}) < 3:
            return launched(order, begin, names)

        def breaks() -> Any:
            begin()
            raise RuntimeError("no")

        lands = launched(order, breaks, names)
        lost.extend(lands().requests.tolist())
        return lands

    monkeypatch.setattr(executor, "launched", watched)
    talk = crowd([inline, laned][depth], ["late", "hot", "text"], 2, step_tokens=9)
    talk.run()
    assert 0 < len(lost) < 3
    names = dict(enumerate(["late", "hot", "text"], 1))
    for request in lost:
        end = talk.said[names.pop(request)].end
        assert (end.status, end.reason) == ("failed", "stage_failed")
    assert names
    check(talk, alone, list(names.values()))


def _requests(executor: Any, order: Any) -> Any:
    return order.requests if hasattr(order, "requests") else executor._requests_of(order.rows.tolist())


def test_what_an_order_between_steps_raises_is_not_swallowed(
    laned: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("no way there")

    monkeypatch.setattr(laned.payloads._inner, "handoff", breaks)
    talk = crowd(laned, ["greedy"])
    with pytest.raises(RuntimeError, match="no way there"):
        talk.run()


def test_the_python_entry_at_both_depths(tiny_checkpoint: Path) -> None:
    requests = [Request(content, sampling=sampling) for content, sampling in CROWD.values()]
    replies = []
    for depth in (0, 1):
        omni = Omni(tiny_checkpoint, device="cpu", dtype="float64", depth=depth, **SIZES)
        assert omni.engine.depth == depth
        replies.append(omni.generate(requests))
        parts = list(omni.stream(requests[1]))
        assert "".join(part.text for part in parts) == replies[-1][1].text
    for plain, laned in zip(*replies, strict=True):
        assert plain.status == laned.status != "failed"
        assert plain.text == laned.text
        assert np.array_equal(plain.token_ids["talker"], laned.token_ids["talker"])
        np.testing.assert_allclose(plain.audio, laned.audio, atol=2e-7)
