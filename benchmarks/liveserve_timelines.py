"""LiveServe's microbenchmarks over time (§7.4): KV that requests hold, and continuity.

    python benchmarks/liveserve_timelines.py --out benchmarks/results/liveserve-timelines.json

Simulated at the times calibrated to the paper's baseline (liveserve-calibrated.json).

residency (Figures 8 and 17): 20 conversations of long turns on one thinker and one talker, each of which
holds 8192 tokens; the preset, the same without the KV that a request holds in its utility (`kv-unaware`:
beta 0), and first come first served, which holds nobody. `in_use` is the share of the thinker's blocks that
requests hold, by second; `long_s` the mean time from start to end of the quarter of requests that have the
longest prompts; `answered` counts replies that were over when the run was.

continuity (Figure 18): c = 32, 12 a second in bursts like BurstGPT's; of the replies that begin within each
five seconds, the share that plays without a gap. Algorithm 1 without pacing is told beside it.

Runs that --work has are not run again.
"""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import yaml
from evaluation_simulated import LONG
from liveserve import as_printed, written
from liveserve_calibration import HOST_KV_TOKENS, NOBODY, PROFILE
from liveserve_paper import BURSTGPT_CV, Point

from antiphon.assembly.deployment_file import read_deployment
from antiphon.bench import provenance
from antiphon.bench.statistics import ratio_interval
from antiphon.latency.profile import Profile
from antiphon.metrics.continuity import is_judged, is_smooth
from antiphon.metrics.log import Event, ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.recorder import fold
from antiphon.sim.deployed import deployed_engine
from antiphon.sim.model import SimEngine, engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

SEEDS = (1, 2, 3, 4, 5)
"""Others chose beta."""
RESIDENCY, CONTINUITY = ("fcfs", "kv-unaware", "liveserve"), ("fcfs", "algorithm-1", "liveserve")
CONVERSATIONS, DURATION_S, KV_TOKENS = 20, 120.0, 8192
PLACES, RATE_PER_S, BARGE_IN = 32, 12.0, (0.0, 0.5)
WINDOW_S = 5.0


def preset(system: str, work: Path) -> str:
    """A preset's name, or the file of LiveServe's as Algorithm 1 without pacing, or without KV in its
    utility."""
    path = work / f"{system}.yaml"
    if system in ("fcfs", "liveserve"):
        return system
    if not path.exists():
        said = written("liveserve")
        if system == "kv-unaware":
            said |= {decision: said[decision] | {"beta": 0.0} for decision in ("step", "pace")}
        else:
            said = as_printed() | {"pace": "unpaced"}
        path.write_text(yaml.safe_dump(said))
    return str(path)


def run_of(workload: Workload, profile: Profile, seed: int, engine: SimEngine) -> list[Event]:
    outcome = simulate(Setup(workload, profile, seed, engine), NOBODY)
    if outcome.overruled or outcome.incidents:
        raise RuntimeError(f"{outcome.overruled} {outcome.incidents}")
    return list(outcome.events)


def residency(work: Path, system: str, seed: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "load": {"closed": {"concurrency": CONVERSATIONS, "duration_s": DURATION_S}},
        **{f"people.talker.{key}": value for key, value in LONG.items()},
    }
    profile = Profile.from_json(PROFILE.read_bytes())
    sizes = Sizes(kv_tokens=KV_TOKENS, host_kv_tokens=HOST_KV_TOKENS)
    engine = engine_of(profile, preset(system, work), sizes, Replicas(1, 1, apart=True))
    events = run_of(changed(named("interactive"), settings), profile, seed, engine)
    blocks, free, idle = (
        metric.of("thinker") for metric in (Metric.KV_BLOCKS, Metric.KV_BLOCKS_FREE, Metric.KV_BLOCKS_IDLE)
    )
    samples = [event for event in events if isinstance(event, ServerSampled)]
    in_use = [(one.t_s, 1 - (one.values[free] + one.values[idle]) / one.values[blocks]) for one in samples]
    over = [row for row in fold(events).responses if row.ended_s is not None and row.is_answer]
    lengths = [row.input_tokens or 0 for row in over]
    least = float(np.percentile(lengths, 75))
    long_s = [row.ended_s - row.started_s for row in over if (row.input_tokens or 0) >= least and row.ended_s]
    return {
        "in_use": mean(share for _, share in in_use),
        "long_s": mean(long_s),
        "answered": len(over),
        "timeline": [[round(t_s, 1), round(share, 4)] for t_s, share in in_use],
    }


def continuity(work: Path, system: str, barge_in: float, seed: int) -> dict[str, Any]:
    point = Point(PLACES, barge_in, RATE_PER_S, BURSTGPT_CV)
    settings = {"load": point.load, "people.talker.barge_in.probability": barge_in}
    profile = Profile.from_json(PROFILE.read_bytes())
    deployment = read_deployment("liveserve-8gpu")
    engine = deployed_engine(profile, deployment, preset(system, work), Sizes(host_kv_tokens=HOST_KV_TOKENS))
    events = run_of(changed(named("liveserve-sharegpt"), settings), profile, seed, engine)
    judged = [row for row in fold(events).responses if is_judged(row)]
    return {"begun": [[round(float(row.audio_at_s[0]), 3), is_smooth(row)] for row in judged]}


def by_window(runs: list[dict[str, Any]]) -> list[list[float]]:
    """[window's begin in seconds, replies that began in it, share of them without a gap], over all seeds."""
    begun = [one for run in runs for one in run["begun"]]
    windows = sorted({int(t_s // WINDOW_S) for t_s, _ in begun})
    found: list[list[float]] = []
    for window in windows:
        smooth = [is_one for t_s, is_one in begun if int(t_s // WINDOW_S) == window]
        found.append([window * WINDOW_S, len(smooth), round(mean(smooth), 4)])
    return found


def told(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Of residency: means, ratios to the one without KV in its utility, the timeline of the first seed."""
    found: dict[str, Any] = {}
    for system, each in runs.items():
        row: dict[str, Any] = {
            name: round(mean(run[name] for run in each), 4) for name in ("in_use", "long_s", "answered")
        }
        if system == "liveserve":
            for name in ("in_use", "long_s", "answered"):
                columns = ([run[name] for run in runs[one]] for one in ("kv-unaware", system))
                ratio = ratio_interval(*columns)
                row[f"{name} ratio"] = [ratio.mean, ratio.low, ratio.high]
        found[system] = row | {"timeline": each[0]["timeline"]}
    return found


def main() -> None:
    arguments = provenance.parser(__doc__, "evaluation/timelines").parse_args()
    work: Path = arguments.work
    for system in {*RESIDENCY, *CONTINUITY}:
        preset(system, work)
    with ProcessPoolExecutor(2) as pool:

        def kept(name: str, part: Any, *about: Any) -> Future[dict[str, Any]]:
            path = work / f"{name}-{'-'.join(map(str, about))}.json"
            return pool.submit(provenance.once, path, partial(part, work, *about))

        held = {
            system: [kept("residency", residency, system, seed) for seed in SEEDS] for system in RESIDENCY
        }
        smooth = {
            f"p_bi {barge_in:g}": {
                system: [kept("continuity", continuity, system, barge_in, seed) for seed in SEEDS[:2]]
                for system in CONTINUITY
            }
            for barge_in in BARGE_IN
        }
        found = {
            "residency": told({system: [run.result() for run in each] for system, each in held.items()}),
            "continuity": {
                name: {system: by_window([run.result() for run in each]) for system, each in systems.items()}
                for name, systems in smooth.items()
            },
        }
    provenance.keep(found, arguments.out)


if __name__ == "__main__":
    main()
