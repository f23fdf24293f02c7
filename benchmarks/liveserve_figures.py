"""Figures of LiveServe's evaluation (§7) at the paper's scale that liveserve_paper.py does not have.

    python benchmarks/liveserve_figures.py --out benchmarks/results/liveserve-figures.json

Simulated, four thinkers and four talkers, but one of each in `ablation` and `reply`; Ming-Flash-Omni has two
thinkers on two H200 each. Times are those calibrated to the paper's baseline, or the datasheet's.
Ming-Flash-Omni has the datasheet's.

distribution  Figure 11, left: the first audio of ShareGPT's turns at c = 8, all turns of all seeds
reply         Figure 15, right: one reply of a minute, how much of it each stage has made, and what is heard
ablation      Figure 14: LiveServe's parts, one after the other, where pasts do not fit the devices
short         the datasheet's times with short memory, links of 8 and 51 GB/s. `scan`: each eviction takes as
              long as a scan of all sessions does (Table 1), else as long as by the index: milliseconds of
              eviction-index.json
ming          Figure 10, bottom: Ming-Flash-Omni answers ShareGPT's turns, and people who break in

`effective_rps` counts replies that are completed, or cut by their listener, without a gap of 100 ms;
`evictions` how often KV left the devices in a run.
Runs are paired by seed, two seeds each. Those that --work has are not run again. The result is kept after
each part. About 40 minutes of a core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from evaluation_progress import Progress, curves
from evaluation_simulated import LONG
from liveserve import written
from liveserve_calibration import (
    ALONE_TOKENS,
    DEPLOYMENT,
    HOST_KV_TOKENS,
    NOBODY,
    PER_PLACE,
    PROFILE,
    WORKLOAD,
)
from liveserve_paper import later, run_of, told

from antiphon.assembly.deployment_file import read_deployment
from antiphon.bench import provenance
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile
from antiphon.latency.shapes import find_shape
from antiphon.metrics.latency import ttfp_s
from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import Run
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.metrics.throughput import completed_rps, steady_window
from antiphon.sim.deployed import deployed_engine
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.run import Setup, Simulation
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

INDEX = Path(__file__).parent / "results" / "eviction-index.json"
PAIR = ("fcfs", "liveserve")
SCAN = "scan"
PARTS = {
    "scheduling": ("step", "pace", "device"),
    "scheduling, preloading": ("step", "pace", "device", "fetch"),
}
"""Decisions that LiveServe takes; the others are as fcfs has them. With eviction and writing that is all."""
TOLD = (
    *("ttfp_s.p50", "ttfp_s.p90", "ttfp_s.p95", "later.p90", "rtf.p50", "rtf.p90", "continuity"),
    *("completed_rps", "effective_rps", "jct_s.p90", "reload_s", "cache_hit_share", "turns"),
    *('waste_token_ratio{stage="thinker"}', 'waste_token_ratio{stage="talker"}'),
)
COMPARED = ("ttfp_s.p90", "later.p90", "effective_rps", "jct_s.p90")


class Case(msgspec.Struct, frozen=True):
    """One load on one machine.

    times        calibrated | datasheet | ming-flash-omni
    duration_s   of a load that keeps its places filled; None: it ends after 4 sessions a place
    kv_tokens    of a replica; None: as many as it has room for
    gb_per_s     of the link to the host; None: the datasheet's
    is_long      people talk for 20 to 60 s a turn, 6 to 12 turns
    num_replicas of thinker and talker; None: as the paper has them
    """

    times: str
    workload: str
    places: int
    barge_in: float | None = None
    duration_s: float | None = None
    kv_tokens: int | None = None
    gb_per_s: float | None = None
    is_long: bool = False
    num_replicas: int | None = None

    @property
    def name(self) -> str:
        cuts = "" if self.barge_in is None else f", p_bi {self.barge_in:g}"
        link = "" if self.gb_per_s is None else f", {self.gb_per_s:g} GB/s"
        return f"{self.times}, {self.workload}, c = {self.places}{cuts}{link}"

    def script(self) -> Workload:
        lasts = (
            {"sessions": PER_PLACE * self.places}
            if self.duration_s is None
            else {"duration_s": self.duration_s}
        )
        until = {"until": "received"} if self.workload == WORKLOAD else {}
        settings: dict[str, Any] = {"load": {"closed": {"concurrency": self.places} | lasts | until}}
        if self.is_long:
            settings |= {f"people.talker.{key}": value for key, value in LONG.items()}
        if self.barge_in is not None:
            settings["people.talker.barge_in.probability"] = self.barge_in
        return changed(named(self.workload), settings)

    def costs(self) -> Profile:
        if self.times == "calibrated":
            profile = Profile.from_json(PROFILE.read_bytes())
        elif self.times == "datasheet":
            profile = find_costs("H200")
        else:
            profile = find_costs("H200", find_shape(self.times), 2)
        return profile if self.gb_per_s is None else profile.with_host_link(self.gb_per_s * 1e9)

    def setup(self, work: Path, system: str, seed: int) -> Setup:
        profile = self.costs()
        context = None if self.kv_tokens is None else min(self.kv_tokens, CONTEXT)
        sizes = Sizes(kv_tokens=self.kv_tokens, host_kv_tokens=HOST_KV_TOKENS, max_context_tokens=context)
        return Setup(self.script(), profile, seed, self._engine(profile, preset(system, work), sizes))

    def _engine(self, profile: Profile, chosen: str, sizes: Sizes) -> SimEngine:
        if self.num_replicas is not None:
            return engine_of(profile, chosen, sizes, Replicas(self.num_replicas, self.num_replicas))
        if self.times == "ming-flash-omni":
            return engine_of(profile, chosen, sizes, Replicas(2, 4, apart=True))
        return deployed_engine(profile, read_deployment(DEPLOYMENT), chosen, sizes)


CONTEXT = 16_384
DISTRIBUTION = Case("calibrated", WORKLOAD, 8, 0.0)
ABLATION = tuple(
    Case("calibrated", "interactive", 20, barge_in, 120.0, 8192, 8.0, is_long=True, num_replicas=1)
    for barge_in in (0.0, 0.5)
)
SHORT = {
    Case("datasheet", "interactive", 24, 0.0, 100.0, 3072, gb_per_s, is_long=True): systems
    for gb_per_s, systems in ((8.0, (*PAIR, SCAN)), (51.0, PAIR))
}
MING = (
    *(Case("ming-flash-omni", WORKLOAD, places) for places in (2, 8, 12, 16)),
    *(Case("ming-flash-omni", "interactive", places, duration_s=100.0) for places in (8, 16)),
)


def preset(system: str, work: Path) -> str:
    """A preset's name, or the file of one that is LiveServe's in part."""
    if system not in PARTS:
        return "liveserve" if system == SCAN else system
    path = work / f"{system}.yaml"
    if not path.exists():
        ours = written("liveserve")
        path.write_text(yaml.safe_dump(written("fcfs") | {one: ours[one] for one in PARTS[system]}))
    return str(path)


def effective_rps(run: Run, gap_s: float = Slo().gap_s) -> float:
    """Replies completed or cut by their listener, without a gap, a second of the steady window."""
    window = steady_window(run.sessions, run.last_s)
    smooth = [row for row in run.responses if max(row.gaps, default=0.0) < gap_s]
    return 0.0 if window is None else completed_rps(smooth, window)


def measured(run: Run, case: Case) -> dict[str, float]:
    found = figures(run, Slo()) | {"effective_rps": effective_rps(run)}
    if case.duration_s is None:
        found |= later(run, case.places)
    return {name: round(found[name], 5) for name in TOLD if name in found}


def played(work: Path, case: Case, system: str, seed: int) -> dict[str, float]:
    return measured(run_of(case.setup(work, system, seed)), case)


def first_audio(work: Path, case: Case, system: str, seed: int) -> list[float]:
    return [round(s, 4) for s in ttfp_s(run_of(case.setup(work, system, seed)).responses)]


class Charged:
    """A clock of decisions, which reads it before and after: each takes `decide_s`, and `eviction_s` more for
    every call that evicts blocks of a stage."""

    def __init__(self, decide_s: float, eviction_s: float) -> None:
        self.num_evictions = 0
        self._decide_s, self._eviction_s = decide_s, eviction_s
        self._decisions_s = 0.0

    def __call__(self) -> float:
        self._decisions_s += self._decide_s
        return self._decisions_s + self.num_evictions * self._eviction_s

    def charge(self, evict: Callable[..., None], num_evicted: Callable[[], int]) -> Callable[..., None]:
        """num_evicted: blocks so far."""

        def charged(*about: Any) -> None:
            before = num_evicted()
            evict(*about)
            self.num_evictions += num_evicted() > before

        return charged


def evicting(work: Path, case: Case, system: str, seed: int) -> dict[str, float]:
    """As `played`; an eviction takes what eviction_index.py measured, by index or by scan."""
    index = json.loads(INDEX.read_text())
    setup = case.setup(work, system, seed)
    eviction_ms = index["scanned_ms" if system == SCAN else "indexed_ms"]["mean"]
    clock = Charged(setup.costs.decide_s, eviction_ms / 1000)
    simulation = Simulation(replace(setup, clock=clock))
    for unit in simulation.driver.node.stages.ar.values():
        resting = unit.kv.resting
        unit.tiers.room.evict = clock.charge(
            unit.tiers.room.evict, lambda resting=resting: resting.num_evicted_blocks
        )
    run = fold(simulation.play(NOBODY).events)
    return measured(run, case) | {"evictions": clock.num_evictions}


def reply(work: Path, system: str) -> dict[str, Any]:
    """A person alone with the server has one reply of 65.9 s."""
    settings = {
        "load": {"closed": {"concurrency": 1, "sessions": 1}},
        "people.talker.max_output_tokens": ALONE_TOKENS,
    }
    setup = Case("calibrated", WORKLOAD, 1, 0.0, num_replicas=1).setup(work, system, 0)
    progress = Progress()
    Simulation(replace(setup, workload=changed(named(WORKLOAD), settings), recorder=progress)).play(NOBODY)
    return curves(progress)[0]


def shares(first_s: Iterable[list[float]]) -> dict[str, Any]:
    """Of the first audio of all turns: percentiles, and all of them in order."""
    values = sorted(chain.from_iterable(first_s))
    found = {f"p{at}": round(float(np.percentile(values, at)), 4) for at in (50, 90, 95)}
    return found | {"turns": len(values), "ttfp_s": values}


class Figures:
    """The parts of the result; runs are shared out to processes when they are asked for."""

    def __init__(self, pool: ProcessPoolExecutor, work: Path) -> None:
        self._pool, self._work = pool, work

    def _run(self, part: Callable[..., Any], name: str, *about: Any) -> Future[Any]:
        path = self._work / f"{part.__name__}, {name}.json".replace("/", " ")
        return self._pool.submit(provenance.once, path, partial(part, self._work, *about))

    def runs(
        self, case: Case, systems: tuple[str, ...] = PAIR, seeds: int = 2, part: Callable[..., Any] = played
    ) -> dict[str, list[Any]]:
        """By system, one of each seed."""
        asked = {
            system: [
                self._run(part, f"{case.name}, {system}, {seed}", case, system, seed) for seed in range(seeds)
            ]
            for system in systems
        }
        return {system: [one.result() for one in each] for system, each in asked.items()}

    def told(self, case: Case, *about: Any, **options: Any) -> dict[str, Any]:
        runs = self.runs(case, *about, **options)
        compared = tuple(name for name in COMPARED if name in runs["fcfs"][0])
        return {case.name: told(runs, compared)}

    def each(self, cases: Iterable[Case], systems: tuple[str, ...] = PAIR) -> dict[str, Any]:
        return {name: one for case in cases for name, one in self.told(case, systems).items()}

    def distribution(self) -> dict[str, Any]:
        runs = self.runs(DISTRIBUTION, part=first_audio)
        return {system: shares(each) for system, each in runs.items()}

    def reply(self) -> dict[str, Any]:
        asked = {system: self._run(reply, system, system) for system in PAIR}
        return {system: one.result() for system, one in asked.items()}

    def short(self) -> dict[str, Any]:
        each = (self.told(case, systems, part=evicting) for case, systems in SHORT.items())
        return {name: one for found in each for name, one in found.items()}

    def parts(self) -> dict[str, Callable[[], dict[str, Any]]]:
        return {
            "reply": self.reply,
            "distribution": self.distribution,
            "ablation": lambda: self.each(ABLATION, ("fcfs", *PARTS, "liveserve")),
            "short": self.short,
            "ming": lambda: self.each(MING),
        }


def main() -> None:
    arguments = provenance.parser(__doc__, "evaluation/figures").parse_args()
    work: Path = arguments.work
    for system in PARTS:
        preset(system, work)
    with ProcessPoolExecutor(2) as pool:
        found: dict[str, Any] = {"commit": provenance.commit()}
        for name, part in Figures(pool, work).parts().items():
            found[name] = part()
            provenance.keep(found, arguments.out)


if __name__ == "__main__":
    main()
