"""Paired statistics of a comparison: the ratio B/A of every figure, seed by seed, with a 95 % interval.

Both sides of a pair play the same script within minutes of each other, so the pair's ratio is free of what
they share (the workload's luck, the machine's mood). The summary is the geometric mean of the ratios, and its
interval is Student's t on their logarithms: with five seeds a bootstrap sees at most 126 different resamples
and comes out too narrow, while the t interval pays openly for the small number. Nothing is divided by zero:
where a figure is 0 in any run, the mean difference B - A is given instead, with a t interval of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from antiphon.metrics.names import FIGURES, parse_figure

# Two-sided 95 % quantiles of Student's t, 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Z_95 = 1.959964
FEWEST_SEEDS = 5
WIDE = 2.0
SLIGHT = 5e-4
"""A smaller share, of the figure, vanishes in the four digits that are shown."""

Verdict = Literal["better", "worse", "higher", "lower", "no difference", "undecided"]
Direction = Literal["lower", "higher"]


class Interval(msgspec.Struct, frozen=True):
    """A mean and its 95 % interval; `low` and `high` are None with a single pair, which has no interval."""

    mean: float
    low: float | None
    high: float | None


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of B against A.

    a, b     means over the seeds that both sides have
    pairs    how many seeds these are
    kind     ratio: `estimate` is B/A | difference: B - A, since a value is zero | none: nothing to compare
    note     why it is no ratio, or which seeds are missing
    """

    figure: str
    a: float | None
    b: float | None
    pairs: int
    kind: Literal["ratio", "difference", "none"]
    estimate: Interval | None
    verdict: Verdict
    note: str = ""


def t_quantile(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t; beyond the table by its expansion around the normal
    (Abramowitz and Stegun 26.7.5), good to the third decimal there."""
    if freedom < 1:
        raise ValueError(f"freedom is {freedom}; an interval needs two values or more")
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z = Z_95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def mean_interval(values: Sequence[float]) -> Interval:
    """Arithmetic mean with its t interval. `values` must not be empty."""
    column = np.asarray(values, float)
    mean = float(column.mean())
    if len(column) < 2:
        return Interval(mean, None, None)
    half = t_quantile(len(column) - 1) * float(column.std(ddof=1)) / math.sqrt(len(column))
    return Interval(mean, mean - half, mean + half)


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Geometric mean of b[i]/a[i], with the t interval of its logarithm. All values must be above 0."""
    logs = mean_interval(np.log(np.asarray(b, float) / np.asarray(a, float)).tolist())
    if logs.low is None or logs.high is None:
        return Interval(math.exp(logs.mean), None, None)
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high))


def contrast(figure: str, a: Mapping[int, float], b: Mapping[int, float], matters: float = 0.0) -> Contrast:
    """B against A, over the seeds (keys) that have a finite value on both sides. matters: the smallest
    difference that does, a share of the figure."""
    seeds = sorted(seed for seed in a.keys() & b.keys() if math.isfinite(a[seed]) and math.isfinite(b[seed]))
    missing = sorted((a.keys() | b.keys()) - set(seeds))
    note = f"no value on one side at seed {_listed(missing)}" if missing else ""
    if not seeds:
        return Contrast(
            figure=figure,
            a=_mean(a),
            b=_mean(b),
            pairs=0,
            kind="none",
            estimate=None,
            verdict="undecided",
            note=note or "no value on either side",
        )
    left, right = [a[seed] for seed in seeds], [b[seed] for seed in seeds]
    kind: Literal["ratio", "difference"] = "ratio"
    if min(*left, *right) <= 0:
        kind = "difference"
        note = "; ".join(filter(None, ["difference, since a value is 0", note]))
    if kind == "ratio":
        estimate, neutral = ratio_interval(left, right), 1.0
    else:
        estimate, neutral = mean_interval([y - x for x, y in zip(left, right, strict=True)]), 0.0
    return Contrast(
        figure=figure,
        a=float(np.mean(left)),
        b=float(np.mean(right)),
        pairs=len(seeds),
        kind=kind,
        estimate=estimate,
        verdict=verdict(figure, estimate, neutral, float(max(np.mean(left), np.mean(right))), matters),
        note=note,
    )


def direction(figure: str) -> Direction | None:
    """Which way a figure is better (`metrics.names.FIGURES`); None where neither is, or nobody knows it."""
    try:
        known, _ = parse_figure(figure)
    except ValueError:
        return None
    return FIGURES[known].better


def verdict(figure: str, estimate: Interval, neutral: float, scale: float, matters: float = 0.0) -> Verdict:
    """What the interval allows to say. If it holds `neutral` (1 for a ratio, 0 for a difference), that is
    "no difference" only where it is narrow: a ratio's within a factor of `WIDE`, a difference's within
    `scale`, the larger of both means. What is less than `matters`, or than `SLIGHT`, is none, however sure it
    is."""
    if estimate.low is None or estimate.high is None:
        return "undecided"
    if estimate.low <= neutral <= estimate.high:
        span = (
            estimate.high / estimate.low / WIDE if neutral else (estimate.high - estimate.low) / (scale or 1)
        )
        return "no difference" if span <= 1 else "undecided"
    if abs(estimate.mean - neutral) < max(matters, SLIGHT) * (neutral or scale):
        return "no difference"
    moved: Direction = "higher" if estimate.mean > neutral else "lower"
    wanted = direction(figure)
    if wanted is None:
        return moved
    return "better" if moved == wanted else "worse"


def _mean(values: Mapping[int, float]) -> float | None:
    finite = [value for value in values.values() if math.isfinite(value)]
    return float(np.mean(finite)) if finite else None


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(str(seed) for seed in seeds)
