"""TokenFlow's preset beside baselines, simulated: the 4090's loads of TokenFlow's table 1, other machines,
models and arrivals, its memory ablation and its parameters.

    python benchmarks/tokenflow.py --work evaluation/tokenflow

Each part writes benchmarks/results/tokenflow-PART.json; then all tables and the plot are put into
docs/evaluation/tokenflow.md. `--parts` runs some of them. Runs that --work has are not run again.
What is told is from the times at which tokens were generated: the wire is instant, and delivery is not paced.
Every system decides about the same people (paired seeds).

    calibrated  a burst and Poisson of table 1, as slow as the paper's baseline (tokenflow_calibration.py)
    calibrated-more  the other two, and (d) with readers of two rates
    datasheet   some of it at a datasheet's times
    crowds      other machines, models and arrivals, at a datasheet's times
    ablation    table 2: without host, with a small one, without write-through, or copies beside others or
                steps, on links of two speeds
    settings    figures 20, 22 and 23: reading rates, the interval, how conservative preemption is
    claims      what the others get where a fifth says that it reads 100 tokens a second
    agents      what readers get beside agents, whose texts nobody reads (§8)
    long-replies  (a) with replies of 2,048 tokens
    h200        table 1's bursts on the H200
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import tokenflow_page
import yaml
from liveserve import NOBODY, written
from tokenflow_copies import Alone, InTurn
from tokenflow_loads import CROWDS, Load, fitted_ms, table_1, table_1_on_h200, usual

from antiphon.bench import provenance
from antiphon.bench.statistics import mean_interval, ratio_interval
from antiphon.core.config import NodeConfig
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.devices import Devices
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.run import Outcome, Setup, Simulation, machine
from antiphon.sim.sizes import Sizes
from antiphon.wire.readers import ReaderRates
from antiphon.workload.load import changed, find

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SWAP = f"{HERE / 'tokenflow_swap.py'}:RoundRobinSwap"
UNSLOWED = f"{HERE / 'tokenflow_unslowed.py'}:Unslowed"
ANDES = f"{HERE / 'tokenflow_andes.py'}:Andes"
WORKLOAD = "burst-readers"
ROWS, STEP_TOKENS, CHUNK_TOKENS, HOST_KV_TOKENS = 256, 8192, 512, 1 << 20
"""A step of 8,192 tokens is SGLang's longest prefill; of 512, its chunked one."""
SEEDS = 5
AGENTS_TAKE = "agents_take_s"
"""Seconds from an agent's request to the end of its reply, on average."""
TOLD = (
    *("effective_tokens_per_s", "streamed_tokens_per_s", "qos", "ttft_s.mean", "ttft_s.p50", "ttft_s.p99"),
    *("rebuffer_s.mean", "rebuffer_s.p99", "completed_turns", "turns", "span_s", "resume_s"),
    *('preemptions{stage="thinker"}', 'utilisation{stage="thinker"}', AGENTS_TAKE),
)


