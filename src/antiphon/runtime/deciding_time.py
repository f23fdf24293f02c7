"""Measures what a step costs beside its executor: the deciding half, the driver and the outputs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import StageFailed
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import Output, ResponseEnded, Step
from antiphon.core.ports import Executor
from antiphon.engine.load import Engine
from antiphon.runtime.driver import Driver
from antiphon.runtime.stopwatch import Stopwatch

SESSIONS = 4
REPLY_TOKENS = 48


class Watched:
    """An executor that says how long its steps took to be submitted, and how many were."""

    def __init__(self, inner: Executor) -> None:
        self.depth = inner.depth
        self.seconds: list[float] = []
        self._inner = inner
        self._watch = Stopwatch()

    def submit(self, step: Step) -> None:
        self._watch.start()
        self._inner.submit(step)
        self.seconds.append(self._watch.stop())

    def poll(self) -> list[Fact]:
        return self._inner.poll()


def deciding_s(engine: Engine) -> float:
    """Median seconds of an advance that ordered one step, without the step, while a few people are written
    to. Raises StageFailed if a reply fails."""
    watched = {name: Watched(executor) for name, executor in engine.executors.items()}
    ended: list[ResponseEnded] = []

    def emit(outputs: tuple[Output, ...]) -> None:
        ended.extend(output for output in outputs if isinstance(output, ResponseEnded))

    driver, watch = Driver(replace(engine, executors={**watched}), emit), Stopwatch()
    names = [f"profile-{i}" for i in range(SESSIONS)]
    facts: list[Fact] = [fact for name in names for fact in _asked(engine, name)]
    taken: list[float] = []
    while len(ended) < len(names):
        before = {name: len(one.seconds) for name, one in watched.items()}
        watch.start()
        more = driver.advance(facts)
        seconds = watch.stop()
        steps = [one for name, executor in watched.items() for one in executor.seconds[before[name] :]]
        if len(steps) == 1 and not facts:
            taken.append(seconds - steps[0])
        facts = []
        if not more:
            driver.wait(1.0)
    driver.advance([SessionClosed(name) for name in names])
    for one in ended:
        if one.status == "failed":
            raise StageFailed("driver", (), f"a reply made to be measured failed: {one.message}")
    return max(float(np.median(taken)), 0.0) if taken else 0.0


def _asked(engine: Engine, name: str) -> list[Fact]:
    """A session that wants a written reply of a fixed length."""
    sampling = {
        stage: msgspec.structs.replace(config.sampling, suppress=config.stop_ids)
        for stage, config in engine.node.ar.items()
    }
    return [
        SessionOpened(name),
        ItemAdded(name, Item("i", "user", (TextPart("Tell me a story."),))),
        ResponseRequested(name, name, "r", speech=False, sampling=sampling, max_tokens=REPLY_TOKENS),
    ]
