"""A comparison as tables: figure, both sides, ratio with its interval, verdict, utilisation of both."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from antiphon.bench.comparison import Against, Row
from antiphon.bench.statistics import Contrast
from antiphon.bench.tables import shown
from antiphon.metrics.names import Figure

MAIN = (
    Figure.TTFP_S.at("p50"),
    Figure.TTFP_S.at("p90"),
    Figure.TURN_LATENCY_S.at("p90"),
    Figure.TTFT_S.at("p90"),
    Figure.TPOT_S.at("mean"),
    Figure.RTF.at("p90"),
    Figure.JCT_S.at("p90"),
    Figure.CONTINUITY.value,
    Figure.STALL_S.value,
    Figure.COMPLETED_RPS.value,
    Figure.SLO_ATTAINMENT.value,
    Figure.WASTE_RATIO.value,
    Figure.WASTE_DEVICE_S.value,
    Figure.QOS.value,
    Figure.EFFECTIVE_TOKENS_PER_S.value,
    Figure.BEST_EFFORT_TOKENS_PER_S.value,
    Figure.BEST_EFFORT_TTFT_S.at("p90"),
    Figure.BEST_EFFORT_JCT_S.at("p90"),
    Figure.CACHE_HIT_SHARE.value,
    Figure.RELOAD_S.value,
    Figure.UTILISATION.value,
    Figure.UNANSWERED_TURNS.value,
    Figure.PLACE_WAIT_S.at("p90"),
    Figure.REFUSED_SESSIONS.value,
    Figure.ERRORS.value,
)
"""What a table shows when not everything is asked for; the JSON has all."""

COLOURS = {"better": "green", "worse": "red"}


def comparison_table(against: Against, *, is_whole: bool = False) -> Table:
    """B against A. The utilisation is that of each side's busiest stage."""
    title = f"{against.b} against {against.a}, {against.pairs} seeds, 95 % intervals"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("figure", overflow="fold")
    for name in (against.a, against.b):
        table.add_column(name, justify="right")
    table.add_column("ratio (or ± difference)", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("utilisation", justify="right", no_wrap=True)
    for row in against.rows:
        if is_whole or _is_main(row.contrast.figure):
            table.add_row(*_cells(row, against))
    return table


def _is_main(figure: str) -> bool:
    return figure in MAIN or figure.partition("{")[0] in MAIN


def _cells(row: Row, against: Against) -> tuple[str, ...]:
    contrast = row.contrast
    colour = COLOURS.get(contrast.verdict)
    verdict = f"[{colour}]{contrast.verdict}[/]" if colour else contrast.verdict
    used = " / ".join(_busiest(row.utilisation[name]) for name in (against.a, against.b))
    return contrast.figure, _value(contrast.a), _value(contrast.b), _estimate(contrast), verdict, used


def _value(value: float | None) -> str:
    return "–" if value is None else shown(value)


def _estimate(contrast: Contrast) -> str:
    found = contrast.estimate
    if found is None:
        return "–"
    sign = "+" if contrast.kind == "difference" else ""
    if found.low is None or found.high is None:
        return f"{found.mean:{sign}.4g}"
    return f"{found.mean:{sign}.4g} \\[{found.low:{sign}.4g}, {found.high:{sign}.4g}]"


def _busiest(stages: dict[str, float]) -> str:
    if not stages:
        return "–"
    stage = max(stages, key=lambda name: stages[name])
    return f"{stage} {stages[stage] * 100:.0f} %"
