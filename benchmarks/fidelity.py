"""Does the simulator say what the engine does? The same workload on a real engine and on its simulated twin.

    python benchmarks/fidelity.py checkpoints/demo --work fidelity --out benchmarks/results/fidelity.json

Measured first, once: the engine's profile (as `antiphon profile`), what its process does beside the steps and
what a joining row takes beyond the profile. Then a run with a record of every decision, of which is read how
long messages take and how the model talks (its replies' lengths). Then pairs in turns: people over the wire
against `antiphon serve`, and the same people, of the same seed, on virtual time. Every seed is played twice,
so that the engine's difference with itself is known. Beside them, the same pairs with the engine's steps run
under the simulator's clock: without wire and server, and whatever other processes on the machine do.

Before and after each run the machine's pace is measured (fidelity_pace.py), which its twin's times follow.
--busy says how many people are a busy machine: so many that replies still sound without gaps.

A figure holds if the median over pairs of simulated by measured is off by no more than 15 %, or than the
engine differs from itself. About 18 minutes; the pairs over the wire need a quiet machine. What is done is
kept in --work, and a run with --budget seconds ends after about so many and goes on the next time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from fidelity_around import measure_around
from fidelity_calibration import Calibration, calibrate
from fidelity_engine import engine_in_the_loop
from fidelity_engine import load as load_engine
from fidelity_pace import Paced, at_pace
from fidelity_pace import pace as measure_pace
from fidelity_twin import Around, twin

from antiphon.bench import provenance, server_metrics
from antiphon.bench.experiment import measure
from antiphon.bench.logfile import LogWriter
from antiphon.bench.servers import Launch, Servers
from antiphon.bench.servers import Target as Server
from antiphon.bench.target import DrivenServer, Pace, model_of
from antiphon.cli.profile import measured as measured_profile
from antiphon.core.config import EngineOptions
from antiphon.engine.load import Engine
from antiphon.latency.profile import Profile
from antiphon.metrics.log import Event, RunStarted
from antiphon.metrics.names import Metric
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.links import Network
from antiphon.sim.model import engine_of
from antiphon.sim.run import Setup
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

SERVE = ("--threads", "1")
LOADS = {"light": (6, 18), "busy": (10, 20)}
"""Conversations at a time, and in all."""
SEEDS, REPEATS = (0, 1, 2), (0, 1)
CALIBRATION_SEED, WARM_UP_SEED = 1000, 1001
SETTLE_S = 2.5
"""Until the counters of a server tell all of a run that is over."""
BOUND = 0.15
STAGES = ("encoders", "thinker", "talker", "code2wav")
COMPARED = ("ttfp_s.p50", "ttfp_s.p90", "completed_rps", *(f"steps{{{stage}}}" for stage in STAGES))
Figures = dict[str, float]
Pair = tuple[int, Figures, Figures]
"""Seed, measured, simulated."""


def workload(load: str, num_sessions: int | None = None) -> Workload:
    """voice-chat with shorter turns, pauses and replies, so that 70 turns take half a minute."""
    concurrency, sessions = LOADS[load]
    talker = {
        "turns": {"uniform": [3, 5]},
        "speech": {"words": {"fitted": "slurp_words"}, "words_per_s": 4, "max_s": 1.0},
        "think_s": {"uniform": [0.2, 1.0]},
        "max_output_tokens": {"uniform": [8, 20]},
        "reply_s": {"uniform": [2, 4]},
        "acks": {"interval_s": 0.2, "jitter_s": 0.05},
    }
    closed = {"concurrency": concurrency, "sessions": num_sessions or sessions}
    return changed(named("voice-chat"), {"load": {"closed": closed}, "people": {"talker": talker}})


async def play(url: str, load: str, seed: int, path: Path, num_sessions: int | None = None) -> Figures:
    """People over the wire; the run's figures, and the steps that it took."""
    target = DrivenServer(url, await model_of(url))
    before = server_metrics.sample(target)
    with LogWriter(path, force=True) as log:
        reason = await measure(workload(load, num_sessions), seed, target, Pace(), log, None)
        start_s = log.start_s
    assert reason == "finished", f"the run ended early: {reason}; see {path}"
    await asyncio.sleep(SETTLE_S)
    after = server_metrics.sample(target)
    counted = {key: after[key] - before.get(key, 0.0) for key in after}
    return {**said(events(path)), **steps(counted), "clock_s": start_s, "load_average": os.getloadavg()[0]}


