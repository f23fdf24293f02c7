"""Can the simulated engine serve the workload at all? A model of text neither hears, sees nor speaks."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.config import NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.graphs import find_graph
from antiphon.workload.load import named, names
from antiphon.workload.spec import Workload


def check_suited(workload: Workload, node: NodeConfig) -> None:
    """Raises ConfigError that names the people whom the node cannot serve."""
    problems = list(unsuited(workload, node))
    if problems:
        fitting = [name for name in names() if not list(unsuited(named(name), node))]
        raise ConfigError(
            f"workload {workload.name}: {'; '.join(problems)}. Workloads that suit it: {', '.join(fitting)}; "
            "in one of your own say `typed: 1` and `replies: text` of those people, and no `pictures` "
            "or `clips`"
        )


def unsuited(workload: Workload, node: NodeConfig) -> Iterator[str]:
    """What people of the workload do that the node cannot serve, a clause each."""
    graph = find_graph(node.graph)
    has_voice = any(graph.stage(unit.stage).speaks for unit in node.placed)
    for name, people in workload.people.items():
        if not people.share:
            continue
        if people.speaks and not node.encoder:
            yield f"group {name} speaks, and the model does not hear"
        if people.shows and not (node.encoder and graph.sees):
            yield f"group {name} shows pictures or clips, and the model does not see"
        if people.listens and not has_voice:
            yield f"group {name} wants spoken replies, and the model has no voice"
