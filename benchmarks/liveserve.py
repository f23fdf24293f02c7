"""LiveServe's preset against the best baseline, simulated at the pace of this engine on two cores of a CPU.

    python benchmarks/liveserve.py --work evaluation/liveserve --out benchmarks/results/liveserve.json

The times are those that `antiphon profile` measured of the demo's medium size (medium-2core.json). People ask
for a few seconds and are answered for 40; half of them barge in. The baseline is fcfs with a host tier at the
row cap that is best by useful throughput on the tuning seeds; liveserve is tuned on the same seeds. Loads are
shares of the highest at which the baseline completes 95 % of its turns on those. What is told is paired by
seed, on seeds that decided nothing. Runs that --work has are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import yaml

from antiphon.bench import provenance
from antiphon.bench.statistics import mean_interval, ratio_interval
from antiphon.latency.profile import Profile
from antiphon.metrics.log import RunStarted
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, find

HERE = Path(__file__).parent
PROFILE, WORKLOAD = HERE / "medium-2core.json", HERE / "forty-seconds.yaml"
TUNING, SEEDS = (100, 101), (0, 1, 2, 3, 4)
RATES = (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)
"""Sessions a second that are tried."""
ARRIVING_S, DRAINING_S = 400.0, 60.0
COMPLETES, SMOOTH = 0.95, 0.9
"""Shares of turns: of what a server that keeps up completes; of replies without a gap for a useful load."""
SHARES = (0.5, 0.8, 0.95)
CAPS = (3, 4, 6, 16)
ROWS, HOST_KV_TOKENS = 16, 1 << 18
MECHANISMS = {
    "order": ("step",),
    "pacing": ("pace",),
    "device": ("device",),
    "memory": ("evict", "write", "fetch"),
}
TRIED = tuple((rows, safe_s) for rows in (4, 6) for safe_s in (4.0, 8.0, 16.0))
"""Of liveserve."""
NOBODY = RunStarted(
    t_s=0.0, label="", url="", workload="", seed=0, command="", commit="", machine="", version="", unix_s=0.0
)
TOLD = (
    *("ttfp_s.p50", "ttfp_s.p90", "continuity", "turns", "completed_turns", "completed_rps", "offered_rps"),
    *('waste_token_ratio{stage="thinker"}', 'waste_token_ratio{stage="talker"}'),
    *('utilisation{stage="thinker"}', 'utilisation{stage="talker"}', 'utilisation{stage="code2wav"}'),
)


class System(msgspec.Struct, frozen=True):
    """What is compared. mechanisms: of LiveServe; the rest is as fcfs has it.

    rows       that a stage's step holds at most; the table has as many for fcfs, ROWS for others
    safe_s     lead at which a reply is held
    """

    mechanisms: tuple[str, ...]
    rows: int
    safe_s: float = 4.0

    @property
    def name(self) -> str:
        kind = "+".join(self.mechanisms) or "fcfs"
        return f"{kind}-{self.rows}" + (f"-{self.safe_s:g}" if "pacing" in self.mechanisms else "")

    def write(self, folder: Path) -> None:
        """The preset's file."""
        said = written("fcfs")
        for mechanism in self.mechanisms:
            said |= {decision: written("liveserve")[decision] for decision in MECHANISMS[mechanism]}
        if "pacing" in self.mechanisms:
            said["pace"] = {**said["pace"], "safe_s": self.safe_s}
        self.preset(folder).write_text(yaml.safe_dump(said))

    def preset(self, folder: Path) -> Path:
        return folder / f"{self.name}.yaml"

    def engine(self, profile: Profile, folder: Path) -> SimEngine:
        made = engine_of(
            profile,
            str(self.preset(folder)),
            Sizes(max_rows=ROWS if self.mechanisms else self.rows, host_kv_tokens=HOST_KV_TOKENS),
        )
        ar = {stage: msgspec.structs.replace(one, step_rows=self.rows) for stage, one in made.node.ar.items()}
        served = msgspec.structs.replace(made.served, node=msgspec.structs.replace(made.node, ar=ar))
        return SimEngine(served, made.block_bytes)


