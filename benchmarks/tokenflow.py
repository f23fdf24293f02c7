"""TokenFlow's preset beside the baselines, simulated at a datasheet's times.

    python benchmarks/tokenflow.py --work evaluation/tokenflow --out benchmarks/results/tokenflow.json

Readers come in a burst, or as Poisson near saturation, to Llama-3.1-8B on an RTX 4090 and on an H200 (after
TokenFlow's table 1, smaller: 16 readers, a prompt of 512 tokens, a reply of 1,024). The device has room for a
third of what they need together. 40 % read 15 tokens a second and 60 % read 20 (figure 19). What is told is
from the times at which tokens were generated: the wire is instant, and delivery is not paced. Every system
decides about the same people (paired seeds). Runs that --work has are not run again.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import yaml
from liveserve import NOBODY, written

from antiphon.bench import provenance
from antiphon.bench.statistics import mean_interval, ratio_interval
from antiphon.latency.finding import find_costs
from antiphon.latency.shapes import find_shape
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, find

HERE = Path(__file__).parent
SWAP = f"{HERE / 'tokenflow_swap.py'}:RoundRobinSwap"
ANDES = f"{HERE / 'tokenflow_andes.py'}:Andes"
MODEL, WORKLOAD = "llama-3.1-8b", "burst-readers"
ROWS, STEP_TOKENS, CHUNK_TOKENS, HOST_KV_TOKENS = 256, 8192, 512, 1 << 19
"""A step of 8,192 tokens is SGLang's longest prefill; of 512, its chunked one."""
PROMPT, REPLY, SPREAD = 512, 1024, 1.2
"""Tokens, and the 90th percentile as a multiple of the median."""
READERS, KV_TOKENS = 16, 8192
SEEDS = (0, 1, 2, 3, 4)
TOLD = (
    *("effective_tokens_per_s", "streamed_tokens_per_s", "qos", "ttft_s.mean", "ttft_s.p50", "ttft_s.p99"),
    *("rebuffer_s.mean", "rebuffer_s.p99", "completed_turns", "turns", 'preemptions{stage="thinker"}'),
    'utilisation{stage="thinker"}',
)


class Load(msgspec.Struct, frozen=True):
    """Who comes, and to what. arrivals: as a workload has it."""

    name: str
    hardware: str
    arrivals: dict[str, Any]
    sessions: int = READERS

    @property
    def settings(self) -> dict[str, Any]:
        def about(median: float) -> dict[str, Any]:
            return {"lognormal": {"median": median, "p90": SPREAD * median}}

        return {
            "load.open.arrivals": self.arrivals,
            "load.open.sessions": self.sessions,
            "people.reader.typing": {"words": about(PROMPT / 1.3), "words_per_s": 0},
            "people.reader.max_output_tokens": about(REPLY),
        }


BURST = {"bursts": {"size": READERS, "every_s": 3600}}
LOADS = (
    Load("RTX 4090, burst", "RTX-4090", BURST),
    Load("RTX 4090, Poisson 0.75 a second", "RTX-4090", {"poisson": {"rate_per_s": 0.75}}),
    Load("H200, burst", "H200", BURST),
    Load("H200, Poisson 6 a second", "H200", {"poisson": {"rate_per_s": 6.0}}),
)


