"""One metric, one name, one description."""

from __future__ import annotations

import re

from antiphon.metrics.names import DESCRIPTIONS, Metric
from fakes.world import World, toy_config


def test_every_metric_is_described_and_named_as_prometheus_wants() -> None:
    assert set(DESCRIPTIONS) == set(Metric)
    assert all(re.fullmatch(r"antiphon_[a-z_]+", metric.value) for metric in Metric)
    assert Metric.KV_BLOCKS.of("thinker") == 'antiphon_kv_blocks{stage="thinker"}'


def test_a_node_reports_only_known_names() -> None:
    stats = World(toy_config()).node.stats()
    assert {name.split("{")[0] for name in stats} <= {metric.value for metric in Metric}
    assert stats[Metric.KV_BLOCKS_FREE.of("talker")] == stats[Metric.KV_BLOCKS.of("talker")] == 24
