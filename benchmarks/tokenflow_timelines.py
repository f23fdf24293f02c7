"""TokenFlow over time: when tokens are generated, at two reading rates, and who waits in a crowd.

    python benchmarks/tokenflow_timelines.py --out benchmarks/results/tokenflow-timelines.json

Simulated, one seed; the loads and systems are those of tokenflow.py.

generation (Figure 18): load (a) of table 1, as slow as the paper's baseline: how many tokens of a reply there
are, by the second since it was asked for.
rates (Figure 19): the same, four in ten of whom read 15 tokens a second and six 20.
crowd (like Figures 14 and 15, which are of BurstGPT; there these three would be one line): load (d), as slow;
by the second how many wait for their first token, and how many have a row.

Runs that --work has are not run again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np
import tokenflow_page
from tokenflow import ANDES_LIKE, OURS, RESERVED, Point, System, outcome_of
from tokenflow_loads import MIXED, STAGE, Load, fitted_ms, table_1

from antiphon.bench import provenance
from antiphon.metrics.log import Event, ServerSampled
from antiphon.metrics.names import Metric
from antiphon.metrics.recorder import fold
from antiphon.metrics.streaming import Reading, readings, rebuffer_s

SEED, MOST_POINTS, MOST_MOMENTS = 0, 12, 100
DRAWN = 3
"""Of so many replies one is drawn."""


def line(one: Reading) -> list[list[float]]:
    """[seconds since it was asked for, tokens that are there], thinned out."""
    size = one.at_s.size
    kept = np.unique(np.linspace(0, size - 1, min(MOST_POINTS, size)).astype(int))
    return [[round(float(one.at_s[at] - one.asked_s), 2), at + 1] for at in kept.tolist()]


def generated(events: list[Event]) -> dict[str, Any]:
    """By reading rate."""
    found = readings(fold(events).responses)
    told: dict[str, Any] = {}
    for rate in sorted({one.rate for one in found}):
        of = [one for one in found if one.rate == rate]
        told[f"{rate:g}"] = {
            "replies": len(of),
            "ttft_s": round(mean(one.ttft_s for one in of), 3),
            "waits_s": round(mean(map(rebuffer_s, of)), 3),
            "generated_per_s": round(mean((one.at_s.size - 1) / np.ptp(one.at_s) for one in of), 2),
            "lines": [line(one) for one in of[::DRAWN]],
        }
    return told


def crowd(events: list[Event]) -> dict[str, Any]:
    found = readings(fold(events).responses)
    samples = [event for event in events if isinstance(event, ServerSampled)]
    running = Metric.REQUESTS_RUNNING.of(STAGE)
    begun_s = min(one.asked_s for one in found)
    rows: list[list[float]] = []
    for sample in samples[:: max(len(samples) // MOST_MOMENTS, 1)]:
        waiting = int(sum(one.asked_s <= sample.t_s < one.at_s[0] for one in found))
        rows.append([round(sample.t_s - begun_s, 1), waiting, sample.values.get(running, 0.0)])
    return {"timeline": rows}


def run_of(tell: Callable[[list[Event]], dict[str, Any]], point: Point, work: Path) -> dict[str, Any]:
    return tell(list(outcome_of(point, work).events))


def main() -> None:
    arguments = provenance.parser(__doc__, "evaluation/tokenflow").parse_args()
    work: Path = arguments.work
    loads = table_1(fitted_ms())
    alike = loads["a"]
    unlike = msgspec.structs.replace(alike, rate=MIXED, name=f"{alike.name}, 15 and 20 read")
    wanted: dict[str, tuple[Callable[[list[Event]], dict[str, Any]], Load, tuple[System, ...]]] = {
        "generation": (generated, alike, (RESERVED, OURS)),
        "rates": (generated, unlike, (RESERVED, OURS)),
        "crowd": (crowd, loads["d"], (RESERVED, ANDES_LIKE, OURS)),
    }
    runs: dict[str, dict[str, Future[dict[str, Any]]]] = {}
    with ProcessPoolExecutor(2) as pool:
        for name, (tell, load, systems) in wanted.items():
            for system in systems:
                system.write(work)
                point = Point(system, load, SEED)
                run = partial(run_of, tell, point, work)
                path = work / f"{name}-{point.name}.json"
                runs.setdefault(name, {})[system.name] = pool.submit(provenance.once, path, run)
        told: dict[str, Any] = {
            name: {"load": load.name, "systems": {one.name: runs[name][one.name].result() for one in systems}}
            for name, (_, load, systems) in wanted.items()
        }
    provenance.keep(told, arguments.out)
    tokenflow_page.write()


if __name__ == "__main__":
    main()
