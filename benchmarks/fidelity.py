"""Does the simulator say what the engine does? The same workload on a real engine and on its simulated twin.

    python benchmarks/fidelity.py checkpoints/demo --work fidelity --out benchmarks/results/fidelity.json

Measured first, once: the engine's profile (as `antiphon profile`), what its process does beside the steps and
what a joining row takes beyond the profile. Then a run with a record of every decision, of which is read how
long messages take and how the model talks (its replies' lengths). Then pairs in turns: people over the wire
against `antiphon serve`, and the same people, of the same seed, on virtual time. Every seed is played twice,
so that the engine's difference with itself is known. Beside them, the same pairs with the engine's steps run
under the simulator's clock: without wire and server, and whatever other processes on the machine do.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from fidelity_around import measure_around
from fidelity_calibration import Calibration, calibrate
from fidelity_engine import engine_in_the_loop
from fidelity_engine import load as load_engine

from antiphon.bench import provenance, server_metrics
from antiphon.bench.experiment import measure
from antiphon.bench.logfile import LogWriter
from antiphon.bench.servers import Launch, Servers
from antiphon.bench.servers import Target as Server
from antiphon.bench.target import Pace, Target, model_of
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
from antiphon.sim.twin import Around, twin
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

SERVE = ("--threads", "1")
LOADS = {"light": (6, 18), "busy": (16, 32)}
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


def kept(path: Path, make: Callable[[], Figures]) -> Figures:
    """What is in the file; made and put there if it is not."""
    if not path.exists():
        path.write_text(json.dumps(make(), indent=2) + "\n")
    return json.loads(path.read_text())


async def play(url: str, load: str, seed: int, path: Path, num_sessions: int | None = None) -> Figures:
    """People over the wire; the run's figures, and the steps that it took."""
    target = Target(url, await model_of(url))
    before = server_metrics.sample(target)
    with LogWriter(path, force=True) as log:
        reason = await measure(workload(load, num_sessions), seed, target, Pace(), log, None)
        start_s = log.start_s
    assert reason == "finished", f"the run ended early: {reason}; see {path}"
    await asyncio.sleep(SETTLE_S)
    after = server_metrics.sample(target)
    counted = {key: after[key] - before.get(key, 0.0) for key in after}
    return {**said(events(path)), **steps(counted), "clock_s": start_s, "load_average": os.getloadavg()[0]}


def setup(load: str, seed: int, profile: Profile, calibration: Calibration) -> Setup:
    return Setup(workload(load), profile, seed, engine_of(profile), Network(calibration.message_s))


def on_virtual_time(load: str, seed: int, profile: Profile, calibration: Calibration) -> Figures:
    """The same people at the twin."""
    made = twin(setup(load, seed, profile, calibration), calibration.habits, calibration.around)
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
    """Each figure, its spread, and whether it holds."""
    result: dict[str, Any] = {}
    for name in COMPARED:
        by_seed: dict[int, list[float]] = {}
        for seed, real, _ in pairs:
            by_seed.setdefault(seed, []).append(real[name])
        spread = median(max(found) / min(found) - 1 for found in by_seed.values())
        ratio = median(simulated[name] / real[name] for _, real, simulated in pairs)
        result[name] = {
            "measured": round(median(real[name] for _, real, _ in pairs), 5),
            "simulated": round(median(simulated[name] for _, _, simulated in pairs), 5),
            "ratio": round(ratio, 4),
            "spread": round(spread, 4),
            "holds": abs(ratio - 1) <= max(BOUND, spread),
        }
    return result


class Budget:
    """Seconds after which nothing new is begun."""

    def __init__(self, seconds: float) -> None:
        self._until_s = time.monotonic() + seconds

    @property
    def is_spent(self) -> bool:
        return time.monotonic() > self._until_s


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def plan() -> Iterator[tuple[str, int, int]]:
    for load in LOADS:
        for repeat in REPEATS:
            for seed in SEEDS:
                yield load, seed, repeat


