"""A stage's groups: the graph's, with its layers split as configured."""

from __future__ import annotations

import pytest

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.graphs import find_graph
from antiphon.stage.groups import kv_groups

THINKER, TALKER = (find_graph("qwen3_omni_moe").stage(name) for name in ("thinker", "talker"))
SPLIT = ArConfig(layer_groups=(("low", 0, 1), ("high", 1, 4)))


def test_one_group_unless_configured() -> None:
    assert kv_groups(THINKER, ArConfig()) == ("kv", "hidden")
    assert kv_groups(TALKER, ArConfig()) == ("kv",)


def test_payloads_stay_beside() -> None:
    assert kv_groups(THINKER, SPLIT) == ("low", "high", "hidden")
    assert kv_groups(TALKER, SPLIT) == ("low", "high")


def test_a_payload_keeps_its_name_to_itself() -> None:
    config = ArConfig(layer_groups=(("hidden", 0, 4),))
    assert kv_groups(TALKER, config) == ("hidden",)
    with pytest.raises(ConfigError, match="thinker: \\['hidden'\\] are groups of their own"):
        kv_groups(THINKER, config)
