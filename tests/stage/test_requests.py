"""What a decoder stage's requests are made of: KV groups as configured, and columns that grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.graphs import find_graph
from antiphon.stage.requests import GrowingInts, kv_groups

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


INTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)


@given(INTS, st.lists(INTS, max_size=8))
def test_it_is_what_was_appended_and_views_stay(first: list[int], more: list[list[int]]) -> None:
    given_keys = np.array(first, np.int64)
    column, whole = GrowingInts(given_keys), list(first)
    views = [(column.view, list(whole))]
    for values in more:
        column.extend(values)
        whole += values
        views.append((column.view, list(whole)))
    assert len(column) == len(whole)
    for view, expected in views:
        assert view.tolist() == expected
    assert given_keys.tolist() == first
