"""Stage graphs, one family a file, data only: a file in this folder is all that makes a family known."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pkgutil import iter_modules

from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph


def all_graphs() -> tuple[StageGraph, ...]:
    """GRAPH of every module in this folder, by the modules' names."""
    names = sorted(module.name for module in iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}").GRAPH for name in names)


def model_types() -> tuple[str, ...]:
    """What a checkpoint's config.json may say it is."""
    return tuple(sorted(kind for graph in all_graphs() for kind in graph.model_types))


def find_graph(name: str) -> StageGraph:
    """The graph of a family, or of a checkpoint's `model_type`. Raises ConfigError that lists the types."""
    for graph in all_graphs():
        if name in (graph.family, *graph.model_types):
            return graph
    raise ConfigError(f"unknown model type {name!r}; known: {', '.join(model_types())}")


def graph_with(stages: Collection[str]) -> StageGraph:
    """The graph of the family that has these stages and no other. Raises ConfigError."""
    for graph in all_graphs():
        if {stage.name for stage in graph.stages} == set(stages):
            return graph
    known = "; ".join(", ".join(stage.name for stage in graph.stages) for graph in all_graphs())
    raise ConfigError(f"no family has the stages {', '.join(stages)} and no other; there are: {known}")
