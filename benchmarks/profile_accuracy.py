"""How well latency models predict steps that they were not fitted to (OmniServe: 94 to 95 %).

    python benchmarks/profile_accuracy.py checkpoints/demo --out benchmarks/results/profile-accuracy.json

Every stage of a checkpoint's engine is measured and fitted as by `antiphon profile`. Held out are steps drawn
at random (chunks of prompts beside rows that draw, streams of a vocoder, media): accuracy is one minus the
mean of |predicted - measured| / measured over them. Served are the steps of real replies, turned by a driver:
one, three and eight people at once who ask by voice; each step is measured once, as it comes. Prediction:
microseconds of `Profile.step_s` for a step of so many rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.bench import provenance
from antiphon.core.config import EngineOptions
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import NO_INTS, Fact, ItemAdded, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import ArStep, Output, ResponseEnded, Step
from antiphon.core.ports import Executor
from antiphon.core.rng import stream
from antiphon.engine.load import Engine
from antiphon.latency.fit import residuals
from antiphon.latency.profile import Profile, Provenance
from antiphon.runtime.driver import Driver
from antiphon.runtime.profiler import load_subject, profile
from antiphon.runtime.stage_times import Effort, Stopwatch
from antiphon.runtime.synthetic_steps import recording

PREDICTED_ROWS = (16, 64, 256)
PEOPLE = (1, 3, 8)


class Predicted:
    """An executor in a driver's hands, whose steps are timed beside what a profile says of them."""

    def __init__(self, inner: Executor, made: Profile) -> None:
        self.depth = inner.depth
        self.pairs: list[tuple[float, float]] = []
        self._inner, self._made, self._watch = inner, made, Stopwatch()

    def submit(self, step: Step) -> None:
        predicted = self._made.step_s(step)
        self._watch.start()
        self._inner.submit(step)
        self.pairs.append((predicted, self._watch.stop()))

    def poll(self) -> list[Fact]:
        return self._inner.poll()


def served(engine: Engine, made: Profile) -> dict[str, Any]:
    """Per stage: accuracy over the steps of people's replies, and the sum of predictions by that of times."""
    executors = {name: Predicted(executor, made) for name, executor in engine.executors.items()}
    talk(engine, 2)
    for people in PEOPLE:
        talk(replace(engine, executors={**executors}), people)
    result: dict[str, Any] = {}
    for name, executor in executors.items():
        found = residuals(executor.pairs)
        predicted, measured = (sum(values) for values in zip(*executor.pairs, strict=True))
        assert found is not None, "every stage has run"
        result[name] = {
            "accuracy": round(1.0 - found.mean, 4),
            "total_ratio": round(predicted / measured, 4),
            "steps": found.num_steps,
        }
    return result


def talk(engine: Engine, people: int) -> None:
    """So many ask at once by voice and are answered in speech."""
    ended: list[ResponseEnded] = []

    def emit(outputs: tuple[Output, ...]) -> None:
        ended.extend(output for output in outputs if isinstance(output, ResponseEnded))

    driver = Driver(engine, emit)
    names = [f"{people}-{i}" for i in range(people)]
    facts: list[Fact] = []
    for name in names:
        voice = recording(stream(0, "talk", name), 3.0)
        item = Item("q", "user", (voice, TextPart("Tell me something.")))
        facts += [SessionOpened(name), ItemAdded(name, item), ResponseRequested(name, name, "r")]
    driver.advance(facts)
    while len(ended) < people:
        driver.advance([])
    driver.advance([SessionClosed(name) for name in names])


def accuracy(made: Profile) -> dict[str, Any]:
    """Per stage, and the mean over them."""
    stages = {
        name: {
            "accuracy": round(1.0 - stage.residuals.mean, 4),
            "p90_error": round(stage.residuals.p90, 4),
            "held_out_steps": stage.residuals.num_steps,
        }
        for name, stage in made.stages.items()
        if stage.residuals is not None
    }
    mean = float(np.mean([stage["accuracy"] for stage in stages.values()]))
    return {"stages": stages, "mean_accuracy": round(mean, 4)}


def prediction_us(made: Profile, rows: int) -> float:
    """Of a step of so many rows that draw beside one chunk, for the stage that writes."""
    counts = np.ones(rows, np.int64)
    counts[-1] = 128
    ones = np.ones(rows, np.int64)
    step = ArStep(
        "thinker", 0, (), NO_INTS, (), NO_INTS, NO_INTS, np.arange(rows), 100 * ones, counts, ones, "bench"
    )
    taken = []
    for _ in range(2000):
        before = time.perf_counter()
        made.step_s(step)
        taken.append(time.perf_counter() - before)
    return round(1e6 * float(np.median(taken)), 2)


def progress(what: str, done: int, total: int) -> None:
    sys.stderr.write(f"{what} {done}/{total}\n" if total else f"{what}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    options = EngineOptions(threads=arguments.threads, max_rows=arguments.max_rows, depth=0)
    subject = load_subject(str(arguments.checkpoint), options, arguments.checkpoint.name, progress)
    effort = Effort(rounds=arguments.rounds, seed=arguments.seed)
    began = time.monotonic()
    made = profile(subject, Provenance(model=arguments.checkpoint.name), progress, effort)
    result = {
        "model": arguments.checkpoint.name,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        **accuracy(made),
        "served": served(subject.engine, made),
        "profiling_s": round(time.monotonic() - began, 1),
        "decide_us": round(1e6 * made.decide_s, 1),
        "prediction_us": {str(rows): prediction_us(made, rows) for rows in PREDICTED_ROWS},
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
