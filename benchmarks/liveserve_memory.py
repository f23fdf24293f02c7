"""LiveServe's memory (§5) beside LRU offloading, where pasts do not fit the device: how much of a reload is
left between a turn's end and its first text.

    python benchmarks/liveserve_memory.py --out benchmarks/results/liveserve-memory.json

Simulated: Qwen3-Omni-30B-A3B on H200 GPUs by their datasheet, one replica, people who talk for 20 to 60 s a
turn. The device holds a share of what the conversations amount to; the link to the host is so slow that a
reload takes about as long as a turn's first text takes without one, or half as long. Turns are paired by
seed, session and number; those count that wait for KV from the host under the baseline. Where the device is
smallest, `kv-unaware` is liveserve without the KV that a request holds in its utility (beta 0), and `literal`
is Algorithm 1 as printed, which ends a step at the first request that does not fit (`overruled`: decisions in
which nothing could run, so that the guard stepped in); `in_use` is the mean share of the thinker's blocks
that requests hold (Figures 8 and 17). There each decision about memory is also tried alone, and all but it.
Runs that --work has are not run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from evaluation_simulated import LONG, NOBODY, PROFILE
from liveserve import as_printed, written

from antiphon.assembly.story import Cause, Story, What
from antiphon.assembly.storyteller import Storyteller
from antiphon.bench import provenance
from antiphon.bench.statistics import mean_interval, ratio_interval
from antiphon.core.facts import Fact
from antiphon.core.plans import Decision
from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.recorder import fold
from antiphon.metrics.samples import parse_key
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.sim.model import engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.run import Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named

SYSTEMS = ("fcfs", "liveserve")
UNAWARE, LITERAL = "kv-unaware", "literal"
PARTS = {
    "eviction": ("evict",),
    "writing": ("write",),
    "preloading": ("fetch",),
    "all three": ("evict", "write", "fetch"),
}
"""Decisions of the preset about memory."""
ABLATED = (*PARTS, *(f"all but {part}" for part in PARTS))
"""Systems that have the preset's decisions in part, the rest as fcfs."""
SEEDS = (0, 1, 2, 3, 4)
CONVERSATIONS, DURATION_S = 8, 420.0
PASTS_TOKENS = 32_768
"""What so many conversations hold towards the end of a run."""
POOLS = (0.35, 0.6, 4.0)
"""Shares of it that the device holds; in the last memory is never short."""
GB_PER_S = (5.0, 10.0)
HOST_TOKENS = 1 << 20
TOLD = (
    "transcript_ttft_s.p50",
    "transcript_ttft_s.p90",
    "ttfp_s.p50",
    "ttfp_s.p90",
    "continuity",
    "cache_hit_share",
    "turns",
)


@dataclass
class Calls:
    """Implements `sim.driver.Recorder`."""

    kept: list[tuple[float, tuple[Fact, ...]]] = field(default_factory=list)

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        self.kept.append((now, tuple(facts)))


def preset(system: str, work: Path) -> str:
    """A preset's name, or the file of one that is LiveServe's in part."""
    if system in SYSTEMS:
        return system
    path = work / f"{system}.yaml"
    if not path.exists():
        fcfs, ours = written("fcfs"), written("liveserve")
        if system == UNAWARE:
            said = ours | {one: ours[one] | {"beta": 0.0} for one in ("step", "pace")}
        elif system == LITERAL:
            said = as_printed()
            said["step"] |= {"literal": True}
        else:
            of = PARTS[system.removeprefix("all but ")]
            said = fcfs | {one: ours[one] for one in ours if (one in of) != system.startswith("all but")}
        path.write_text(yaml.safe_dump(said))
    return str(path)


def in_use(samples: Iterable[ServerSampled]) -> float:
    """Mean share of the thinker's blocks that requests hold."""
    metrics = (Metric.KV_BLOCKS, Metric.KV_BLOCKS_FREE, Metric.KV_BLOCKS_IDLE)
    blocks, free, idle = (metric.of("thinker") for metric in metrics)
    return mean(1 - (one.values[free] + one.values[idle]) / one.values[blocks] for one in samples)


def played(work: Path, system: str, pool: float, gb_per_s: float, seed: int) -> dict[str, Any]:
    """Figures of a run, and what its turns waited for (`waits`)."""
    settings: dict[str, Any] = {
        "load": {"closed": {"concurrency": CONVERSATIONS, "duration_s": DURATION_S}},
        **{f"people.talker.{key}": value for key, value in LONG.items()},
    }
    profile = PROFILE.with_host_link(gb_per_s * 1e9)
    sizes = Sizes(kv_tokens=round(pool * PASTS_TOKENS / 16) * 16, host_kv_tokens=HOST_TOKENS)
    engine = engine_of(profile, preset(system, work), sizes, Replicas(1, 1, apart=False))
    calls = Calls()
    workload = changed(named("interactive"), settings)
    outcome = simulate(Setup(workload, profile, seed, engine, recorder=calls), NOBODY)
    if system != LITERAL and (outcome.overruled or outcome.incidents):
        raise RuntimeError(f"{outcome.overruled} {outcome.incidents}")
    found = figures(fold(outcome.events), Slo())
    samples = [event for event in outcome.events if isinstance(event, ServerSampled)]
    last = samples[-1].values
    counted = {
        metric.value: sum(value for key, value in last.items() if parse_key(key)[0] == metric)
        for metric in (Metric.KV_BLOCKS_EVICTED, Metric.KV_BLOCKS_RELOADED, Metric.RELOAD_SECONDS)
    }
    told = {name: round(found[name], 5) for name in TOLD if name in found}
    told["in_use"] = round(in_use(samples), 5)
    told["overruled"] = sum(sum(one.reasons.values()) for one in outcome.overruled)
    return told | counted | {"waits": waits(calls, engine.node, engine.depth)}


