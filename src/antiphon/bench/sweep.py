"""One workload at rising loads: where a server stops holding its bounds, and its useful_rps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from antiphon.bench.compared import PlayWorkload, about
from antiphon.bench.experiment import Changes, workload_of
from antiphon.bench.servers import Target
from antiphon.bench.tables import shown
from antiphon.bench.target import Pace
from antiphon.metrics.names import Figure
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import useful_rps

COLUMNS = (
    Figure.OFFERED_RPS,
    Figure.COMPLETED_RPS,
    Figure.TTFP_S.at("p50"),
    Figure.TTFP_S.at("p90"),
    Figure.TURN_LATENCY_S.at("p90"),
    Figure.CONTINUITY,
    Figure.STALLS,
    Figure.WASTE_RATIO,
)


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """One point: so many sessions kept open, or so many that come per second."""

    concurrency: int | None = None
    rate_per_s: float | None = None

    @property
    def name(self) -> str:
        return f"c{self.concurrency}" if self.concurrency is not None else f"r{self.rate_per_s:g}"


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A load, and the figures of its run."""

    load: OfferedLoad
    log: Path
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is played to whom. `changes` are those to the workload beside its load; logs go to `out`."""

    target: Target
    workload: str
    loads: tuple[OfferedLoad, ...]
    changes: Changes
    seed: int
    out: Path


async def sweep(
    plan: Sweep, points: list[LoadPoint], console: Console, pace: Pace, api_key: str = ""
) -> None:
    """Run one load after another; `points` grows with each. Raises ConfigError."""
    for load in plan.loads:
        asked = replace(plan.changes, concurrency=load.concurrency, rate_per_s=load.rate_per_s)
        log = plan.out / f"{plan.target.name}-{load.name}-seed{plan.seed}.jsonl"
        play = PlayWorkload(workload_of(plan.workload, asked), pace, console, api_key)
        points.append(LoadPoint(load, log, await play(plan.target, plan.seed, log)))


def sweep_table(title: str, points: Sequence[LoadPoint], slo: Slo) -> Table:
    """One row a load; the last column says whether speech held its bounds."""
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for name in ("load", *COLUMNS, "holds"):
        table.add_column(name, justify="right")
    for point in points:
        cells = [shown(point.figures[key]) if key in point.figures else "–" for key in COLUMNS]
        table.add_row(point.load.name, *cells, "yes" if slo.speaks_well(point.figures) else "no")
    return table


def sweep_result(points: Sequence[LoadPoint], slo: Slo) -> dict[str, Any]:
    """JSON-ready: where it comes from, each point's figures, and `useful_rps` if a load held the bounds."""
    result: dict[str, Any] = {
        **about(),
        "bounds": {"ttfp_p90_s": slo.ttfp_p90_s, "continuity": slo.continuity},
        "points": [{"load": point.load.name, "figures": point.figures} for point in points],
    }
    useful = useful_rps([point.figures for point in points], slo)
    return result if useful is None else result | {str(Figure.USEFUL_RPS): useful}
