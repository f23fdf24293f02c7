"""LiveServe's preset at the paper's scale (§7): eight H200, replies of a minute, c people at a time.

    python benchmarks/liveserve_paper.py --out benchmarks/results/liveserve-paper.json
    python benchmarks/liveserve_paper.py --frontier --out benchmarks/results/liveserve-frontier.json
    python benchmarks/liveserve_paper.py --one-thread --out benchmarks/results/liveserve-thread.json

Simulated at the times calibrated to the paper's baseline (liveserve-calibrated.json), beside which alone its
ratios may stand. Algorithm 1 by itself runs ahead as far as there is room; the preset also holds what is far
ahead, so a reply takes as long as it is heard, and a place of this workload, which is free once a reply has
been received, is free later. Both are told. All c people come at once in the beginning, a quarter of them
all: `later` is the first sound of those that come after, one by one. Others arrive by Poisson's law or in
bursts like BurstGPT's (gamma gaps, coefficient of variation 2.37), and wait for one of c places (Figure 12).
Conversations of several turns, and with clips, are Figure 10's other workloads. With --one-thread the
machine is another, as slow: a join takes less, and each step of any replica waits for one thread.
Figures are means of paired seeds. Runs that --work has are not run again.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np
import yaml
from liveserve import as_printed
from liveserve_calibration import (
    DEPLOYMENT,
    HOST_KV_TOKENS,
    NOBODY,
    ONE_THREAD,
    PER_PLACE,
    PROFILE,
    WORKLOAD,
    slowed,
)

from antiphon.assembly.deployment_file import read_deployment
from antiphon.bench import provenance
from antiphon.bench.statistics import ratio_interval
from antiphon.latency.profile import Profile
from antiphon.metrics.latency import ttfp_s
from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import Run
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.deployed import deployed_engine
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named

SYSTEMS = ("fcfs", "algorithm-1", "liveserve")
BURSTGPT_CV = 2.37
TOLD = (
    *("ttfp_s.p50", "ttfp_s.p90", "later.p50", "later.p90", "continuity", "completed_rps", "rtf.p90"),
    *('waste_token_ratio{stage="thinker"}', 'waste_token_ratio{stage="talker"}'),
)
COMPARED = ("ttfp_s.p50", "ttfp_s.p90", "later.p50", "later.p90", "completed_rps")


class Point(msgspec.Struct, frozen=True):
    """places: c; rate_per_s: of arrivals, and their coefficient of variation; None: a place is taken again
    as soon as it is free. seeds: so many; systems: that are compared, fcfs first; workload: where a place of
    another than ShareGPT's is free once all is heard; one_thread: orders all steps."""

    places: int
    barge_in: float
    rate_per_s: float | None = None
    cv: float = 1.0
    seeds: int = 5
    systems: tuple[str, ...] = ("fcfs", "liveserve")
    workload: str = WORKLOAD
    one_thread: bool = False

    def times(self) -> Profile:
        return slowed(**ONE_THREAD) if self.one_thread else Profile.from_json(PROFILE.read_bytes())

    @property
    def name(self) -> str:
        arrivals = "" if self.rate_per_s is None else f", {self.rate_per_s:g}/s {LAWS[self.cv]}"
        if self.workload != WORKLOAD:  # which says itself who barges in
            return f"calibrated, {self.workload}, c = {self.places}{arrivals}"
        times = "one thread" if self.one_thread else "calibrated"
        return f"{times}, c = {self.places}{arrivals}, p_bi {self.barge_in:g}"

    @property
    def load(self) -> dict[str, Any]:
        sessions: dict[str, Any] = {"sessions": PER_PLACE * self.places}
        sessions |= {"until": "received"} if self.workload == WORKLOAD else {}
        if self.rate_per_s is None:
            return {"closed": {"concurrency": self.places} | sessions}
        arrivals = {"gamma": {"rate_per_s": self.rate_per_s, "cv": self.cv}}
        return {"open": {"arrivals": arrivals, "max_concurrency": self.places} | sessions}


