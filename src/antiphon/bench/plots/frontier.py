"""Throughput against latency: a curve per label, a point per concurrency (LiveServe Figure 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.bench.plots.style import colour, halo, label_ends, marker, note, page
from antiphon.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Point:
    """A run: how many people talk at once, the P90 TTFP they met, and how many requests were completed."""

    label: str
    concurrency: float
    ttfp_s: float
    rps: float


def draw_frontier(points: Sequence[Point], path: Path, *, title: str = "") -> None:
    """Further up and further left is better. Runs alike in label and concurrency (seeds) are faint dots
    around their median. Raises ConfigError without points."""
    if not points:
        raise ConfigError("nothing to plot: no log has both ttfp_s and completed_rps")
    labels = list(dict.fromkeys(point.label for point in points))
    with page(path, 6.4, 4.2) as figure:
        axes = figure.add_subplot()
        ends = []
        for index, label in enumerate(labels):
            mine = [point for point in points if point.label == label]
            ink = colour(index)
            curve = _medians(mine)
            if len(mine) > len(curve):
                faint = {"s": 9, "color": ink, "alpha": 0.35, "linewidths": 0}
                axes.scatter([point.ttfp_s for point in mine], [point.rps for point in mine], **faint)
            x, y = [point.ttfp_s for point in curve], [point.rps for point in curve]
            axes.plot(x, y, marker=marker(index), markersize=5, color=ink)
            for point in curve:
                axes.annotate(
                    f"{point.concurrency:g}",
                    (point.ttfp_s, point.rps),
                    textcoords="offset points",
                    xytext=(0, 6 if index % 2 == 0 else -13),
                    ha="center",
                    fontsize=7,
                    color=ink,
                    path_effects=halo(),
                )
            ends.append((x[-1], y[-1], label, ink))
        axes.set_xlabel("P90 time to first audio packet, TTFP (s)")
        axes.set_ylabel("completed requests per second (1/s)")
        axes.set_xlim(0, max(point.ttfp_s for point in points) * 1.08)
        axes.set_ylim(0, max(point.rps for point in points) * 1.12)
        axes.set_title(title or "Throughput and latency; numbers are people at once")
        note(axes, "↖ better", right=True)
        figure.draw_without_rendering()
        label_ends(axes, ends)


def _medians(points: Sequence[Point]) -> list[Point]:
    """One point per concurrency, ascending."""
    found = []
    for concurrency in sorted({point.concurrency for point in points}):
        mine = [point for point in points if point.concurrency == concurrency]
        ttfp_s = float(np.median([point.ttfp_s for point in mine]))
        rps = float(np.median([point.rps for point in mine]))
        found.append(Point(mine[0].label, concurrency, ttfp_s, rps))
    return found