def waits(calls: Calls, node: Any, depth: int) -> dict[str, tuple[float, float]]:
    """By session and number of the turn, from the second on: (seconds to the first text, of them for KV)."""
    teller = Storyteller(node, depth)
    for now, facts in calls.kept:
        teller.decide(facts, now)
    found: dict[str, tuple[float, float]] = {}
    for story in teller.stories.values():
        text_s = {event.response: event.amounts["after_s"] for event in story.of(What.FIRST_TEXT)}
        for_kv = waits_for_kv(story)
        for number, response in enumerate(story.responses):
            if number and response in text_s:
                found[f"{story.session}/{number}"] = round(text_s[response], 5), round(for_kv[response], 5)
    return found


def waits_for_kv(story: Story) -> dict[str, float]:
    """Seconds that the thinker's requests waited for KV from the host, by response."""
    found: dict[str, float] = defaultdict(float)
    for event in story.of(What.JOINED):
        if event.where == "thinker":
            found[event.response] += sum(
                s for (cause, _), s in event.spent.items() if cause is Cause.KV_COMING
            )
    return found


def kept(work: Path, system: str, pool: float, gb_per_s: float, seed: int) -> dict[str, Any]:
    path = work / f"{system}-{pool:g}-{gb_per_s:g}-{seed}.json"
    return provenance.once(path, lambda: played(work, system, pool, gb_per_s, seed))


def reloaded(base_runs: list[dict[str, Any]], our_runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the turns that wait for KV under the baseline; empty if there are none."""
    rows: list[dict[str, float]] = []
    for base, ours in zip(base_runs, our_runs, strict=True):
        pairs = [
            (before, ours["waits"][turn])
            for turn, before in base["waits"].items()
            if before[1] > 0 and turn in ours["waits"]
        ]
        if pairs:
            names = ("base_ttft_s", "base_reload_s", "ttft_s", "reload_s")
            columns = zip(*((*before, *after) for before, after in pairs), strict=True)
            means = dict(zip(names, map(mean, columns), strict=True))
            rows.append(means | {"turns": len(pairs), "away": 1 - means["reload_s"] / means["base_reload_s"]})
    if not rows:
        return {}
    ratio = ratio_interval([row["base_ttft_s"] for row in rows], [row["ttft_s"] for row in rows])
    away = mean_interval([row["away"] for row in rows])
    return {
        **{name: round(mean(row[name] for row in rows), 5) for name in rows[0]},
        "ttft_ratio": [ratio.mean, ratio.low, ratio.high],
        "reload_off_the_path": [away.mean, away.low, away.high],
    }


def told(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Of a pool and a link: figures of each system, and of the turns that wait for KV under the baseline."""
    found: dict[str, Any] = {
        system: {
            name: round(mean(run[name] for run in each if name in run), 5)
            for name in each[0]
            if name != "waits"
        }
        for system, each in runs.items()
    }
    if turns := reloaded(*(runs[system] for system in SYSTEMS)):
        found["reloaded turns"] = turns
    return found


def p90_s(runs: list[dict[str, Any]]) -> float:
    return round(mean(run["transcript_ttft_s.p90"] for run in runs), 5)


def main() -> None:
    arguments = provenance.parser(__doc__, "evaluation/memory").parse_args()
    work: Path = arguments.work
    for system in (UNAWARE, LITERAL, *ABLATED):
        preset(system, work)
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(2) as pool:
        for share, gb_per_s in product(POOLS, GB_PER_S):
            if share > 1 and gb_per_s != GB_PER_S[0]:
                continue  # nothing crosses the link
            is_tightest = (share, gb_per_s) == (POOLS[0], GB_PER_S[0])
            runs = {
                system: [pool.submit(kept, work, system, share, gb_per_s, seed) for seed in SEEDS]
                for system in (*SYSTEMS, *((UNAWARE, LITERAL, *ABLATED) if is_tightest else ()))
            }
            results = {system: [one.result() for one in each] for system, each in runs.items()}
            parts = {system: results.pop(system) for system in ABLATED if system in results}
            name = f"{share:g} of the pasts, {gb_per_s:g} GB/s"
            found[name] = told(results)
            if parts:
                parts |= {system: results[system] for system in (LITERAL, "liveserve")}
                found[f"ablation at {name}"] = {
                    system: {**reloaded(results["fcfs"], each), "ttft_p90_s": p90_s(each)}
                    for system, each in parts.items()
                }
    provenance.keep(found, arguments.out)


if __name__ == "__main__":
    main()
