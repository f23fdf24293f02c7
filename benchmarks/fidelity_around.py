"""What an engine's process does beside its steps, and what of its steps the profile does not say: measured
with the profiler's own stopwatch, on turns as people take them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from fidelity_twin import Around

from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item
from antiphon.core.facts import Fact, ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import ArStep, Handoff, Output, RenderPrompt, ResponseEnded, Step
from antiphon.core.ports import Executor
from antiphon.core.rng import stream
from antiphon.runtime.driver import Driver
from antiphon.runtime.profiler import load_subject
from antiphon.runtime.stage_times import Stopwatch
from antiphon.runtime.synthetic_steps import recording
from antiphon.sim.costs import CostModel

CONVERSATIONS, TURNS = 8, 4
PAUSE_S = 0.3
"""Before a turn, as people make it: a core that has slept takes longer for what comes then."""
VOICE_S, REPLY_TOKENS = 1.0, 12
Times = dict[str, list[float]]


class Timed:
    """An executor whose steps with joins are timed beside what a profile says of them."""

    def __init__(self, inner: Executor, costs: CostModel, times: Times) -> None:
        self.depth = inner.depth
        self._inner, self._costs, self._times = inner, costs, times
        self._watch = Stopwatch()

    def submit(self, step: Step) -> None:
        self._watch.start()
        self._inner.submit(step)
        taken = self._watch.stop()
        if isinstance(step, ArStep) and step.joins:
            beyond = taken - self._costs.step_s(step, step.stage)
            self._times[f"join {step.stage}"].append(beyond / len(step.joins))

    def poll(self) -> list[Fact]:
        return self._inner.poll()


class TimedCall:
    """One method of something, timed; all else is passed on."""

    def __init__(self, inner: Any, method: str, times: list[float]) -> None:
        self._inner, self._times, self._watch = inner, times, Stopwatch()
        setattr(self, method, self._call)
        self._method = getattr(inner, method)

    def _call(self, order: RenderPrompt | Handoff) -> Any:
        self._watch.start()
        found = self._method(order)
        self._times.append(self._watch.stop())
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def measure_around(checkpoint: str, costs: CostModel) -> Around:
    """Of one person after the other, four turns each, with pauses; the first is left out."""
    options = EngineOptions(threads=1, depth=0)
    engine = load_subject(checkpoint, options, Path(checkpoint).name, lambda *_: None).engine
    times: Times = defaultdict(list)
    ended: list[ResponseEnded] = []

    def emit(outputs: tuple[Output, ...]) -> None:
        ended.extend(output for output in outputs if isinstance(output, ResponseEnded))

    watched = replace(
        engine,
        executors={name: Timed(one, costs, times) for name, one in engine.executors.items()},
        prompter=TimedCall(engine.prompter, "render", times["render"]),
        payloads=TimedCall(engine.payloads, "handoff", times["handoff"]),
    )
    driver = Driver(watched, emit)
    for number in range(CONVERSATIONS):
        session = f"around-{number}"
        driver.advance([SessionOpened(session)])
        for turn in range(TURNS):
            time.sleep(PAUSE_S)
            _turn(driver, session, turn, ended)
        driver.advance([SessionClosed(session)])
        if not number:
            for one in times.values():
                one.clear()
    joins = {name.removeprefix("join "): median(one) for name, one in times.items() if name[:4] == "join"}
    return Around(median(times["render"]), median(times["handoff"]), joins)


def _turn(driver: Driver, session: str, turn: int, ended: list[ResponseEnded]) -> None:
    name, count = f"{session}-{turn}", len(ended)
    voice = recording(stream(0, "around", name), VOICE_S)
    driver.advance([ItemAdded(session, Item(name, "user", (voice,)))])
    driver.advance([ResponseRequested(session, f"answer-{name}", f"reply-{name}", max_tokens=REPLY_TOKENS)])
    while len(ended) == count:
        driver.advance([])
