"""The graph says what the model is: edges join stages that exist, a payload group is its source's."""

from __future__ import annotations

import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageKind, Survives
from antiphon.graphs import FAMILIES, find_graph
from antiphon.graphs.qwen3_omni import GRAPH


def test_edges_join_stages_in_pipeline_order() -> None:
    names = [stage.name for stage in GRAPH.stages]
    assert len(set(names)) == len(names)
    for edge in GRAPH.edges:
        assert names.index(edge.source) < names.index(edge.target)
        assert 1 <= edge.first_chunk <= edge.chunk
        if edge.prompt_group is not None:
            assert edge.prompt_group in [group.name for group in GRAPH.stage(edge.source).groups]


def test_decoders_have_kv_and_say_what_survives() -> None:
    for stage in GRAPH.stages:
        assert bool(stage.groups) == (stage.kind is StageKind.AR)
    assert GRAPH.stage("thinker").survives is Survives.ALL
    assert GRAPH.stage("talker").survives is Survives.PROMPT
    assert GRAPH.stage("talker").conditioned


def test_graphs_are_found_by_family() -> None:
    assert all(find_graph(name).family == name for name in FAMILIES)
    with pytest.raises(ConfigError, match="unknown model family 'parrot'; known: qwen3, qwen3_omni_moe"):
        find_graph("parrot")
