"""A graph is looked up by name."""

from __future__ import annotations

import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.graph import Edge, Stage, StageGraph, StageKind

A, B = Stage("a", StageKind.ENCODER), Stage("b", StageKind.AR)
GRAPH = StageGraph("toy", (A, B), (Edge("a", "b"),), "toy.module")


def test_stages_and_edges_by_name() -> None:
    assert GRAPH.stage("b") is B
    assert GRAPH.edge("a", "b").chunk == 1
    with pytest.raises(StopIteration):
        GRAPH.stage("c")


SPOKEN = StageGraph(
    "toy",
    (A, B, Stage("c", StageKind.CODEC)),
    (Edge("a", "b"), Edge("b", "c", first_chunk=2, chunk=4, credit=8)),
)


def test_an_edge_that_is_changed_leaves_the_rest() -> None:
    changed = SPOKEN.changed("b", "c", chunk=3, credit=6)
    assert changed.edge("b", "c") == Edge("b", "c", first_chunk=2, chunk=3, credit=6)
    assert changed.edge("a", "b") is SPOKEN.edge("a", "b")
    assert SPOKEN.edge("b", "c").chunk == 4
    assert SPOKEN.changed("a", "b") == SPOKEN


@pytest.mark.parametrize(
    ("edge", "chosen", "why"),
    [
        (("a", "c"), {"chunk": 2}, "edges: this model has no a -> c; it has a -> b, b -> c"),
        (("a", "b"), {"chunk": 2, "credit": 3}, "edge a -> b: chunk, credit are for a codec, which b is not"),
        (("b", "c"), {"chunk": 9}, "edge b -> c: a chunk is more than its credit (8)"),
        (("b", "c"), {"credit": 3}, "edge b -> c: a chunk is more than its credit (3)"),
    ],
)
def test_an_edge_is_changed_as_it_can_be(edge: tuple[str, str], chosen: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SPOKEN.changed(*edge, **chosen)
    assert why in str(caught.value)


def test_credit_is_a_chunk_at_least() -> None:
    with pytest.raises(ValueError, match="credit 3 is less than a chunk"):
        Edge("a", "b", chunk=4, credit=3)