class System(msgspec.Struct, frozen=True):
    """What is compared.

    preset       that ships, and `choices` that differ from it
    step_tokens  of a step, prompts and replies together
    is_reserved  a reply begins only where the usual length of one has room
    has_host     KV may be kept in the host's memory
    host_share   how many times as much KV the host holds as the device; None: more than is ever needed
    devices      how they carry out copies
    """

    name: str
    preset: str = "baseline"
    choices: dict[str, Any] = {}
    step_tokens: int = STEP_TOKENS
    is_reserved: bool = False
    has_host: bool = False
    host_share: float | None = None
    devices: type[Devices] = Devices

    def write(self, folder: Path) -> None:
        """The preset's file, if it is not there: other processes may read it."""
        if not self.file(folder).exists():
            self.file(folder).write_text(yaml.safe_dump(written(self.preset) | self.choices))

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name.replace(' ', '-')}.yaml"

    def engine(self, folder: Path, load: Load) -> SimEngine:
        host = HOST_KV_TOKENS if self.host_share is None else round(self.host_share * load.kv_tokens)
        sizes = Sizes(
            max_rows=ROWS,
            kv_tokens=load.kv_tokens,
            step_tokens=self.step_tokens,
            host_kv_tokens=host if self.has_host else 0,
        )
        made = engine_of(load.profile, str(self.file(folder)), sizes)
        node = self.with_headroom(made.node, usual(load.reply))
        return SimEngine(msgspec.structs.replace(made.served, node=node), made.block_bytes)

    def with_headroom(self, node: NodeConfig, reply: int) -> NodeConfig:
        """reply: its usual length, in tokens."""
        reserved = reply if self.is_reserved else 0
        ar = {
            stage: msgspec.structs.replace(config, headroom_blocks=1 + reserved // config.block_size)
            for stage, config in node.ar.items()
        }
        return msgspec.structs.replace(node, ar=ar)


def tokenflow(
    name: str,
    has_host: bool = True,
    host_share: float | None = None,
    devices: type[Devices] = Devices,
    **options: Any,
) -> System:
    """With these options of its policy."""
    choice = {"policy": "token-buffer", **options}
    decisions = ("step", "pace", "evict", "write", "fetch")
    return System(
        name,
        "tokenflow",
        dict.fromkeys(decisions, choice) if options else {},
        has_host=has_host,
        host_share=host_share,
        devices=devices,
    )


FIRST, RESERVED = System("prompts first"), System("room reserved", is_reserved=True)
CHUNKED = System("chunked prompts", "fcfs", step_tokens=CHUNK_TOKENS)
ANDES_LIKE = System("andes", choices={"step": ANDES})
PACED = System("pacing alone", choices={"pace": {"policy": "urgency", "safe_s": 4.0}}, has_host=True)
TURNS = tokenflow("round-robin swap", policy=SWAP)
OURS = tokenflow("tokenflow")
UNTHROTTLED = tokenflow("agents are not slowed down", policy=UNSLOWED)
FALLS_BACK = tokenflow("with the fallback", fallback=True)
BASELINES = (FIRST, RESERVED, CHUNKED, ANDES_LIKE, PACED, TURNS)
ABLATED = (
    OURS,
    tokenflow("without the host", has_host=False),
    tokenflow("host as large as the device", host_share=1.0),
    tokenflow("host half as large", host_share=0.5),
    tokenflow("without write-through", write=False),
    tokenflow("copies one way at a time", devices=InTurn),
    tokenflow("steps wait for copies", devices=Alone),
    tokenflow("steps wait, without write-through", devices=Alone, write=False),
    RESERVED,
)


class Point(msgspec.Struct, frozen=True):
    system: System
    load: Load
    seed: int

    @property
    def name(self) -> str:
        slow = f"-{self.load.more_ms:g}" if self.load.more_ms else ""
        name = f"{self.system.name}-{self.load.name}{slow}-{self.seed}"
        return name.translate(str.maketrans(" /:,()", "------"))


def outcome_of(point: Point, work: Path) -> Outcome:
    """Of one run."""
    workload = changed(find(WORKLOAD), point.load.settings)
    engine = point.system.engine(work, point.load)
    setup = Setup(workload, point.load.profile, point.seed, engine, patience_s=3600.0)
    devices = point.system.devices(setup.costs, engine.node.placed, engine.block_bytes, engine.position_bytes)
    found = Simulation(setup, carrier=replace(machine(setup), devices=devices)).play(NOBODY)
    if found.overruled or found.incidents:
        raise RuntimeError(f"{point.name}: {found.overruled} {found.incidents}")
    return found


def played(point: Point, work: Path) -> dict[str, float]:
    """One run's figures."""
    run = fold(outcome_of(point, work).events)
    jobs = [row for row in run.responses if row.kind == "job"]
    if point.load.told_of is not None:
        told_of = tuple(row for row in run.responses if row.reading_tokens_per_s == point.load.told_of)
        run = replace(run, responses=told_of)
    found = figures(run, Slo())
    if jobs:
        found |= {AGENTS_TAKE: mean(row.ended_s - row.turn_ended_s for row in jobs)}
    return {name: round(found[name], 5) for name in TOLD if name in found}


def kept(point: Point, work: Path) -> dict[str, float]:
    return provenance.once(work / f"{point.name}.json", lambda: played(point, work))


Found = list[dict[str, float]]
"""A run's figures, for each seed."""


class Runs:
    """Figures by point, as many runs at a time as the pool has processes."""

    def __init__(self, work: Path, pool: ProcessPoolExecutor, seeds: int) -> None:
        self._work, self._pool, self._seeds = work, pool, seeds
        work.mkdir(parents=True, exist_ok=True)

    def at(self, systems: tuple[System, ...], load: Load) -> dict[str, Found]:
        for system in systems:
            system.write(self._work)
        seeds = range(self._seeds)
        points = [Point(system, load, seed) for seed in seeds for system in systems]
        done = list(self._pool.map(kept, points, [self._work] * len(points)))
        return {one.name: done[at :: len(systems)] for at, one in enumerate(systems)}


def against(a: Found, b: Found) -> dict[str, list[float]]:
    """b against a, by figure: the ratio where all are above 0, else the difference; 95 %."""
    told: dict[str, list[float]] = {}
    for name in TOLD:
        before, after = ([run[name] for run in runs if name in run] for runs in (a, b))
        if len(before) != len(after) or not before:
            continue
        if min(*before, *after) > 0:
            interval = ratio_interval(before, after)
        else:
            interval = mean_interval([two - one for one, two in zip(before, after, strict=True)])
        told[name] = [interval.mean, interval.low, interval.high]
    return told


def means(found: dict[str, Found]) -> dict[str, dict[str, float]]:
    return {
        name: {figure: round(mean(run[figure] for run in of), 4) for figure in TOLD if figure in of[0]}
        for name, of in found.items()
    }


def compared(found: dict[str, Found]) -> dict[str, Any]:
    """Means, and our ratios to each baseline."""
    ours = found[OURS.name]
    others = {name: of for name, of in found.items() if name != OURS.name}
    return {
        "seeds": len(ours),
        "means": means(found),
        "tokenflow against": {name: against(of, ours) for name, of in others.items()},
    }


SLOW = (OURS, RESERVED, ANDES_LIKE, FIRST)
BESIDE = (*SLOW, FALLS_BACK, PACED, TURNS)


def table(systems: tuple[System, ...], *keys: str, is_calibrated: bool = True) -> Callable[[Runs], Any]:
    """Of these loads of table 1."""

    def told(runs: Runs) -> dict[str, Any]:
        loads = table_1(fitted_ms() if is_calibrated else 0.0)
        return {loads[key].name: compared(runs.at(systems, loads[key])) for key in keys}

    return told


def crowds(runs: Runs) -> dict[str, Any]:
    return {load.name: compared(runs.at(SLOW, load)) for load in CROWDS}


def ablation(runs: Runs) -> dict[str, Any]:
    """Of (a), on links of the datasheet's rate and of an eighth of it. The paper's is of (b)."""
    load = table_1(fitted_ms())["a"]
    told: dict[str, Any] = {}
    for one in (load, msgspec.structs.replace(load, link=4.0, name=f"{load.name}, 4 GB/s to the host")):
        found = runs.at(ABLATED, one)
        told[one.name] = {"seeds": len(found[OURS.name]), "means": means(found)}
    return told


def h200(runs: Runs) -> dict[str, Any]:
    """At the datasheet's times."""
    systems = OURS, RESERVED, ANDES_LIKE, TURNS
    return {load.name: compared(runs.at(systems, load)) for load in table_1_on_h200()}


def settings(runs: Runs) -> dict[str, Any]:
    load = table_1()["a"]
    told: dict[str, Any] = {}
    for rate in (20, 30):
        one = msgspec.structs.replace(
            load, rate={"constant": rate}, name=f"{load.name}, {rate} read a second"
        )
        told[f"{rate} tokens read a second"] = means(runs.at((FIRST, RESERVED, OURS, FALLS_BACK, TURNS), one))
    changed_ = {
        "interval 0.25 s": tokenflow("interval 0.25", interval_s=0.25),
        "interval 0.5 s, safety 1.5": OURS,
        "interval 1 s": tokenflow("interval 1", interval_s=1.0),
        "interval 1.5 s": tokenflow("interval 1.5", interval_s=1.5),
        "safety 1": tokenflow("safety 1", safety=1.0),
        "safety 20": tokenflow("safety 20", safety=20.0),
    }
    found = runs.at(tuple(changed_.values()), load)
    told["tokenflow"] = {name: means(found)[one.name] for name, one in changed_.items()}
    return told


CLAIMED, BOUND = 100.0, ReaderRates().most


def claims(runs: Runs) -> dict[str, Any]:
    """Of (a) and (d): four fifths read 15 tokens a second and say so. A server takes who says more at its
    bound (`readers.most`)."""
    told: dict[str, Any] = {}
    said = {"all are honest": 15.001, f"a fifth says {CLAIMED:g}": CLAIMED, "and counts as the bound": BOUND}
    loads = table_1(fitted_ms())
    for load, (name, rate) in product((loads["a"], loads["d"]), said.items()):
        law = {"choice": {"values": [15, rate], "weights": [0.8, 0.2]}}
        one = msgspec.structs.replace(load, rate=law, told_of=15.0, name=f"{load.name}, {name}")
        told.setdefault(load.name, {})[name] = means(runs.at((OURS,), one))[OURS.name]
    return told


def agents(runs: Runs) -> dict[str, Any]:
    """Of (d), where a quarter or half of the requests are agents'."""
    load = table_1(fitted_ms())["d"]
    told: dict[str, Any] = {}
    for name, each in (("a quarter are agents", 1 / 3), ("half are agents", 1.0)):
        beside = msgspec.structs.replace(load, agents=each, told_of=15.0, name=f"{load.name}, {name}")
        say = msgspec.structs.replace(beside, agents_say="auto", name=f"{beside.name} and say so")
        found = {"prompts first": runs.at((FIRST,), beside)[FIRST.name]}
        found["taken for readers"] = runs.at((OURS,), beside)[OURS.name]
        found["they say so"] = runs.at((OURS,), say)[OURS.name]
        found["and are not slowed down"] = runs.at((UNTHROTTLED,), say)[UNTHROTTLED.name]
        told[beside.name] = {"seeds": len(found["they say so"]), "means": means(found)}
    return told


PARTS: dict[str, Callable[[Runs], dict[str, Any]]] = {
    "calibrated": table(BESIDE, "a", "d"),
    "calibrated-more": table(BESIDE, "c", "b", "d, mixed"),
    "datasheet": table((*BASELINES, OURS), "a", "d", is_calibrated=False),
    "ablation": ablation,
    "crowds": crowds,
    "settings": settings,
    "claims": claims,
    "agents": agents,
    "long-replies": table(BESIDE, "a, long"),
    "h200": h200,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/tokenflow"), help="of what is done")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many of each")
    parser.add_argument("--at-once", type=int, default=2, help="runs")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.at_once) as pool:
        runs = Runs(arguments.work, pool, arguments.seeds)
        for part in arguments.parts:
            provenance.keep(PARTS[part](runs), RESULTS / f"tokenflow-{part}.json")
    tokenflow_page.write()


if __name__ == "__main__":
    main()
