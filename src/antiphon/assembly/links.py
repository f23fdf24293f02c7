"""Between which processes payloads go, and by which connector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from antiphon.core.config import LinkOptions, Unit
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph, StageKind


def peers_of(
    graph: StageGraph, units: Sequence[Unit], links: Sequence[LinkOptions]
) -> dict[frozenset[str], str]:
    """Pairs of processes that exchange payloads, other than the one that decides, with their connectors.
    Raises ConfigError for a pair that two links join in different ways."""
    chosen = {(link.source, link.target): link.connector for link in links}
    ends = [(edge.source, edge.target) for edge in graph.edges]
    ends += [(stage.name, stage.name) for stage in graph.stages]
    peers: dict[frozenset[str], str] = {}
    for source, target in ends:
        connector = chosen.get((source, target), "shared_memory")
        for pair in _joined(graph, units, source, target):
            if peers.setdefault(pair, connector) != connector:
                raise ConfigError(
                    f"processes {' and '.join(sorted(pair))} are joined once; give all that goes between "
                    "them one connector"
                )
    return peers


def idle(graph: StageGraph, units: Sequence[Unit], source: str, target: str) -> str:
    """Why no connector can be chosen there, for people; empty where one can."""
    if _joined(graph, units, source, target):
        return ""
    places = [{unit.process for unit in units if unit.stage == stage} for stage in (source, target)]
    if not _carries(graph, source, target):
        return f"what {source} hands to {target} goes through the process that decides"
    if len(places[0] | places[1]) < 2:
        return "both stages are in one process; nothing crosses there"
    return "the shared process is joined to all others by shared memory; give both stages other processes"


def _joined(graph: StageGraph, units: Sequence[Unit], source: str, target: str) -> list[frozenset[str]]:
    if not _carries(graph, source, target):
        return []
    is_move = source == target
    senders, takers = (
        [unit.process for unit in units if unit.stage == stage and (not is_move or unit.role == role)]
        for stage, role in ((source, "prefill"), (target, "decode"))
    )
    return [frozenset((a, b)) for a, b in product(senders, takers) if a and b and a != b]


def _carries(graph: StageGraph, source: str, target: str) -> bool:
    """Do payloads go straight from the one to the other? What a split stage hands to itself is its KV."""
    if source == target:
        return True
    edge = graph.edge(source, target)
    return graph.stage(source).kind is StageKind.ENCODER or edge.prompt_group is not None