LAWS = {1.0: "Poisson", BURSTGPT_CV: "BurstGPT"}
POINTS = (
    *(Point(16, barge_in, systems=SYSTEMS) for barge_in in (0.0, 0.5)),
    *(Point(32, barge_in, seeds=2, systems=SYSTEMS) for barge_in in (0.0, 0.5)),
    *(Point(8, 0.0, 4.0, cv, seeds=2) for cv in LAWS),
)
FRONTIER = (
    *(Point(8, barge_in, seeds=2) for barge_in in (0.0, 0.25, 0.5, 0.75, 1.0)),  # Figure 13
    *(Point(places, 0.0, seeds=2) for places in (2, 4, 12)),  # Figure 10, with c = 8, and 16 and 32 of POINTS
    *(
        Point(places, 0.0, seeds=2, workload=workload)
        for workload in ("interactive", "mixed-video")
        for places in (2, 4, 8, 16, 32)
    ),
)
THREAD = (
    *(Point(16, barge_in, systems=SYSTEMS, one_thread=True) for barge_in in (0.0, 0.5)),
    *(Point(places, 0.0, seeds=seeds, one_thread=True) for places, seeds in ((8, 5), (12, 2), (32, 2))),
)


def preset(system: str, work: Path) -> str:
    """A preset's name, or the file of LiveServe's in the order of Algorithm 1, without pacing."""
    if system != "algorithm-1":
        return system
    path = work / f"{system}.yaml"
    if not path.exists():
        path.write_text(yaml.safe_dump(as_printed() | {"pace": "unpaced"}))
    return str(path)


def played(work: Path, system: str, point: Point, seed: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"load": point.load}
    if point.workload == WORKLOAD:
        settings["people.talker.barge_in.probability"] = point.barge_in
    sizes = Sizes(host_kv_tokens=HOST_KV_TOKENS)
    times = point.times()
    engine = deployed_engine(times, read_deployment(DEPLOYMENT), preset(system, work), sizes)
    run = run_of(Setup(changed(named(point.workload), settings), times, seed, engine))
    found = figures(run, Slo()) | later(run, point.places)
    return {name: round(found[name], 5) for name in TOLD if name in found}


def run_of(setup: Setup) -> Run:
    """Raises RuntimeError if a policy was overruled."""
    outcome = simulate(setup, NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{outcome.overruled} {outcome.incidents}")
    return fold(outcome.events)


def later(run: Run, num_first: int) -> dict[str, float]:
    """The first sound of all sessions but so many that come first."""
    first = {session.session for session in run.sessions[:num_first]}
    later_s = ttfp_s(row for row in run.responses if row.session not in first)
    return {f"later.p{share}": float(np.percentile(later_s, share)) for share in (50, 90)}


def kept(work: Path, system: str, point: Point, seed: int) -> dict[str, Any]:
    path = work / f"{point.name.replace('/', ' ')}, {system}, {seed}.json"
    return provenance.once(path, lambda: played(work, system, point, seed))


def told(runs: dict[str, list[dict[str, Any]]], compared: tuple[str, ...] = COMPARED) -> dict[str, Any]:
    """Means of each system, and the ratios of these figures to the baseline's."""
    found: dict[str, Any] = {
        system: {name: round(mean(run[name] for run in each), 5) for name in each[0]}
        for system, each in runs.items()
    }
    for system, name in product(list(runs)[1:], compared):
        ratio = ratio_interval([run[name] for run in runs["fcfs"]], [run[name] for run in runs[system]])
        found[system][f"{name} ratio"] = [ratio.mean, ratio.low, ratio.high]
    return found


def main() -> None:
    parser = provenance.parser(__doc__, "evaluation/paper")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--frontier", action="store_true", help="Figures 10 and 13 instead of the others")
    instead.add_argument("--one-thread", action="store_true", help="where one thread orders all steps")
    arguments = parser.parse_args()
    work: Path = arguments.work
    for system in SYSTEMS:
        preset(system, work)
    with ProcessPoolExecutor(2) as pool:
        runs = {
            point: {
                system: [pool.submit(kept, work, system, point, seed) for seed in range(point.seeds)]
                for system in point.systems
            }
            for point in (THREAD if arguments.one_thread else FRONTIER if arguments.frontier else POINTS)
        }
        found = {
            point.name: told({system: [one.result() for one in each] for system, each in systems.items()})
            for point, systems in runs.items()
        }
    provenance.keep(found, arguments.out)


if __name__ == "__main__":
    main()
