"""How a figure is spread over the turns: a cumulative curve per label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.bench.plots.style import GREY, colour, page
from antiphon.core.errors import ConfigError
from antiphon.metrics.names import FIGURES, Figure

LOG_FROM = 60.0
"""Ratio of P99 to P1 over all labels from which on the axis is logarithmic."""


def draw_cdf(values: Mapping[str, NDArray[np.float64]], name: Figure, path: Path, *, title: str = "") -> None:
    """`values`: one number per response, by label; those that are no number are left out.

    Raises ConfigError if nothing is left.
    """
    finite = {label: np.sort(column[np.isfinite(column)]) for label, column in values.items()}
    finite = {label: column for label, column in finite.items() if len(column)}
    if not finite:
        raise ConfigError(f"nothing to plot: no response has a value of {name}")
    with page(path, 6.4, 4.0) as figure:
        axes = figure.add_subplot()
        for share in (0.5, 0.9):
            axes.axhline(share, color=GREY, linewidth=0.7, linestyle=":")
            axes.annotate(
                f"P{share * 100:.0f}",
                (1, share),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                xytext=(-2, 2),
                ha="right",
                fontsize=7,
                color=GREY,
            )
        for index, (label, column) in enumerate(finite.items()):
            share = np.arange(1, len(column) + 1) / len(column)
            p50, p90 = np.percentile(column, [50, 90])
            axes.step(
                np.concatenate([column[:1], column]),
                np.concatenate([[0.0], share]),
                where="post",
                color=colour(index),
                label=f"{label}: P50 {p50:#.3g}, P90 {p90:#.3g} (n = {len(column)})",
            )
        axes.set_xlabel(f"{name.removesuffix('_s')} ({FIGURES[name].unit})")
        axes.set_ylabel("share of responses (0 to 1)")
        axes.set_ylim(0, 1.02)
        if _is_wide(np.concatenate(list(finite.values()))):
            axes.set_xscale("log")
        else:
            axes.set_xlim(left=min(0.0, min(column[0] for column in finite.values())))
        axes.set_title(title or f"{name}: {FIGURES[name].text}")
        axes.legend(loc="lower right", frameon=False, labelcolor="linecolor", handlelength=1.2, fontsize=8)


def _is_wide(column: NDArray[np.float64]) -> bool:
    low, high = np.percentile(column, [1, 99])
    return bool(low > 0 and high / low > LOG_FROM)
