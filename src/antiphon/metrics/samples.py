"""What the server's own counters tell of a run: how evenly work lies over nodes and over time, and what the
past of a session saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric, parse_key
from antiphon.metrics.rows import ResponseRow

LOAD = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING)


def increases(samples: Sequence[ServerSampled], metric: Metric) -> dict[str, float]:
    """By how much a counter rose from the first sample to the last, by stage ("" where it has none).

    Nodes (and any other label) are summed. A counter that falls has begun anew with its server, and its new
    value counts whole. Absent: counters that fewer than two samples show.
    """
    series: dict[str, list[float]] = {}
    for sample in samples:
        for key, value in sample.values.items():
            if key.partition("{")[0] == metric:
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


def imbalance(loads: Sequence[float]) -> float | None:
    """The highest load over the median load: 1 is even. SYMPHONY §4.3. None: fewer than two nodes, or a
    median of nothing."""
    if len(loads) < 2 or not np.median(loads):
        return None
    return float(max(loads) / np.median(loads))


def node_loads(sample: ServerSampled) -> dict[str, float]:
    """Requests running and waiting on each node, all stages together; nodes by the label `node` (or
    `replica`)."""
    loads: dict[str, float] = {}
    for key, value in sample.values.items():
        name, labels = parse_key(key)
        node = labels.get("node", labels.get("replica"))
        if name in LOAD and node is not None:
            loads[node] = loads.get(node, 0.0) + value
    return loads


def load_imbalance(samples: Sequence[ServerSampled]) -> list[float]:
    """`imbalance` at each sample that shows two nodes or more."""
    each = (imbalance(list(node_loads(sample).values())) for sample in samples)
    return [value for value in each if value is not None]


def utilisation(samples: Sequence[ServerSampled]) -> dict[str, float]:
    """Device seconds in steps per second of wall time, by stage, from the first sample to the last. Nodes add
    up, so more than 1 is possible."""
    wall_s = sampled_s(samples)
    return (
        {stage: s / wall_s for stage, s in increases(samples, Metric.STEP_SECONDS).items()} if wall_s else {}
    )


def cached_share(rows: Iterable[ResponseRow]) -> list[float]:
    """Per response, the share of its prompt's tokens that was in the KV cache already."""
    return [cached / prompt for cached, prompt in _prompts(rows)]


def cache_hit_share(rows: Iterable[ResponseRow]) -> float | None:
    """The share of all prompts' tokens that was in the KV cache. None: no usage speaks of cached tokens."""
    prompts = _prompts(rows)
    return sum(cached for cached, _ in prompts) / sum(prompt for _, prompt in prompts) if prompts else None


def reload_s(samples: Sequence[ServerSampled]) -> float | None:
    """Reload on the path: seconds that responses waited for KV copies before their first token, all together.
    LiveServe §7.3, Figure 16 right. None: the server does not export it."""
    waited = increases(samples, Metric.RELOAD_SECONDS)
    return sum(waited.values()) if waited else None


def resume_s(samples: Sequence[ServerSampled]) -> float | None:
    """Seconds that preempted responses waited for KV copies before they went on (TokenFlow §7.6). None: the
    server does not export it."""
    waited = increases(samples, Metric.RESUME_SECONDS)
    return sum(waited.values()) if waited else None


def _prompts(rows: Iterable[ResponseRow]) -> list[tuple[int, int]]:
    return [
        (row.cached_tokens, row.input_tokens)
        for row in rows
        if row.cached_tokens is not None and row.input_tokens
    ]