class Budget:
    """Seconds after which nothing new is begun."""

    def __init__(self, seconds: float) -> None:
        self._until_s = time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        return time.monotonic() > self._until_s


@dataclass(frozen=True)
class Study:
    """What pairs are made of; the engine is for the pace, and for the pairs without a server."""

    checkpoint: str
    work: Path
    budget: Budget
    engine: Engine
    profile: Profile
    calibration: Calibration

    def setup(self, load: str, seed: int, pace: float) -> Setup:
        network = Network(pace * self.calibration.message_s)
        return Setup(workload(load), Paced(self.profile, pace), seed, engine_of(self.profile), network)

    def around(self, pace: float) -> Around:
        return at_pace(self.calibration.around, pace)

    def pace(self) -> float:
        return measure_pace(self.engine, self.profile)

    def is_due(self, path: Path) -> bool:
        """Has it to be measured now?"""
        if path.exists():
            return False
        if self.budget.is_spent:
            say(f"{path.stem}: not run, the budget is spent; the same command goes on from here")
            return False
        say(f"{path.stem}: measuring")
        return True


def on_virtual_time(study: Study, load: str, seed: int, pace: float) -> Figures:
    """The same people at the twin."""
    made = twin(study.setup(load, seed, pace), study.calibration.habits, study.around(pace))
    outcome = made.play(NOBODY)
    assert outcome.reason == "finished"
    return {**said(outcome.events), **steps(made.driver.stats())}


NOBODY = RunStarted(
    t_s=0.0,
    label="twin",
    url="",
    workload="",
    seed=0,
    command="",
    commit="",
    machine="",
    version="",
    unix_s=0.0,
)


def events(path: Path) -> list[Event]:
    from antiphon.bench.logfile import read

    return list(read(path))


def said(log: list[Event]) -> Figures:
    return figures(fold(log), Slo())


def steps(stats: dict[str, float]) -> Figures:
    return {f"steps{{{stage}}}": stats[Metric.STEPS.of(stage)] for stage in STAGES}


def compare(pairs: list[Pair]) -> dict[str, Any]:
    """Each figure, its spread, and whether it holds; of the pairs that have it (a short run's throughput may
    have no window without a restart)."""
    result: dict[str, Any] = {}
    for name in COMPARED:
        by_seed: dict[int, list[float]] = {}
        there = [pair for pair in pairs if name in pair[1] and name in pair[2]]
        if not there:
            continue
        for seed, real, _ in there:
            by_seed.setdefault(seed, []).append(real[name])
        spread = median(max(found) / min(found) - 1 for found in by_seed.values())
        ratio = median(simulated[name] / real[name] for _, real, simulated in there)
        result[name] = {
            "pairs": len(there),
            "measured": round(median(real[name] for _, real, _ in there), 5),
            "simulated": round(median(simulated[name] for _, _, simulated in there), 5),
            "ratio": round(ratio, 4),
            "spread": round(spread, 4),
            "holds": abs(ratio - 1) <= max(BOUND, spread),
        }
    return result


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def plan() -> Iterator[tuple[str, int, int]]:
    for load in LOADS:
        for repeat in REPEATS:
            for seed in SEEDS:
                yield load, seed, repeat


async def prepare(checkpoint: str, work: Path, budget: Budget) -> Study:
    path = work / "profile.json"
    if not path.exists():
        say("profiling")
        made = measured_profile(checkpoint, EngineOptions(threads=1), rounds=8, seed=0)
        path.write_bytes(made.to_json())
    profile = Profile.from_json(path.read_bytes(), str(path))
    engine = load_engine(checkpoint)
    path = work / "around.json"
    if not path.exists():
        say("measuring what lies around the steps")
        pace = measure_pace(engine, profile)
        path.write_bytes(
            msgspec.json.encode(at_pace(measure_around(checkpoint, Paced(profile, pace)), 1 / pace))
        )
    beside = msgspec.json.decode(path.read_bytes(), type=Around)
    log, record = work / "calibration.jsonl", work / "calibration.record"
    if not (work / "calibration.json").exists():
        say("calibrating")
        record.unlink(missing_ok=True)
        launch = Launch(checkpoint, (*SERVE, "--record", str(record.absolute())), work)
        async with (
            Servers(launch) as servers,
            servers.ready(Server("calibration", preset="baseline")) as server,
        ):
            await play(server.url, "light", WARM_UP_SEED, work / "warm-up.jsonl", 6)
            before = measure_pace(engine, profile)
            found = await play(server.url, "light", CALIBRATION_SEED, log)
            found["pace"] = (before + measure_pace(engine, profile)) / 2
        (work / "calibration.json").write_text(json.dumps(found))
    then = json.loads((work / "calibration.json").read_text())
    calibration = calibrate(profile, beside, record, events(log), then["clock_s"])
    calibration = replace(calibration, message_s=calibration.message_s / then["pace"])
    return Study(checkpoint, work, budget, engine, profile, calibration)


