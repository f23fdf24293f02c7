"""How evenly work lies: over nodes, and over time on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric, parse_key
from antiphon.metrics.samples import increases, sampled_s

LOAD = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING)


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
