"""LiveServe's preset at the paper's scale (§7): eight H200, replies of a minute, c people at a time.

    python benchmarks/liveserve_paper.py --work evaluation/paper --out benchmarks/results/liveserve-paper.json

Simulated at the times calibrated to the paper's baseline (liveserve-calibrated.json), beside which alone its
ratios may stand. Algorithm 1 by itself runs ahead as far as there is room; the preset also holds what is far
ahead, so a reply takes as long as it is heard, and a place of this workload, which is free once a reply has
been received, is free later. Both are told. All c people come at once in the beginning, a quarter of them
all: `later` is the first sound of those that come after, one by one. Figures are means of paired seeds. Runs
that --work has are not run again.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import yaml
from liveserve_calibration import DEPLOYMENT, HOST_KV_TOKENS, NOBODY, PER_PLACE, PROFILE, WORKLOAD

from antiphon.assembly.deployment_file import read_deployment
from antiphon.bench import provenance
from antiphon.bench.statistics import ratio_interval
from antiphon.latency.profile import Profile
from antiphon.metrics.latency import ttfp_s
from antiphon.metrics.recorder import fold
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.deployed import deployed_engine
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named

REGIMES = {"calibrated": lambda: Profile.from_json(PROFILE.read_bytes())}
SYSTEMS = ("fcfs", "algorithm-1", "liveserve")
AT = (16, 32)
BARGE_IN = (0.0, 0.5)
SEEDS = (0, 1)
TOLD = (
    *("ttfp_s.p50", "ttfp_s.p90", "later.p50", "later.p90", "continuity", "completed_rps", "rtf.p90"),
    *('waste_token_ratio{stage="thinker"}', 'waste_token_ratio{stage="talker"}'),
)


def preset(system: str, work: Path) -> str:
    """A preset's name, or the file of LiveServe's without its pacing."""
    if system != "algorithm-1":
        return system
    path = work / f"{system}.yaml"
    if not path.exists():
        shipped = Path(provenance.__file__).parents[1] / "assembly" / "presets" / "liveserve.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(shipped.read_text()) | {"pace": "unpaced"}))
    return str(path)


def played(work: Path, regime: str, system: str, at: int, barge_in: float, seed: int) -> dict[str, float]:
    settings = {
        "load.closed.concurrency": at,
        "load.closed.sessions": PER_PLACE * at,
        "people.talker.barge_in.probability": barge_in,
    }
    sizes = Sizes(host_kv_tokens=HOST_KV_TOKENS)
    engine = deployed_engine(REGIMES[regime](), read_deployment(DEPLOYMENT), preset(system, work), sizes)
    workload = changed(named(WORKLOAD), settings)
    outcome = simulate(Setup(workload, REGIMES[regime](), seed, engine), NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{outcome.overruled} {outcome.incidents}")
    run = fold(outcome.events)
    found = figures(run, Slo())
    first = {session.session for session in run.sessions[:at]}
    later_s = ttfp_s(row for row in run.responses if row.session not in first)
    found |= {f"later.p{share}": float(np.percentile(later_s, share)) for share in (50, 90)}
    return {name: round(found[name], 5) for name in TOLD if name in found}


def kept(work: Path, *point: Any) -> dict[str, float]:
    path = work / f"{'-'.join(map(str, point))}.json"
    return provenance.once(path, lambda: played(work, *point))


def told(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Means of each system, and the ratios of P90 of the first audio and of throughput to the baseline's."""
    found: dict[str, Any] = {
        system: {name: round(mean(run[name] for run in each), 5) for name in each[0]}
        for system, each in runs.items()
    }
    for system, name in product(SYSTEMS[1:], ("ttfp_s.p90", "later.p90", "completed_rps")):
        ratio = ratio_interval([run[name] for run in runs["fcfs"]], [run[name] for run in runs[system]])
        found[system][f"{name} ratio"] = [ratio.mean, ratio.low, ratio.high]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("evaluation/paper"), help="of what is done")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    for system in SYSTEMS:
        preset(system, work)
    with ProcessPoolExecutor(2) as pool:
        points = list(product(REGIMES, AT, BARGE_IN))
        runs = {
            point: {
                system: [pool.submit(kept, work, point[0], system, *point[1:], seed) for seed in SEEDS]
                for system in SYSTEMS
            }
            for point in points
        }
        found = {
            f"{regime}, c = {at}, p_bi {barge_in:g}": told(
                {
                    system: [one.result() for one in each]
                    for system, each in runs[regime, at, barge_in].items()
                }
            )
            for regime, at, barge_in in points
        }
    command = "python benchmarks/liveserve_paper.py --out benchmarks/results/liveserve-paper.json"
    provenance.keep(found | {"command": command}, arguments.out)


if __name__ == "__main__":
    main()