async def pair_up(study: Study) -> dict[str, list[Pair]]:
    """All pairs by load; what a work directory has is not run again."""
    pairs: dict[str, list[Pair]] = {load: [] for load in LOADS}
    async with Servers(Launch(study.checkpoint, SERVE, study.work)) as servers:
        for load, seed, repeat in plan():
            path = study.work / f"{load}-{seed}-{repeat}.json"
            if study.is_due(path):
                async with servers.ready(Server("engine", preset="baseline")) as server:
                    if server.is_fresh:
                        await play(server.url, "light", WARM_UP_SEED, study.work / "warm-up.jsonl", 6)
                    before = study.pace()
                    found = await play(server.url, load, seed, path.with_suffix(".jsonl"))
                keep(path, found, before, study.pace())
            pairs[load] += paired(study, load, seed, path)
    return pairs


def pair_up_inside(study: Study) -> dict[str, list[Pair]]:
    """All pairs by load, the engine under the simulator's clock: without wire, server and neighbours."""
    pairs: dict[str, list[Pair]] = {load: [] for load in LOADS}
    for load, seed, repeat in plan():
        path = study.work / f"inside-{load}-{seed}-{repeat}.json"
        if study.is_due(path):
            before = study.pace()
            made = engine_in_the_loop(study.setup(load, seed, before), study.engine, study.around(before))
            outcome = made.play(NOBODY)
            assert outcome.reason == "finished"
            keep(path, {**said(outcome.events), **steps(made.driver.stats())}, before, study.pace())
        pairs[load] += paired(study, load, seed, path)
    return pairs


def keep(path: Path, found: Figures, before: float, after: float) -> None:
    path.write_text(json.dumps({**found, "pace": (before + after) / 2}, indent=2) + "\n")


def paired(study: Study, load: str, seed: int, path: Path) -> list[Pair]:
    """The measured run, if there is one, beside its twin."""
    if not path.exists():
        return []
    real = json.loads(path.read_text())
    return [(seed, real, on_virtual_time(study, load, seed, real["pace"]))]


def told(pairs: dict[str, list[Pair]]) -> dict[str, Any]:
    return {
        "pairs": {load: len(found) for load, found in pairs.items()},
        "turns": {load: round(sum(real["turns"] for _, real, _ in found)) for load, found in pairs.items()},
        "loads": {load: compare(found) for load, found in pairs.items() if found},
        "measured": {load: [picked(real) for _, real, _ in found] for load, found in pairs.items()},
        "simulated": {
            load: [picked(simulated) for _, _, simulated in found] for load, found in pairs.items()
        },
    }


async def run(arguments: argparse.Namespace) -> None:
    work, budget = arguments.work, Budget(arguments.budget)
    work.mkdir(parents=True, exist_ok=True)
    study = await prepare(arguments.checkpoint, work, budget)
    result: dict[str, Any] = {
        "model": Path(arguments.checkpoint).name,
        "bound": BOUND,
        "conversations": {load: most for load, (most, _) in LOADS.items()},
        "around_the_steps": study.calibration.told(),
        "decide_ms": round(1e3 * study.profile.decide_s, 4),
    }
    if arguments.only != "wire":
        result["under_the_simulators_clock"] = told(pair_up_inside(study))
    if arguments.only != "inside":
        result["over_the_wire"] = told(await pair_up(study))
    provenance.keep(result, arguments.out)


def picked(found: Figures) -> Figures:
    names = (
        *COMPARED,
        "turns",
        "pace",
        "continuity",
        "client_lag_s",
        "load_average",
        'utilisation{stage="talker"}',
    )
    return {name: round(found[name], 5) for name in names if name in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--work", type=Path, default=Path("fidelity"), help="directory of what is measured")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    parser.add_argument("--busy", type=int, default=LOADS["busy"][0], help="people at a time of that load")
    parser.add_argument("--only", choices=("wire", "inside"), help="one kind of pairs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    LOADS["busy"] = arguments.busy, 2 * arguments.busy
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main()
