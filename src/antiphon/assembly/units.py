"""A node's units: what its configuration says, or one of each stage on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

from antiphon.assembly.preset import OF_ANY_STAGE, Preset
from antiphon.assembly.registry import DECISIONS
from antiphon.assembly.times import NodeTimes
from antiphon.core.config import EncoderConfig, NodeConfig, Unit, UnitRole
from antiphon.core.errors import ConfigError
from antiphon.core.graph import Stage, StageGraph, StageKind
from antiphon.flow.stages import Scheduler
from antiphon.graphs import find_graph
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.next_use import NextUseTimes
from antiphon.stage.ar import ArScheduler
from antiphon.stage.candidates import RowsInUse, Surroundings
from antiphon.stage.codec import CodecScheduler
from antiphon.stage.encode import EncodeScheduler

NO_ENCODER = Unit("", "")
"""Of a graph without encoders: nobody wants media."""


def units_of(graph: StageGraph, config: NodeConfig) -> tuple[Unit, ...]:
    """In pipeline order, those of stages that the checkpoint lacks (it has no voice) left out.

    Raises ConfigError for a unit of no stage, a stage without units, two units of one name, two encoders in
    one process, and roles that leave a part of the work to nobody.
    """
    held = {*config.encoder, *config.ar, *config.codec}
    stages = [stage.name for stage in graph.stages if stage.name in held]
    units = config.placed
    names = Counter(unit.name for unit in units)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"units: {', '.join(twice)} are named more than once")
    for unit in units:
        if unit.stage not in stages:
            known = ", ".join(stages)
            raise ConfigError(f"unit {unit.name!r}: {unit.stage!r} is not a stage; stages are {known}")
    if missing := [name for name in stages if name not in {unit.stage for unit in units}]:
        raise ConfigError(f"units: none of stage {', '.join(missing)}")
    encoders = Counter(unit.process for unit in units if unit.stage in config.encoder)
    if crowded := [process for process, count in encoders.items() if count > 1]:
        raise ConfigError(f"units: process {crowded[0]!r} has more than one encoder; it needs one only")
    for name in stages:
        _check_roles(graph.stage(name), {unit.role for unit in units if unit.stage == name})
    order = sorted(units, key=lambda unit: stages.index(unit.stage))
    return tuple(order) if config.encoder else (NO_ENCODER, *order)


def _check_roles(stage: Stage, roles: set[UnitRole]) -> None:
    """Blocks and KV groups are the stage's, so they are the same wherever KV is moved to."""
    if roles == {"both"}:
        return
    if stage.kind is not StageKind.AR or stage.conditioned or stage.transcribes:
        raise ConfigError(f"units: stage {stage.name} cannot be split into prefill and decode; use both")
    if roles != {"prefill", "decode"}:
        found = ", ".join(sorted(roles))
        raise ConfigError(
            f"units: those of stage {stage.name} are {found}; they must all be both, or some prefill and "
            "some decode"
        )


def graph_of(config: NodeConfig) -> StageGraph:
    """The family's graph, with the chunks and the credit that were chosen. Raises ConfigError."""
    graph = find_graph(config.graph)
    for edge in config.edges:
        graph = graph.changed(edge.source, edge.target, **edge.chosen)
    return graph


def maker(
    graph: StageGraph,
    config: NodeConfig,
    preset: Preset,
    frontier: Frontier,
    next_use: NextUseTimes,
    times: NodeTimes,
) -> Callable[[Unit], Scheduler]:
    """Makes a unit's scheduler, bare: when a node begins, and when a unit is lost."""
    tickets, rows = count(), RowsInUse()
    reply_stages = [name for name in graph.reply_stages if name in (*config.ar, *config.codec)]
    codecs = {one.name for one in graph.stages if one.kind is StageKind.CODEC and not one.reads}
    gathering = [edge for edge in graph.edges if edge.target in codecs]

    def make(unit: Unit) -> Scheduler:
        if unit is NO_ENCODER:
            return EncodeScheduler("", EncoderConfig(), preset.policies(unit, ()))
        stage = graph.stage(unit.stage)
        policies = preset.policies(unit, DECISIONS if stage.kind is StageKind.AR else OF_ANY_STAGE)
        place = reply_stages.index(stage.name) if stage.name in reply_stages else None
        cost, lanes = times.steps(unit), times.lanes(unit)
        beside = times.beside(unit)
        around = Surroundings(frontier, place, config.classes, cost, lanes, rows, beside)
        match stage.kind:
            case StageKind.ENCODER:
                return EncodeScheduler(unit.name, config.encoder[stage.name], policies, around)
            case StageKind.AR:
                for edge in () if place is None else gathering:
                    preset.check_leads(unit, edge, graph.frame_s)
                ar = ArScheduler(stage, config.ar[stage.name], policies, unit.name, tickets, around)
                ar.tiers.asks.meet(next_use)
                return ar
            case StageKind.CODEC:
                edge = next(edge for edge in graph.edges if edge.target == stage.name)
                return CodecScheduler(
                    unit.name,
                    config.codec[stage.name],
                    edge,
                    policies,
                    windowed=stage.windowed,
                    reads=stage.reads,
                    around=around,
                )

    return make
