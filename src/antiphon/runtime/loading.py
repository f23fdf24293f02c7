"""Loads an engine wherever its units live: in this process, in others, or in both."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.assembly.units import units_of
from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph, StageKind
from antiphon.engine.device import pick_depth
from antiphon.engine.load import (
    Engine,
    Opened,
    Progress,
    check_room,
    load_prompter,
    load_units,
    model_info,
    open_source,
)
from antiphon.engine.load import load_engine as load_inline
from antiphon.runtime.crossings import Begin
from antiphon.runtime.fleet import Fleet
from antiphon.runtime.local_units import LocalUnits
from antiphon.runtime.stage_processes import StageProcesses


def load_engine(source: str, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Load a checkpoint, wherever its units live. Raises CheckpointError or ConfigError, and AntiphonError
    where a process of units cannot start; nothing is left behind then."""
    if not options.is_apart:
        return load_inline(source, options, name, progress)
    opened = open_source(source, options, progress)
    check_places(opened, options)
    check_room(opened)
    processes = processes_of(opened, options)
    try:
        processes.start()
        local = LocalUnits(load_units(opened, options, "", progress))
        processes.wait_until_ready(progress)
        fleet = Fleet(opened.node, local, processes, pick_depth(options.depth, opened.device))
        prompter = load_prompter(opened, options)
    except BaseException:
        processes.close()
        raise
    return Engine(
        fleet.executors,
        fleet,
        fleet,
        prompter,
        opened.node,
        model_info(opened, options, name),
        wakeup=fleet,
        processes=fleet,
    )


def check_places(opened: Opened, options: EngineOptions) -> None:
    """Raises ConfigError for a process or a stage that options name and the model's units don't have."""
    units_of(opened.graph, opened.node)
    used = {unit.process for unit in opened.node.placed} - {""}
    if unknown := [each.name for each in options.processes if each.name not in used]:
        raise ConfigError(f"processes: no unit lives in {unknown[0]!r}; units name {', '.join(sorted(used))}")
    for stage in {unit.stage: None for unit in opened.node.placed if unit.role != "both"}:
        places = {unit.process for unit in opened.node.placed if unit.stage == stage}
        if "" in places and len(places) > 1:
            raise ConfigError(
                f"units: stage {stage} is split, and some of it lives in the engine's own process; "
                "give each of its units a process, or none"
            )
    stages = {unit.stage for unit in opened.node.placed}
    for link in options.links:
        for stage in (link.source, link.target):
            if stage not in stages:
                known = ", ".join(sorted(stages))
                raise ConfigError(f"links: {stage!r} is no stage; stages are {known}")


def processes_of(opened: Opened, options: EngineOptions) -> StageProcesses:
    """Not started yet."""
    units: dict[str, tuple[str, ...]] = {}
    for unit in opened.node.placed:
        if unit.process:
            units[unit.process] = (*units.get(unit.process, ()), unit.name)
    source, peers = str(opened.checkpoint.path), peers_of(opened.graph, opened.node, options)

    def begin(process: str, born: int) -> Begin:
        return Begin(source, options, process, born)

    return StageProcesses(units, peers, begin, options)


def peers_of(graph: StageGraph, node: NodeConfig, options: EngineOptions) -> dict[frozenset[str], str]:
    """Pairs of processes between which payloads go, other than the engine's, with their connectors."""
    chosen = {(link.source, link.target): link.connector for link in options.links}
    peers: dict[frozenset[str], str] = {}
    for edge in graph.edges:
        if graph.stage(edge.source).kind is not StageKind.ENCODER and edge.prompt_group is None:
            continue
        for pair in _pairs(node, edge.source, edge.target):
            _join(peers, pair, chosen.get((edge.source, edge.target), "shared_memory"))
    for stage in graph.stages:
        for pair in _moving_pairs(node, stage.name):
            _join(peers, pair, chosen.get((stage.name, stage.name), "shared_memory"))
    return peers


def _join(peers: dict[frozenset[str], str], pair: frozenset[str], connector: str) -> None:
    if peers.setdefault(pair, connector) != connector:
        between = " and ".join(sorted(pair))
        raise ConfigError(f"links: processes {between} are joined once; give their links one connector")


def _moving_pairs(node: NodeConfig, stage: str) -> Iterator[frozenset[str]]:
    """Processes between which KV of a stage is moved."""
    places = {role: _places(node, stage, role) for role in ("prefill", "decode")}
    return (frozenset((a, b)) for a in places["prefill"] for b in places["decode"] if a != b)


def _places(node: NodeConfig, stage: str, role: str) -> list[str]:
    return [unit.process for unit in node.placed if unit.stage == stage and unit.role == role]


def _pairs(node: NodeConfig, source: str, target: str) -> Iterator[frozenset[str]]:
    places = [[unit.process for unit in node.placed if unit.stage == stage] for stage in (source, target)]
    return (frozenset((a, b)) for a in places[0] for b in places[1] if a and b and a != b)
