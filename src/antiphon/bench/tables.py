"""Figures of a run as a table."""

from __future__ import annotations

import math

from rich.table import Table


def figures_table(title: str, figures: dict[str, float]) -> Table:
    """One row a figure, in the order given. The unit is part of the name."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, shown(value))
    return table


def shown(value: float) -> str:
    """Four digits that matter; what was not measured is a dash."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
