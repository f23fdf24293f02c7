"""Stage graphs, one family a file, data only."""

from __future__ import annotations

from importlib import import_module

from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph

FAMILIES = {"qwen3": "antiphon.graphs.qwen3", "qwen3_omni_moe": "antiphon.graphs.qwen3_omni"}
"""`model_type` of a checkpoint's config.json -> the module that holds its GRAPH."""


def find_graph(family: str) -> StageGraph:
    """The graph of a model family. Raises ConfigError that lists the families there are."""
    if family not in FAMILIES:
        raise ConfigError(f"unknown model family {family!r}; known: {', '.join(sorted(FAMILIES))}")
    return import_module(FAMILIES[family]).GRAPH
