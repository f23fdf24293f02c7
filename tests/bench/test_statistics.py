"""Ratios and intervals, against values worked out by hand and against a bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from antiphon.bench.statistics import (
    contrast,
    direction,
    mean_interval,
    ratio_interval,
    t_quantile,
)
from antiphon.core.rng import stream


def test_t_quantile() -> None:
    assert t_quantile(4) == 2.776
    assert t_quantile(30) == 2.042
    assert t_quantile(31) == pytest.approx(2.0395, abs=5e-4)  # tables: 2.040
    assert t_quantile(60) == pytest.approx(2.0003, abs=5e-4)
    assert t_quantile(10**6) == pytest.approx(1.95997, abs=1e-4)
    quantiles = [t_quantile(freedom) for freedom in range(1, 80)]
    assert quantiles == sorted(quantiles, reverse=True)
    with pytest.raises(ValueError, match="two values"):
        t_quantile(0)


def test_mean_interval_by_hand() -> None:
    # mean 3, s = sqrt(2.5), half = 2.776 * sqrt(2.5) / sqrt(5) = 2.776 * sqrt(0.5)
    found = mean_interval([1, 2, 3, 4, 5])
    assert found.mean == 3
    assert found.low == pytest.approx(3 - 2.776 * math.sqrt(0.5))
    assert found.high == pytest.approx(3 + 2.776 * math.sqrt(0.5))
    assert (mean_interval([7]).low, mean_interval([7]).high) == (None, None)


def test_ratio_by_hand() -> None:
    # logs of the ratios: ln 2, ln 2, ln 8; mean (5/3) ln 2; s = (2/sqrt 3) ln 2
    found = ratio_interval([1, 3, 1], [2, 6, 8])
    half = 4.303 * 2 / math.sqrt(3) * math.log(2) / math.sqrt(3)
    assert found.mean == pytest.approx(2 ** (5 / 3))
    assert found.low == pytest.approx(2 ** (5 / 3) * math.exp(-half))
    assert found.high == pytest.approx(2 ** (5 / 3) * math.exp(half))


def test_swapping_sides_inverts_the_ratio() -> None:
    draw = stream(0, "swap")
    a, b = draw.uniform(1, 2, 6), draw.uniform(1, 2, 6)
    there, back = ratio_interval(a, b), ratio_interval(b, a)
    assert there.low is not None
    assert back.high is not None
    assert there.mean == pytest.approx(1 / back.mean)
    assert there.low == pytest.approx(1 / back.high)


def test_interval_agrees_with_a_bootstrap() -> None:
    """With many pairs the percentile bootstrap is a fair judge of the t interval."""
    draw = stream(1, "pairs")
    logs = draw.normal(math.log(0.8), 0.2, 60)
    found = ratio_interval(np.ones(60), np.exp(logs))
    resampled = draw.choice(logs, (20_000, 60)).mean(axis=1)
    low, high = np.exp(np.percentile(resampled, [2.5, 97.5]))
    assert found.low == pytest.approx(low, rel=0.01)
    assert found.high == pytest.approx(high, rel=0.01)


def test_coverage_with_five_seeds() -> None:
    """The interval holds the truth in 95 of 100 comparisons of five seeds."""
    draws = stream(2, "coverage").normal(0.3, 0.1, (2000, 5))
    found = [ratio_interval(np.ones(5), np.exp(logs)) for logs in draws]
    held = np.mean(
        [f.low is not None and f.high is not None and f.low < math.exp(0.3) < f.high for f in found]
    )
    assert 0.935 < held < 0.965


def test_contrast_and_verdict() -> None:
    faster = contrast("ttfp_s.p90", dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 0.5))
    assert (faster.kind, faster.pairs, faster.verdict, faster.a, faster.b) == ("ratio", 5, "better", 1.0, 0.5)
    assert faster.estimate is not None
    assert faster.estimate.mean == pytest.approx(0.5)
    more = {seed: 1.0 + 0.01 * seed for seed in range(5)}
    less = dict.fromkeys(range(5), 0.8)
    assert contrast("completed_rps", less, more).verdict == "better"
    assert contrast("continuity", more, less).verdict == "worse"
    assert contrast('utilisation{stage="talker"}', less, more).verdict == "higher"
    assert contrast("audio_rtf.p50", more, less).verdict == "lower"
    assert contrast("ttfp_s.p90", more, {seed: more[seed] for seed in range(5)}).verdict == "no difference"


def test_zeros_are_not_divided() -> None:
    found = contrast("stalls", {0: 0.0, 1: 0.0, 2: 0.0}, {0: 2.0, 1: 3.0, 2: 4.0})
    assert found.kind == "difference"
    assert found.estimate is not None
    assert found.estimate.mean == 3
    assert found.verdict == "worse"
    assert "is 0" in found.note
    assert contrast("stalls", {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}).verdict == "no difference"


def test_a_wide_interval_decides_nothing() -> None:
    close = contrast("ttfp_s.p50", {0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.05, 1: 0.98, 2: 0.99})
    assert close.verdict == "no difference"
    assert contrast("ttfp_s.p50", {0: 1.0, 1: 1.0}, {0: 2.0, 1: 0.4}).verdict == "undecided"
    few = contrast("stall_s", {0: 0.0, 1: 9.0, 2: 10.0}, {0: 0.1, 1: 9.0, 2: 9.9})
    assert (few.kind, few.verdict) == ("difference", "no difference")
    assert contrast("stall_s", {0: 0.0, 1: 9.0}, {0: 3.0, 1: 0.5}).verdict == "undecided"


def test_what_no_table_shows_is_no_difference() -> None:
    ones = dict.fromkeys(range(5), 1.0)
    assert contrast("ttfp_s.p90", ones, dict.fromkeys(range(5), 1.0004)).verdict == "no difference"
    assert contrast("ttfp_s.p90", ones, dict.fromkeys(range(5), 1.0006)).verdict == "worse"
    assert (
        contrast("ttfp_s.p90", ones, dict.fromkeys(range(5), 1.03), matters=0.05).verdict == "no difference"
    )
    assert contrast("ttfp_s.p90", ones, dict.fromkeys(range(5), 1.06), matters=0.05).verdict == "worse"
    some = {**ones, 0: 0.0}
    shifted = {seed: value + 3e-4 for seed, value in some.items()}
    assert (found := contrast("stall_s", some, shifted)).kind == "difference"
    assert found.verdict == "no difference"
    assert contrast("stall_s", some, {seed: value + 6e-4 for seed, value in some.items()}).verdict == "worse"


def test_absent_figures_are_said() -> None:
    found = contrast("qos", {0: 1.0, 1: 2.0, 2: math.nan}, {1: 4.0, 2: 1.0})
    assert (found.pairs, found.a, found.b, found.verdict) == (1, 2.0, 4.0, "undecided")
    assert found.estimate is not None
    assert (found.estimate.mean, found.estimate.low) == (pytest.approx(2.0), None)
    assert found.note == "no value on one side at seed 0, 2"
    nothing = contrast("qos", {0: 1.0, 1: 3.0}, {})
    assert (nothing.kind, nothing.a, nothing.b, nothing.pairs) == ("none", 2.0, None, 0)
    assert contrast("qos", {}, {}).note == "no value on either side"


@pytest.mark.parametrize(
    ("figure", "wanted"),
    [
        ("ttfp_s.p90", "lower"),
        ("turn_latency_s.p50", "lower"),
        ('waste_tokens{stage="talker"}', "lower"),
        ("stalls", "lower"),
        ("load_imbalance.mean", "lower"),
        ("completed_rps", "higher"),
        ("useful_rps", "higher"),
        ("continuity", "higher"),
        ("slo_attainment", "higher"),
        ('tokens_per_s{stage="talker"}', "higher"),
        ("jct_s.p90", None),
        ("best_effort_jct_s.p90", "lower"),
        ("rtf.p90", None),
        ("audio_rtf.p90", None),
        ("something.else", None),
        ('utilisation{stage="talker"}', None),
        ('responses{status="failed"}', None),
    ],
)
def test_direction(figure: str, wanted: str | None) -> None:
    assert direction(figure) == wanted
