"""LiveServe's preset against fcfs with a host tier on second models, simulated at datasheet times.

    python benchmarks/liveserve_models.py --out benchmarks/results/liveserve-models.json    # some minutes

One replica of the thinker and one of the talker, of Ming-Flash-Omni (thinker on two H200, talker on one) and
of Qwen2.5-Omni (one H200 each). Presets as they ship, nothing is tuned. Runs are paired by seed. Those that
--work has are not run again.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from antiphon.bench import provenance
from antiphon.bench.statistics import Interval, mean_interval, ratio_interval
from antiphon.latency.finding import find_costs
from antiphon.latency.shapes import find_shape
from antiphon.metrics.log import RunStarted
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

HARDWARE, WORKLOAD = "H200", "mixed-video"
PRESETS = ("fcfs", "liveserve")
SEEDS = (0, 1, 2)
BARGE_IN = 0.5
ROWS, CONTEXT, HOST_KV_TOKENS = 128, 8192, 1 << 20
TOLD = (
    *(
        "ttfp_s.p50",
        "ttfp_s.p90",
        "continuity",
        "turns",
        "completed_turns",
        "completed_rps",
        "cache_hit_share",
    ),
    *("reload_s", 'waste_token_ratio{stage="thinker"}', 'waste_token_ratio{stage="talker"}'),
)
NOBODY = RunStarted(
    t_s=0.0, label="", url="", workload="", seed=0, command="", commit="", machine="", version="", unix_s=0.0
)


class Model(msgspec.Struct, frozen=True):
    """ranks: devices that share its thinker; loads: conversations at a time, for `duration_s`; kv_tokens: of
    a replica, less than the highest load's conversations have together."""

    name: str
    ranks: int
    loads: tuple[int, ...]
    kv_tokens: int
    duration_s: float


MODELS = (
    Model("ming-flash-omni", 2, (32, 64, 96), 49_152, 20.0),
    Model("qwen2.5-omni-7b", 1, (8, 16, 24), 16_384, 40.0),
)


class Point(msgspec.Struct, frozen=True):
    model: Model
    load: int
    preset: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model.name}-{self.load}-{self.preset}-{self.seed}"

    @property
    def workload(self) -> Workload:
        load = {"concurrency": self.load, "duration_s": self.model.duration_s}
        settings: dict[str, Any] = {"load": {"closed": load}}
        listening = [name for name, people in named(WORKLOAD).people.items() if people.listens]
        settings |= {f"people.{name}.barge_in.probability": BARGE_IN for name in listening}
        return changed(named(WORKLOAD), settings)

    def setup(self) -> Setup:
        costs = find_costs(HARDWARE, find_shape(self.model.name), self.model.ranks)
        sizes = Sizes(
            max_rows=ROWS,
            kv_tokens=self.model.kv_tokens,
            host_kv_tokens=HOST_KV_TOKENS,
            max_context_tokens=CONTEXT,
        )
        engine: SimEngine = engine_of(costs, self.preset, sizes)
        return Setup(self.workload, costs, self.seed, engine)


def played(point: Point) -> dict[str, float]:
    """One run's figures; `smooth` is the share of spoken replies without a gap, those that were cut too."""
    outcome = simulate(point.setup(), NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{point.name}: {outcome.overruled} {outcome.incidents}")
    run, slo = fold(outcome.events), Slo()
    found = figures(run, slo)
    spoken = [row for row in run.responses if row.audio_at_s.size]
    told = {name: found[name] for name in found if name in TOLD or name.startswith("utilisation")}
    told["smooth"] = mean(max(row.gaps, default=0.0) <= slo.gap_s for row in spoken)
    return {name: round(value, 5) for name, value in told.items()}


def kept(point: Point, work: Path) -> dict[str, float]:
    return provenance.once(work / f"{point.name}.json", lambda: played(point))


def compared(fcfs: list[dict[str, float]], liveserve: list[dict[str, float]]) -> dict[str, Any]:
    """Means of both, and the ratio of each pair of runs where all are above 0, else the difference; 95 %."""
    found: dict[str, Any] = {}
    for name in fcfs[0]:
        columns = [[run.get(name, 0.0) for run in runs] for runs in (fcfs, liveserve)]
        is_ratio = min(map(min, columns)) > 0
        differences = [after - before for before, after in zip(*columns, strict=True)]
        interval: Interval = ratio_interval(*columns) if is_ratio else mean_interval(differences)
        found[name] = {
            "fcfs": round(mean(columns[0]), 5),
            "liveserve": round(mean(columns[1]), 5),
            "ratio" if is_ratio else "difference": [interval.mean, interval.low, interval.high],
        }
    return found


def main() -> None:
    arguments = provenance.parser(__doc__, "evaluation/models").parse_args()
    points = [
        Point(model, load, preset, seed)
        for seed in SEEDS
        for model in MODELS
        for load in model.loads
        for preset in PRESETS
    ]
    with ProcessPoolExecutor(2) as pool:
        runs = dict(zip(points, pool.map(kept, points, [arguments.work] * len(points)), strict=True))
    found: dict[str, Any] = {
        f"{model.name}, {load} conversations": compared(
            *([runs[Point(model, load, preset, seed)] for seed in SEEDS] for preset in PRESETS)
        )
        for model in MODELS
        for load in model.loads
    }
    about = {
        "workload": WORKLOAD,
        "seeds": SEEDS,
        "barge_in": BARGE_IN,
        "models": msgspec.to_builtins(MODELS),
    }
    provenance.keep(about | {"loads": found}, arguments.out)


if __name__ == "__main__":
    main()