async def prepare(checkpoint: str, work: Path, budget: Budget) -> tuple[Profile, Calibration]:
    path = work / "profile.json"
    if not path.exists():
        say("profiling")
        made = measured_profile(checkpoint, EngineOptions(threads=1), rounds=8, seed=0)
        path.write_bytes(made.to_json())
    profile = Profile.from_json(path.read_bytes(), str(path))
    path = work / "around.json"
    if not path.exists():
        say("measuring what lies around the steps")
        path.write_bytes(msgspec.json.encode(measure_around(checkpoint, profile)))
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
            found = await play(server.url, "light", CALIBRATION_SEED, log)
        (work / "calibration.json").write_text(json.dumps(found))
    clock_s = json.loads((work / "calibration.json").read_text())["clock_s"]
    return profile, calibrate(profile, beside, record, events(log), clock_s)


async def pair_up(
    checkpoint: str, work: Path, budget: Budget, profile: Profile, calibration: Calibration
) -> dict[str, list[Pair]]:
    """All pairs by load; what a work directory has is not run again."""
    pairs: dict[str, list[Pair]] = {load: [] for load in LOADS}
    async with Servers(Launch(checkpoint, SERVE, work)) as servers:
        for load, seed, repeat in plan():
            name = f"{load}-{seed}-{repeat}"
            path = work / f"{name}.json"
            if not path.exists():
                if budget.is_spent:
                    say(f"{name}: not run, the budget is spent; the same command goes on from here")
                    continue
                async with servers.ready(Server("engine", preset="baseline")) as server:
                    if server.is_fresh:
                        await play(server.url, "light", WARM_UP_SEED, work / "warm-up.jsonl", 6)
                    say(f"{name}: measuring")
                    found = await play(server.url, load, seed, work / f"{name}.jsonl")
                path.write_text(json.dumps(found, indent=2) + "\n")
            simulated = on_virtual_time(load, seed, profile, calibration)
            pairs[load].append((seed, json.loads(path.read_text()), simulated))
    return pairs


def pair_up_inside(
    checkpoint: str, work: Path, budget: Budget, profile: Profile, calibration: Calibration
) -> dict[str, list[Pair]]:
    """All pairs by load, the engine under the simulator's clock: without wire, server and neighbours."""
    pairs: dict[str, list[Pair]] = {load: [] for load in LOADS}
    engine: Engine | None = None
    for load, seed, repeat in plan():
        path = work / f"inside-{load}-{seed}-{repeat}.json"
        if not path.exists():
            if budget.is_spent:
                say(f"{path.stem}: not run, the budget is spent; the same command goes on from here")
                continue
            engine = engine or load_engine(checkpoint)
            say(f"{path.stem}: measuring")
            made = engine_in_the_loop(
                setup(load, seed, profile, calibration), engine, profile, calibration.around
            )
            outcome = made.play(NOBODY)
            assert outcome.reason == "finished"
            found = {**said(outcome.events), **steps(made.driver.stats())}
            path.write_text(json.dumps(found, indent=2) + "\n")
        simulated = on_virtual_time(load, seed, profile, calibration)
        pairs[load].append((seed, json.loads(path.read_text()), simulated))
    return pairs


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
    profile, calibration = await prepare(arguments.checkpoint, work, budget)
    result: dict[str, Any] = {
        "model": Path(arguments.checkpoint).name,
        "bound": BOUND,
        "around_the_steps": calibration.told(),
        "decide_ms": round(1e3 * profile.decide_s, 4),
    }
    asked = (arguments.checkpoint, work, budget, profile, calibration)
    if arguments.only != "wire":
        result["under_the_simulators_clock"] = told(pair_up_inside(*asked))
    if arguments.only != "inside":
        result["over_the_wire"] = told(await pair_up(*asked))
    provenance.keep(result, arguments.out)


def picked(found: Figures) -> Figures:
    names = (*COMPARED, "turns", "client_lag_s", "load_average", 'utilisation{stage="talker"}')
    return {name: round(found[name], 5) for name in names if name in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--work", type=Path, default=Path("fidelity"), help="directory of what is measured")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    parser.add_argument("--only", choices=("wire", "inside"), help="one kind of pairs")
    parser.add_argument("--out", type=Path)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
