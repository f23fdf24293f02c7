"""Laws draw what they say, and refuse what can't be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from antiphon.core.rng import stream
from antiphon.workload.fitted import QUANTILES
from antiphon.workload.laws import Law, pick
from antiphon.workload.trace_tables import quantile_tables
from workload.shapes import TRACES, needs_traces

LAW = TypeAdapter[Any](Law)


def sample(law: Any, num: int = 20_000) -> np.ndarray[Any, Any]:
    chosen, rng = LAW.validate_python(law), stream(3, "law")
    return np.array([chosen.draw(rng) for _ in range(num)])


def test_constant() -> None:
    assert set(sample(2.5, 10)) == {2.5}
    assert set(sample({"constant": 0}, 10)) == {0}


@pytest.mark.parametrize(
    ("law", "mean", "cv"),
    [
        ({"uniform": [1, 3]}, 2, 1 / np.sqrt(12)),
        ({"exponential": {"mean": 2}}, 2, 1),
        ({"gamma": {"mean": 3, "cv": 0.5}}, 3, 0.5),
        ({"gamma": {"mean": 3, "cv": 2}}, 3, 2),
        ({"choice": {"values": [1, 5], "weights": [3, 1]}}, 2, np.sqrt(3) / 2),
        ({"choice": {"values": [1, 5]}}, 3, 2 / 3),
    ],
    ids=str,
)
def test_mean_and_variation(law: Any, mean: float, cv: float) -> None:
    values = sample(law)
    assert values.mean() == pytest.approx(mean, rel=0.06)
    assert values.std() / values.mean() == pytest.approx(cv, rel=0.08)


def test_lognormal() -> None:
    assert np.percentile(sample({"lognormal": {"median": 2, "p90": 7}}), [50, 90]) == pytest.approx(
        [2, 7], rel=0.05
    )


def test_quantiles() -> None:
    values = sample({"quantiles": {5: 0, 50: 10, 95: 100}})
    assert np.percentile(values, [25, 50, 75]) == pytest.approx([40 / 9, 10, 60], rel=0.05)
    assert (values.min(), values.max()) == (0, 100)


@pytest.mark.parametrize("name", sorted(QUANTILES))
def test_fits_are_tables_that_rise(name: str) -> None:
    values = [QUANTILES[name][percentile] for percentile in sorted(QUANTILES[name])]
    assert values == sorted(values)
    assert np.median(sample({"fitted": name}, 4000)) == pytest.approx(QUANTILES[name][50], rel=0.15)


def test_pick_follows_the_weights() -> None:
    rng = stream(0, "pick")
    counts = np.bincount([pick((1.0, 0.0, 3.0), rng) for _ in range(4000)], minlength=3)
    assert counts[1] == 0
    assert counts[2] / counts[0] == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (-1, "greater than or equal to 0"),
        ("3", "expected a number or a law"),
        (True, "expected a number or a law"),
        ({"normal": 3}, "constant, uniform, exponential"),
        ({"constant": 1, "uniform": [1, 2]}, "expected a number or a law"),
        ({"uniform": [3, 1]}, "goes from 3 down to 1"),
        ({"uniform": [1]}, "Field required"),
        ({"exponential": {"mean": 0}}, "greater than 0"),
        ({"exponential": {"mean": float("nan")}}, "finite"),
        ({"exponential": {"mean": "2"}}, "'2' is not a number"),
        ({"exponential": {"mean": 2, "cv": 1}}, "Extra inputs"),
        ({"lognormal": {"median": 2, "p90": 1}}, "below the median"),
        ({"quantiles": {50: 1}}, "at least 2"),
        ({"quantiles": {10: 2, 50: 1}}, "must not fall"),
        ({"quantiles": {10: 2, 150: 3}}, "less than or equal to 100"),
        ({"choice": {"values": []}}, "at least 1"),
        ({"choice": {"values": [1, 2], "weights": [1]}}, "2 values but 1 weights"),
        ({"choice": {"values": [1, 2], "weights": [0, 0]}}, "sum to zero"),
        ({"fitted": "nothing"}, "unknown fit 'nothing'; known: ami_gap_s"),
    ],
    ids=str,
)
def test_what_is_no_law(law: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words.replace("(", r"\(")):
        LAW.validate_python(law)


@needs_traces
@pytest.mark.parametrize(
    ("name", "measure"),
    [
        ("english_turn_s", "turn_duration_english"),
        ("english_turn_words", "words_per_turn_english"),
        ("english_words_per_s", "words_per_second_english"),
        ("ami_overlap_s", "overlapped_segment_duration"),
        ("english_gap_s", "question_answer_offset_english"),
        ("ami_gap_s", "floor_transfer_offset_dyadic10s"),
    ],
)
def test_fits_of_human_timing(name: str, measure: str) -> None:
    measured = quantile_tables(TRACES / "turn_taking_quantiles.csv")[measure]
    for percentile in (10, 25, 50, 75, 90, 95):
        assert QUANTILES[name][percentile] == pytest.approx(measured[percentile], rel=0.03, abs=0.01)
