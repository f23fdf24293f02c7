"""The real engine under the simulator's clock: its steps are run, and take what the profiler's stopwatch
says, so that other processes of the machine are no part of it. All else is the simulator's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fidelity_twin import Around

from antiphon.core.config import EngineOptions
from antiphon.core.facts import StageFact, StepDone
from antiphon.core.plans import CopyBlocks, Step
from antiphon.engine.load import Engine
from antiphon.runtime.profiler import load_subject
from antiphon.runtime.stage_times import Stopwatch
from antiphon.sim.run import Setup, Simulation, machine

MOST_REST_S = 0.05


class RealSteps:
    """Runs steps, and says afterwards what each took. Implements `sim.driver.StageModel`, and then
    `sim.costs.CostModel`."""

    def __init__(self, engine: Engine, decide_s: float) -> None:
        self.decide_s = decide_s
        self._taken_s: dict[tuple[str, int], float] = {}
        self.clock: Callable[[], float] = lambda: 0.0
        self._executors = engine.executors
        self._ended_s = 0.0
        self._watch = Stopwatch()

    def run(self, step: Step) -> StageFact:
        """A step after a pause finds the caches as an engine that had slept would."""
        executor, now = self._executors[step.stage], self.clock()
        time.sleep(min(max(now - self._ended_s, 0.0), MOST_REST_S))
        self._watch.start()
        executor.submit(step)
        (fact,) = executor.poll()
        taken = self._watch.stop()
        assert isinstance(fact, StepDone), fact
        self._taken_s[step.stage, step.step] = taken
        self._ended_s = now + taken
        return fact

    def step_s(self, step: Step, stage: str) -> float:
        return self._taken_s.pop((step.stage, step.step))

    def copy_s(self, order: CopyBlocks, num_bytes: float) -> float:
        raise AssertionError("an engine without a host tier copies nothing")

    def host_s(self, num_bytes: float) -> float:
        return 0.0

    def send_s(self, num_bytes: float) -> float:
        raise AssertionError("an engine on one device sends nothing")


def load(checkpoint: str) -> Engine:
    options = EngineOptions(threads=1, depth=0)
    return load_subject(checkpoint, options, Path(checkpoint).name, lambda *_: None).engine


def engine_in_the_loop(setup: Setup, engine: Engine, around: Around) -> Simulation:
    """A run of the setup's workload; a loaded engine has one at a time."""
    steps = RealSteps(engine, setup.costs.decide_s)
    carrier = replace(
        machine(replace(setup, costs=steps)),
        models=dict.fromkeys(engine.executors, steps),
        prompter=engine.prompter,
        payloads=engine.payloads,
        render_s=around.render_s,
        handoff_s=around.handoff_s,
    )
    made = Simulation(setup, carrier=carrier)
    steps.clock = lambda: made.agenda.now
    return made
