"""When sessions come."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from antiphon.core.rng import stream
from workload.shapes import drawn, opened, workload


def times(arrivals: dict[str, Any], at_most: int = 5000, **bounds: Any) -> np.ndarray[Any, Any]:
    return np.array([script.arrival_s for script in drawn(opened(arrivals, **bounds), 1, at_most)])


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        ({"poisson": {"rate_per_s": 2}}, 1),
        ({"gamma": {"rate_per_s": 2, "cv": 2.4}}, 2.4),
        ({"gamma": {"rate_per_s": 2, "cv": 0.3}}, 0.3),
        ({"uniform": {"rate_per_s": 2}}, 0),
    ],
    ids=str,
)
def test_rate_and_variation(arrivals: dict[str, Any], cv: float) -> None:
    law = opened(arrivals, sessions=5000).load.open
    assert law is not None
    come = list(islice(law.arrivals.times(stream(1, "arrivals", "load")), 5000))
    assert come[:100] == list(times(arrivals, 100, sessions=5000)), "scripts come when the law says"
    gaps = np.diff(come)
    assert gaps.mean() == pytest.approx(0.5, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-6)
    assert (gaps >= 0).all()


def test_bursts() -> None:
    law = {"size": 4, "every_s": 10, "spread_s": 1, "base_rate_per_s": 0.5}
    come = times({"bursts": law}, duration_s=1000)
    assert (np.diff(come) >= 0).all()
    in_bursts = (come % 10 <= 1).mean()
    assert len(come) == pytest.approx(100 * (4 + 5), rel=0.1)
    assert in_bursts == pytest.approx(4.5 / 9, rel=0.1)
    assert list(times({"bursts": {"size": 3, "every_s": 5}}, sessions=5)) == [0, 0, 0, 5, 5]


def test_on_and_off() -> None:
    law = {"on_s": 10, "off_s": 30, "rate_per_s": 4, "off_rate_per_s": 0.1}
    come = times({"on_off": law}, duration_s=2000)
    assert (np.diff(come) >= 0).all()
    assert (come % 40 < 10).sum() == pytest.approx(2000, rel=0.1)
    assert (come % 40 >= 10).sum() == pytest.approx(150, rel=0.3)


def test_replay_of_given_times() -> None:
    law = {"replay": {"times_s": [0, 1, 5], "speed": 2}}
    assert list(times(law)) == [0, 0.5, 2.5]
    assert list(times(law, sessions=2)) == [0, 0.5]
    assert list(times(law, duration_s=2)) == [0, 0.5]


def test_bounds() -> None:
    come = times({"poisson": {"rate_per_s": 5}}, sessions=50, duration_s=4)
    assert 5 < len(come) < 50
    assert come[-1] < 4


def test_a_closed_load_has_no_arrivals() -> None:
    chosen = workload({"closed": {"concurrency": 2, "duration_s": 9}})
    assert [script.arrival_s for script in drawn(chosen, at_most=20)] == [0] * 20


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ({"poisson": {"rate_per_s": 0}}, "greater than 0"),
        ({"sometimes": {}}, "poisson, uniform, gamma, bursts, on_off, replay"),
        ({"bursts": {"size": 0, "every_s": 5}}, "greater than or equal to 1"),
        ({"bursts": {"size": 1, "every_s": 5, "spread_s": 6}}, "must be below every_s"),
        ({"replay": {"times_s": []}}, "nobody would come"),
        ({"replay": {"times_s": [3, 1]}}, "ascend"),
        ({"replay": {}}, "neither `times_s` nor a `trace`"),
    ],
    ids=str,
)
def test_impossible(arrivals: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        opened(arrivals, sessions=3)
