"""Loads an engine wherever its units live: in this process, in others, or in both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from antiphon.assembly.links import idle, peers_of
from antiphon.assembly.preset import is_path, read_preset
from antiphon.assembly.times import with_profile
from antiphon.assembly.units import units_of
from antiphon.core.config import EngineOptions
from antiphon.core.errors import ConfigError
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
    with_calls,
)
from antiphon.engine.load import load_engine as load_inline
from antiphon.latency.finding import find_costs
from antiphon.latency.roofline import datasheet_name
from antiphon.runtime.fleet import Fleet
from antiphon.runtime.ipc_messages import Begin
from antiphon.runtime.local_units import LocalUnits
from antiphon.runtime.stage_processes import StageProcesses


def load_engine(source: str, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Load a checkpoint, wherever its units live; preset and profile are read before the weights. Raises
    CheckpointError or ConfigError, and AntiphonError where a process of units cannot start; nothing is left
    behind then."""
    if not is_path(options.preset):
        read_preset(options.preset)  # a name that is wrong is told before anything is fetched
    opened = open_source(source, options, progress)
    options = opened.options
    policies, times = read_preset(options.preset), _times(opened, options)
    engine = (_load_apart if options.is_apart else load_inline)(opened, options, name, progress)
    node = msgspec.structs.replace(engine.node, policies=policies, times=times, classes=options.classes)
    return replace(engine, node=node)


def _times(opened: Opened, options: EngineOptions) -> dict[str, Any]:
    """`NodeConfig.times`, by the profile that the options name."""
    if not options.profile:
        return {}
    is_datasheet = datasheet_name(options.profile) is not None
    shape = opened.family.read_shape(opened.config, "") if is_datasheet else None
    costs = find_costs(options.profile, shape)
    if options.link_gb_s is not None:
        costs = costs.with_host_link(options.link_gb_s * 1e9)
    return with_profile(opened.node, costs).times


def _load_apart(opened: Opened, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Its units are in processes of their own, or some of them."""
    check_places(opened, options)
    check_room(opened)
    processes = processes_of(opened, options)
    try:
        processes.start()
        local = LocalUnits(load_units(opened, options, "", progress))
        processes.wait_until_ready(progress)
        depth = pick_depth(options.depth, opened.device)
        entry = next(name for name in opened.node.ar if name != opened.graph.transcriber)
        writers = tuple(unit.name for unit in opened.node.placed if unit.stage == entry)
        fleet = Fleet(opened.node, local, processes, depth, writers)
        prompter = load_prompter(opened, options)
    except BaseException:
        processes.close()
        raise
    return Engine(
        fleet.executors,
        fleet,
        fleet,
        prompter,
        with_calls(opened.node, prompter),
        model_info(opened, options, name, prompter),
        wakeup=fleet,
        processes=fleet,
        guides=fleet,
    )


def check_places(opened: Opened, options: EngineOptions) -> None:
    """Raises ConfigError for a process or a stage that options name and the model's units don't have, and for
    a link over which nothing goes."""
    units_of(opened.graph, opened.node)
    used = {unit.process for unit in opened.node.placed} - {""}
    if unknown := [each.name for each in options.processes if each.name not in used]:
        raise ConfigError(f"processes: no unit lives in {unknown[0]!r}; units name {', '.join(sorted(used))}")
    split = {unit.stage: None for unit in opened.node.placed if unit.role != "both"}
    for stage in split:
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
                raise ConfigError(f"links: {stage!r} is not a stage; stages are {known}")
        if link.source != link.target or link.source not in split:
            opened.graph.changed(link.source, link.target)
        if why := idle(opened.graph, opened.node.placed, link.source, link.target):
            raise ConfigError(f"link {link.source} -> {link.target}: {why}")


def processes_of(opened: Opened, options: EngineOptions) -> StageProcesses:
    """Not started yet."""
    units: dict[str, tuple[str, ...]] = {}
    for unit in opened.node.placed:
        if unit.process:
            units[unit.process] = (*units.get(unit.process, ()), unit.name)
    source, peers = opened.checkpoint.source, peers_of(opened.graph, opened.node.placed, options.links)

    def begin(process: str, born: int) -> Begin:
        return Begin(source, options, process, born)

    return StageProcesses(units, peers, begin, options)