def written(preset: str) -> dict[str, Any]:
    """What a preset that ships says."""
    text = files("antiphon.assembly").joinpath("presets", f"{preset}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


class Point(msgspec.Struct, frozen=True):
    system: System
    rate: float
    seed: int
    barge_in: float = 0.5

    @property
    def name(self) -> str:
        return f"{self.system.name}-{self.rate:.4g}-{self.barge_in:g}-{self.seed}"


def played(point: Point, work: Path) -> dict[str, float]:
    """One run's figures, and the share of its spoken replies without a gap (`smooth`)."""
    profile = Profile.from_json(PROFILE.read_bytes())
    settings = {
        "load.open.arrivals": {"poisson": {"rate_per_s": point.rate}},
        "load.open.sessions": round(point.rate * ARRIVING_S),
        "load.open.duration_s": ARRIVING_S + DRAINING_S,
        "people.talker.barge_in.probability": point.barge_in,
    }
    setup = Setup(
        changed(find(str(WORKLOAD)), settings), profile, point.seed, point.system.engine(profile, work)
    )
    outcome = simulate(setup, NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{point.name}: {outcome.overruled} {outcome.incidents}")
    run, slo = fold(outcome.events), Slo()
    found = figures(run, slo)
    spoken = [row for row in run.responses if row.audio_at_s.size]
    told = {name: round(found[name], 5) for name in TOLD if name in found}
    told["smooth"] = round(mean(max(row.gaps, default=0.0) <= slo.gap_s for row in spoken), 5)
    told["completes"] = round(found["completed_turns"] / found["turns"], 5)
    return told


def kept(point: Point, work: Path) -> dict[str, float]:
    path = work / f"{point.name}.json"
    if not path.exists():
        path.write_text(json.dumps(played(point, work)))
        sys.stderr.write(f"{point.name}\n")
    return json.loads(path.read_text())


class Runs:
    """Figures by point, two runs at a time."""

    def __init__(self, work: Path, pool: ProcessPoolExecutor) -> None:
        self._work, self._pool = work, pool
        work.mkdir(parents=True, exist_ok=True)

    def at(
        self, system: System, rate: float, seeds: tuple[int, ...], barge_in: float = 0.5
    ) -> list[dict[str, float]]:
        system.write(self._work)
        points = [Point(system, rate, seed, barge_in) for seed in seeds]
        return list(self._pool.map(kept, points, [self._work] * len(points)))

    def highest(self, system: System, bounds: dict[str, float], seeds: tuple[int, ...]) -> float:
        """Of RATES, the last before a mean that is under a bound; 0: none."""
        found = 0.0
        for rate in RATES:
            runs = self.at(system, rate, seeds)
            if any(mean(run[key] for run in runs) < least for key, least in bounds.items()):
                break
            found = rate
        return found


USEFUL = {"completes": COMPLETES, "smooth": SMOOTH}


def tuned(runs: Runs, baseline: System, rate: float) -> System:
    """Of TRIED, the least P90 of the first audio among those that are as smooth as the baseline (within a
    reply); if none is, the smoothest."""

    def of(system: System, figure: str) -> float:
        return mean(run[figure] for run in runs.at(system, rate, TUNING))

    all_of_it = tuple(MECHANISMS)
    tried = [System(all_of_it, rows, safe_s) for rows, safe_s in TRIED]
    least = of(baseline, "smooth") - 1 / (rate * ARRIVING_S)
    smooth = [system for system in tried if of(system, "smooth") >= least]
    if not smooth:
        return max(tried, key=lambda system: of(system, "smooth"))
    return min(smooth, key=lambda system: of(system, "ttfp_s.p90"))


def told(a: list[dict[str, float]], b: list[dict[str, float]]) -> dict[str, Any]:
    """Means of both, and b against a: the ratio where all are above 0, else the difference; 95 %."""
    found: dict[str, Any] = {}
    for name in (*TOLD, "smooth", "completes"):
        columns = [[run[name] for run in runs if name in run] for runs in (a, b)]
        if len(columns[0]) != len(columns[1]) or not columns[0]:
            continue
        is_ratio = min(map(min, columns)) > 0
        difference = [after - before for before, after in zip(*columns, strict=True)]
        interval = ratio_interval(*columns) if is_ratio else mean_interval(difference)
        found[name] = {
            "baseline": round(mean(columns[0]), 5),
            "liveserve": round(mean(columns[1]), 5),
            "ratio" if is_ratio else "difference": [interval.mean, interval.low, interval.high],
        }
    return found


def evaluated(runs: Runs) -> dict[str, Any]:
    caps = [System((), rows) for rows in CAPS]
    useful = {system: runs.highest(system, USEFUL, TUNING) for system in caps}
    baseline = max(caps, key=lambda system: useful[system])
    most = runs.highest(baseline, {"completes": COMPLETES}, TUNING)
    ours = tuned(runs, baseline, SHARES[-1] * most)
    loads = {
        f"{share:g} of {most:g}/s, p_bi {barge_in:g}": told(
            runs.at(baseline, share * most, SEEDS, barge_in), runs.at(ours, share * most, SEEDS, barge_in)
        )
        for barge_in in (0.5, 0.0)
        for share in SHARES
    }
    everything = set(MECHANISMS)
    parts = [(name,) for name in MECHANISMS]
    parts += [
        tuple(name for name in MECHANISMS if name in everything - {left_out}) for left_out in MECHANISMS
    ]
    reference = runs.at(System((), ours.rows), SHARES[-1] * most, SEEDS)
    ablation = {
        " + ".join(part): told(
            reference, runs.at(System(part, ours.rows, ours.safe_s), SHARES[-1] * most, SEEDS)
        )
        for part in [*parts, tuple(MECHANISMS)]
    }
    return {
        "baseline": baseline.name,
        "liveserve": ours.name,
        "completes_at_most": most,
        "useful_by_cap": {system.name: rate for system, rate in useful.items()},
        "useful": {system.name: runs.highest(system, USEFUL, SEEDS) for system in (baseline, ours)},
        "loads": loads,
        "ablation at the highest of these loads": ablation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/liveserve"), help="of what is done")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        found = evaluated(Runs(arguments.work, pool))
    about = {
        "command": "python benchmarks/liveserve.py --out benchmarks/results/liveserve.json",
        "commit": provenance.commit(),
        "machine": provenance.machine(),
    }
    arguments.out.write_text(json.dumps(found | about, indent=1) + "\n")


if __name__ == "__main__":
    main()
