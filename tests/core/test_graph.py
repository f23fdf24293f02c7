"""A graph is looked up by name."""

from __future__ import annotations

import pytest

from antiphon.core.graph import Edge, Stage, StageGraph, StageKind

A, B = Stage("a", StageKind.ENCODER), Stage("b", StageKind.AR)
GRAPH = StageGraph("toy", (A, B), (Edge("a", "b"),), "toy.module")


def test_stages_and_edges_by_name() -> None:
    assert GRAPH.stage("b") is B
    assert GRAPH.edge("a", "b").chunk == 1
    with pytest.raises(StopIteration):
        GRAPH.stage("c")
