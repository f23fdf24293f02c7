"""Reads the server's own counters out of a run's samples: Prometheus keys, increases, gauges by label."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric, parse_key


def increases(samples: Sequence[ServerSampled], metric: Metric) -> dict[str, float]:
    """By how much a counter rose from the first sample to the last, by stage ("" where it has none).

    Nodes (and any other label) are summed. A counter that falls has begun anew with its server, and its new
    value counts whole. Absent: counters that fewer than two samples show.
    """
    series: dict[str, list[float]] = {}
    for sample in samples:
        for key, value in sample.values.items():
            if parse_key(key)[0] == metric:
                series.setdefault(key, []).append(value)
    total: dict[str, float] = {}
    for key, values in series.items():
        if len(values) > 1:
            stage = parse_key(key)[1].get("stage", "")
            total[stage] = total.get(stage, 0.0) + _increase(values)
    return total


def sampled_s(samples: Sequence[ServerSampled]) -> float:
    """Seconds from the first sample to the last."""
    return samples[-1].t_s - samples[0].t_s if samples else 0.0


def _increase(values: Sequence[float]) -> float:
    return sum(b - a if b >= a else b for a, b in pairwise(values))
