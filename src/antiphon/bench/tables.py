"""Figures of a run as tables."""

from __future__ import annotations

import math

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from antiphon.metrics.names import FIGURES, SUFFIXES, parse_figure


def figures_tables(title: str, figures: dict[str, float]) -> Group:
    """Distributions, a row each with mean and percentiles; then single values. In the order given. A table
    without rows is left out."""
    tables = spreads_table(title, figures), values_table(figures)
    return Group(*(table for table in tables if table.row_count))


def spreads_table(title: str, figures: dict[str, float]) -> Table:
    table = _table("figure", *SUFFIXES, "unit", title=title)
    rows: dict[str, dict[str, float]] = {}
    for key, value in figures.items():
        figure, detail = parse_figure(key)
        if FIGURES[figure].is_distribution:
            rows.setdefault(figure, {})[str(detail)] = value
    for name, cells in rows.items():
        values = [shown(cells[column]) if column in cells else "" for column in SUFFIXES]
        table.add_row(name, *values, FIGURES[parse_figure(f"{name}.mean")[0]].unit)
    return table


def values_table(figures: dict[str, float]) -> Table:
    table = _table("figure", "value", "unit")
    for key, value in figures.items():
        info = FIGURES[parse_figure(key)[0]]
        if not info.is_distribution:
            table.add_row(key, shown(value), info.unit)
    return table


def _table(first: str, *others: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="left" if column == "unit" else "right", no_wrap=True)
    return table


def shown(value: float) -> str:
    """Four digits that matter; what was not measured is a dash."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
