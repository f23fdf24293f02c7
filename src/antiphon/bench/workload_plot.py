"""A picture of a drawn workload: arrivals over time, and how its quantities are distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.workload.summary import Quantity, Summary

PANELS = (
    ("Speech and typing", "seconds", ("speech", "typing")),
    ("Thinking before a turn", "seconds", ("think",)),
    ("Reply limits", "tokens", ("reply limit", "call limit")),
    ("Interruptions", "seconds", ("barge-in at", "backchannel length")),
    ("Typed turns and prompts", "words", ("typed words", "prompt")),
    ("Turns of a session, calls of a job", "number", ("turns", "calls")),
)
COLOURS = ("#1f5fa8", "#d1662a")
INK = "#444444"
WIDE_RATIO = 50.0
"""From this P99 over P50 on, a panel's axis is logarithmic."""


def plot_workload(name: str, drawn: Summary, path: Path) -> None:
    """Writes a PNG. Raises ConfigError without matplotlib, or where `path` can't be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('plots need matplotlib: pip install "antiphon[plot]"') from error
    panels = [panel for panel in PANELS if any(drawn.quantity(quantity) for quantity in panel[2])]
    has_arrivals = any(time_s > 0 for time_s in drawn.arrivals_s)
    num_rows = has_arrivals + (len(panels) + 1) // 2
    figure = Figure(figsize=(9, 0.7 + 2.3 * max(1, num_rows)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title_of(name, drawn), color=INK)
    grid = figure.add_gridspec(max(1, num_rows), 2)
    if has_arrivals:
        arrivals_panel(figure.add_subplot(grid[0, :]), drawn.arrivals_s)
    for index, (title, unit, quantities) in enumerate(panels):
        axes = figure.add_subplot(grid[has_arrivals + index // 2, index % 2])
        found = [quantity for each in quantities if (quantity := drawn.quantity(each))]
        cdf_panel(axes, title, unit, found)
    try:
        figure.savefig(path, dpi=130, format="png")
    except OSError as error:
        raise ConfigError(f"{path}: can't be written ({error})") from error


def title_of(name: str, drawn: Summary) -> str:
    counts = {"sessions": drawn.sessions, "turns": drawn.turns, "jobs": drawn.jobs}
    return f"{name}: " + (", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nobody")


def arrivals_panel(axes: Any, times_s: tuple[float, ...]) -> None:
    """Bars of arrivals per bin, and how many have come by then."""
    counts, edges = np.histogram(times_s, min(60, max(10, len(times_s))), (0.0, times_s[-1]))
    width_s = edges[1] - edges[0]
    axes.bar(edges[:-1], counts, width=0.9 * width_s, align="edge", color=COLOURS[0])
    plain(axes, "Arrivals", "seconds from the run's start", f"per {width_s:.2g} s")
    total = axes.twinx()
    total.step([0.0, *times_s], range(len(times_s) + 1), where="post", color=COLOURS[1])
    total.set_ylabel("so far", color=COLOURS[1])
    total.tick_params(colors=COLOURS[1])
    total.spines[["top"]].set_visible(False)
    total.set_ylim(bottom=0)


def cdf_panel(axes: Any, title: str, unit: str, quantities: list[Quantity]) -> None:
    """Share of values at or below x, with the median marked and named."""
    for quantity, colour in zip(quantities, COLOURS, strict=False):
        values = np.sort(quantity.values)
        shares = np.arange(1, len(values) + 1) / len(values)
        median, high = quantity.percentiles(50, 90)
        label = f"{quantity.name}: P50 {median:.3g}, P90 {high:.3g}"
        axes.step([values[0], *values], [0.0, *shares], where="post", color=colour, label=label)
        axes.plot([median], [0.5], "o", color=colour, markersize=4)
    plain(axes, title, unit, "share at or below")
    axes.set_ylim(0, 1.05 + 0.16 * len(quantities))  # room for the legend above all curves
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlim(left=0)
    if unit == "number":
        axes.xaxis.get_major_locator().set_params(integer=True)
    elif any(is_wide(quantity) for quantity in quantities):
        axes.set_xscale("symlog", linthresh=min(threshold(quantity) for quantity in quantities))
    axes.legend(fontsize="small", loc="upper left", frameon=False, borderaxespad=0.2)


def is_wide(quantity: Quantity) -> bool:
    median, far = quantity.percentiles(50, 99)
    return far > WIDE_RATIO * max(median, 1e-9)


def threshold(quantity: Quantity) -> float:
    """Below this the axis is linear, so that zeros have a place."""
    return max(1e-2, quantity.percentiles(50)[0] / 10)


def plain(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize="medium", loc="left", color=INK)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
