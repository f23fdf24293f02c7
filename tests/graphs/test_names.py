"""A graph and a folder of `models/` make a family known: other rooms ask the graph for its stages' names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import antiphon
from antiphon.core.graph import StageGraph, StageKind
from antiphon.graphs import all_graphs
from antiphon.metrics.tokens import TALKER, WRITER

HOUSE = Path(antiphon.__file__).parent
OWNERS = ("graphs", "models", "checkpoint")
"""Rooms that know families: as data, as code, and as demos and released files."""
NAMED = {
    "assembly/deployment.py": "thinker transcriber",  # examples that a schema shows
    "assembly/resolve.py": "cascade qwen3_omni_moe",  # what is meant where no model is named
    "cli/machine.py": "talker thinker",  # words of an option: who reads and writes, and who speaks
    "core/model_source.py": "thinker transcriber",  # of which models a cascade is made
    "latency/shapes.py": "encoders",  # the tag of a shape
    "metrics/tokens.py": "talker thinker",  # labels of figures, held below
}
"""Files elsewhere that name stages or families, and why."""


def names() -> frozenset[str]:
    """Of families and stages. "text" and "voice" are words for much else."""
    graphs = all_graphs()
    stages = (stage.name for graph in graphs for stage in graph.stages)
    families = (name for graph in graphs for name in (graph.family, *graph.model_types))
    return frozenset((*stages, *families)) - {"text", "voice"}


def test_no_room_above_names_a_stage_or_a_family() -> None:
    known, found = names(), dict[str, str]()
    for path in HOUSE.rglob("*.py"):
        file = path.relative_to(HOUSE)
        if file.parts[0] in OWNERS:
            continue
        tree = ast.parse(path.read_text())
        literals = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        if here := sorted({value for value in literals if isinstance(value, str)} & known):
            found[file.as_posix()] = " ".join(here)
    assert found == NAMED


@pytest.mark.parametrize("graph", all_graphs(), ids=lambda graph: graph.family)
def test_figures_go_by_the_stages_that_make_the_tokens(graph: StageGraph) -> None:
    decoders = [name for name in graph.reply_stages if graph.stage(name).kind is StageKind.AR]
    assert decoders == [WRITER, TALKER][: len(decoders)]