class System(msgspec.Struct, frozen=True):
    """What is compared.

    preset       that ships, and `choices` that differ from it
    step_tokens  of a step, prompts and replies together
    reserves     tokens of a reply for which there must be room before it begins
    has_host     KV may be kept in the host's memory
    """

    name: str
    preset: str = "baseline"
    choices: dict[str, Any] = {}
    step_tokens: int = STEP_TOKENS
    reserves: int = 0
    has_host: bool = False

    def write(self, folder: Path) -> None:
        """The preset's file, if it is not there: other processes may read it."""
        if not self.file(folder).exists():
            self.file(folder).write_text(yaml.safe_dump(written(self.preset) | self.choices))

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name.replace(' ', '-')}.yaml"

    def engine(self, folder: Path, hardware: str) -> SimEngine:
        sizes = Sizes(
            max_rows=ROWS,
            kv_tokens=KV_TOKENS,
            step_tokens=self.step_tokens,
            host_kv_tokens=HOST_KV_TOKENS if self.has_host else 0,
        )
        profile = find_costs(hardware, find_shape(MODEL))
        made = engine_of(profile, str(self.file(folder)), sizes)
        node = made.node
        ar = {
            stage: msgspec.structs.replace(config, headroom_blocks=1 + self.reserves // config.block_size)
            for stage, config in node.ar.items()
        }
        served = msgspec.structs.replace(made.served, node=msgspec.structs.replace(node, ar=ar))
        return SimEngine(served, made.block_bytes)


def tokenflow(name: str, has_host: bool = True, **options: Any) -> System:
    """With these options of its policy."""
    choice = {"policy": "token-buffer", **options}
    decisions = ("step", "pace", "evict", "write", "fetch")
    return System(name, "tokenflow", dict.fromkeys(decisions, choice) if options else {}, has_host=has_host)


PACED = {"policy": "urgency", "safe_s": 4.0}
BASELINES = (
    System("prompts first"),
    System("prompts first, room reserved", reserves=REPLY),
    System("chunked prompts", "fcfs", step_tokens=CHUNK_TOKENS),
    System("andes", choices={"step": ANDES}),
    System("pacing alone", choices={"pace": PACED}, has_host=True),
    System("round-robin swap", choices={"step": SWAP}, has_host=True),
)
OURS = tokenflow("tokenflow")
ABLATED = (
    tokenflow("without the host", has_host=False),
    tokenflow("without write-through", write=False),
)


class Point(msgspec.Struct, frozen=True):
    system: System
    load: Load
    seed: int

    @property
    def name(self) -> str:
        return f"{self.system.name}-{self.load.name}-{self.seed}".replace(" ", "-").replace(",", "")


def played(point: Point, work: Path) -> dict[str, float]:
    """One run's figures."""
    workload = changed(find(WORKLOAD), point.load.settings)
    costs = find_costs(point.load.hardware, find_shape(MODEL))
    engine = point.system.engine(work, point.load.hardware)
    outcome = simulate(Setup(workload, costs, point.seed, engine, patience_s=600.0), NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{point.name}: {outcome.overruled} {outcome.incidents}")
    found = figures(fold(outcome.events), Slo())
    return {name: round(found[name], 5) for name in TOLD if name in found}


def kept(point: Point, work: Path) -> dict[str, float]:
    return provenance.once(work / f"{point.name}.json", lambda: played(point, work))


class Runs:
    """Figures by point, two runs at a time."""

    def __init__(self, work: Path, pool: ProcessPoolExecutor, seeds: tuple[int, ...]) -> None:
        self._work, self._pool, self._seeds = work, pool, seeds
        work.mkdir(parents=True, exist_ok=True)

    def at(self, systems: tuple[System, ...], load: Load) -> dict[str, list[dict[str, float]]]:
        for system in systems:
            system.write(self._work)
        points = [Point(system, load, seed) for system in systems for seed in self._seeds]
        done = list(self._pool.map(kept, points, [self._work] * len(points)))
        size = len(self._seeds)
        return {one.name: done[at * size : (at + 1) * size] for at, one in enumerate(systems)}


def against(a: list[dict[str, float]], b: list[dict[str, float]]) -> dict[str, list[float]]:
    """b against a, by figure: the ratio where all are above 0, else the difference; 95 %."""
    found: dict[str, list[float]] = {}
    for name in TOLD:
        before, after = ([run[name] for run in runs if name in run] for runs in (a, b))
        if len(before) != len(after) or not before:
            continue
        if min(*before, *after) > 0:
            interval = ratio_interval(before, after)
        else:
            interval = mean_interval([two - one for one, two in zip(before, after, strict=True)])
        found[name] = [interval.mean, interval.low, interval.high]
    return found


def evaluated(runs: Runs, loads: tuple[Load, ...]) -> dict[str, Any]:
    """The best baseline is one for all loads: by effective throughput, as a share of that load's best."""
    found = {load.name: runs.at((*BASELINES, OURS), load) for load in loads}

    def effective(load: Load, system: System) -> float:
        return mean(run["effective_tokens_per_s"] for run in found[load.name][system.name])

    most = {load.name: max(effective(load, one) for one in BASELINES) for load in loads}
    shares = {one.name: mean(effective(load, one) / most[load.name] for load in loads) for one in BASELINES}
    best = max(shares, key=lambda name: shares[name])
    table = {
        load: {
            name: {figure: round(mean(run[figure] for run in of), 4) for figure in TOLD if figure in of[0]}
            for name, of in systems.items()
        }
        for load, systems in found.items()
    }
    ablation = {OURS.name: found[loads[0].name][OURS.name]} | runs.at(ABLATED, loads[0])
    return {
        "best baseline": best,
        "means": table,
        "tokenflow against the best baseline": {
            load: against(systems[best], systems[OURS.name]) for load, systems in found.items()
        },
        "tokenflow against prompts first": {
            load: against(systems[BASELINES[0].name], systems[OURS.name]) for load, systems in found.items()
        },
        f"ablation, {loads[0].name}": {
            name: {figure: round(mean(run[figure] for run in of), 4) for figure in TOLD if figure in of[0]}
            for name, of in ablation.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/tokenflow"), help="of what is done")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument(
        "--loads",
        type=int,
        nargs="+",
        default=[*range(len(LOADS))],
        help="of LOADS; the first is ablated",
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        runs = Runs(arguments.work, pool, tuple(range(arguments.seeds)))
        found = evaluated(runs, tuple(LOADS[at] for at in arguments.loads))
    which = " ".join(str(at) for at in arguments.loads)
    command = f"python benchmarks/tokenflow.py --loads {which} --out benchmarks/results/tokenflow.json"
    provenance.keep(found | {"seeds": arguments.seeds, "command": command}, arguments.out)


if __name__ == "__main__":
    main()
