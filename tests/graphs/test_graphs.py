"""A graph says what a model is: edges join stages that exist, a payload group is its source's."""

from __future__ import annotations

import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph, StageKind, Survives
from antiphon.graphs import all_graphs, find_graph, graph_with, model_types

GRAPHS = pytest.mark.parametrize("graph", all_graphs(), ids=lambda graph: graph.family)


@GRAPHS
def test_edges_join_stages_in_pipeline_order(graph: StageGraph) -> None:
    names = [stage.name for stage in graph.stages]
    assert len(set(names)) == len(names)
    for edge in graph.edges:
        assert names.index(edge.source) < names.index(edge.target)
        assert min(edge.first_chunk, edge.chunk) >= 1
        if edge.prompt_group is not None:
            assert edge.prompt_group in [group.name for group in graph.stage(edge.source).groups]
        assert edge.prompt_group is not None or not edge.streams


@GRAPHS
def test_a_codec_holds_its_speaker_back(graph: StageGraph) -> None:
    for edge in graph.edges:
        if graph.stage(edge.target).kind is StageKind.CODEC:
            assert edge.credit is not None
            assert edge.credit >= edge.first_chunk + edge.chunk, "one is made while the other is decoded"


@GRAPHS
def test_who_takes_media_says_what_tokens_it_makes_of_them(graph: StageGraph) -> None:
    assert graph.takes_media == (graph.audio_tokens_per_s > 0)
    sees = graph.takes_media and graph.transcriber is None
    assert sees == (graph.token_pixels > 1), "who is told in writing what is said sees nothing"


@GRAPHS
def test_decoders_have_kv_and_say_what_survives(graph: StageGraph) -> None:
    for stage in graph.stages:
        assert bool(stage.groups) == (stage.kind is StageKind.AR)
        assert stage.kind is StageKind.CODEC or not stage.windowed
    assert graph.stage("thinker").survives is Survives.ALL
    assert graph.has_voice == (len(graph.stages) > 1)
    if graph.transcriber is not None:
        assert graph.stage(graph.transcriber).survives is Survives.NONE
        assert graph.transcriber not in graph.reply_stages
        assert graph.stage("voice").reads
        assert graph.stage("voice").speaks
    elif graph.has_voice:
        shown = graph.edge("thinker", "talker").prompt_group is not None
        assert graph.stage("talker").survives is (Survives.PROMPT if shown else Survives.NONE)
        assert graph.stage("talker").conditioned


def test_graphs_are_found_by_family_and_by_model_type() -> None:
    assert all(name in find_graph(name).model_types for name in model_types())
    assert len(set(model_types())) == len(model_types())
    assert find_graph("text") is find_graph("llama")
    assert [graph.takes_media for graph in all_graphs()] == [True, True, True, True, False]
    with pytest.raises(
        ConfigError, match=r"unknown model type 'parrot'; known: cascade, llama, qwen2, .*qwen3_omni_moe"
    ):
        find_graph("parrot")


@GRAPHS
def test_a_family_is_known_by_its_stages(graph: StageGraph) -> None:
    assert graph_with([stage.name for stage in reversed(graph.stages)]) == graph


def test_stages_of_no_family() -> None:
    with pytest.raises(ConfigError, match="no family has the stages thinker, talker and no other"):
        graph_with(["thinker", "talker"])
