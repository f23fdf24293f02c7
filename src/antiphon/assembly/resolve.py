"""From what an operator wrote to what engine and server are given, with all that is wrong in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.assembly.deployment import Deployment, WrittenEdge
from antiphon.assembly.footprint import ModelFacts
from antiphon.assembly.links import idle, peers_of
from antiphon.assembly.placement import Machine, Placement, place
from antiphon.assembly.preset import read_preset
from antiphon.assembly.session_size import Rates, rates_of
from antiphon.assembly.sizing import USUAL, Memory, Sizing, overfull, usual_kv_tokens, written
from antiphon.core.config import ClassBounds, EngineOptions, LinkOptions, ProcessOptions
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph, StageKind
from antiphon.core.stage_options import EdgeOptions, SamplingDefaults, StageOptions
from antiphon.graphs import find_graph
from antiphon.latency.finding import find_costs
from antiphon.latency.roofline import datasheet_name
from antiphon.latency.shapes import find_shape
from antiphon.wire.limits import Limits

USUAL_FAMILY, USUAL_SHAPE = "qwen3_omni_moe", "qwen3-omni-30b-a3b"
"""Whose stages and rates are meant where no model is known."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A deployment with nothing left open.

    graph       of the model, or of the usual one where none is known
    options     what the engine is started with; None where a problem left none
    limits      what one session may ask for
    memory      bytes of each unit by what they are for; empty where no model is known
    problems    all that is wrong, a sentence each
    rates       of sound and pictures
    is_checked  the model itself was asked: its checkpoint is at hand
    """

    deployment: Deployment
    graph: StageGraph
    placement: Placement
    options: EngineOptions | None
    limits: Limits
    memory: Memory
    problems: tuple[str, ...]
    rates: Rates
    is_checked: bool = False

    @property
    def sound(self) -> EngineOptions:
        """The options. Raises ConfigError with every problem."""
        if self.problems or self.options is None:
            raise ConfigError("\n  ".join(["this deployment can't be:", *self.problems]))
        return self.options


def resolve(deployment: Deployment, model: ModelFacts | None, machine: Machine) -> Resolved:
    """`model` None: its stages are taken for Qwen3-Omni's, or a cascade's if the deployment is for one, and
    memory is not looked at."""
    usual = "cascade" if deployment.is_cascade else USUAL_FAMILY
    graph = find_graph(usual) if model is None else model.graph
    held = [stage for stage in graph.stages if model is None or stage.name in model.stages]
    placement = place(deployment, held, machine)
    problems = [
        *placement.problems,
        *_preset(deployment),
        *_profile(deployment, model),
        *_ranks(deployment, placement, graph),
    ]
    sizing = Sizing(deployment, placement, graph, model, problems)
    sizes = {stage.name: sizing.sizes(stage.name) for stage in held}
    memory: Memory = {} if model is None else sizing.memory(sizes)
    problems += overfull(sizing, sizes, memory)
    problems += _edges(deployment, placement, graph)
    options = None
    try:
        options = _options(deployment, placement, graph, sizes)
        if not problems:
            peers_of(graph, placement.units, options.links)
        if not problems and model is not None and model.check is not None:
            model.check(options)
    except ConfigError as error:
        problems.append(str(error))
    limits = Limits(**deployment.limits.session.model_dump())
    rates = rates_of(graph, find_shape(USUAL_SHAPE) if model is None else model.shape)
    is_checked = model is not None and model.check is not None
    return Resolved(
        deployment,
        graph,
        placement,
        options,
        limits,
        memory,
        tuple(dict.fromkeys(problems)),
        rates,
        is_checked,
    )


def _preset(deployment: Deployment) -> list[str]:
    """What is wrong with the preset."""
    try:
        read_preset(deployment.preset)
    except ConfigError as error:
        said = str(error)
        return [said if said.startswith("preset ") else f"preset: {said}"]
    return []


def _profile(deployment: Deployment, model: ModelFacts | None) -> list[str]:
    """What is wrong with the profile."""
    if deployment.profile is None:
        return []
    is_datasheet = datasheet_name(deployment.profile) is not None
    try:
        find_costs(deployment.profile, model.shape if model is not None and is_datasheet else None)
    except ConfigError as error:
        return [f"profile: {error}"]
    return []


def _ranks(deployment: Deployment, placement: Placement, graph: StageGraph) -> list[str]:
    """What tensor parallelism can't do yet."""
    stages = deployment.stages
    degrees = {name: spec.tensor_parallel for name, spec in stages.items()}
    divided = [name for name, degree in degrees.items() if degree > 1]
    ar = [stage.name for stage in graph.stages if stage.kind is StageKind.AR and placement.of(stage.name)]
    problems: list[str] = []
    for name in divided:
        key = f"stages.{name}.tensor_parallel is {degrees[name]}"
        if name not in ar:
            problems.append(f"{key}: only decoders are divided ({', '.join(ar)}); leave it at 1")
        elif others := [other for other in divided if degrees[other] != degrees[name]]:
            problems.append(
                f"{key}, and {', '.join(others)} differ: all tensor-parallel stages must use the same degree"
            )
        if stages[name].replicas > 1 or stages[name].process != "shared":
            problems.append(f"{key}: it runs without replicas and without processes of their own")
        problems += [
            f"{key}: it runs on a CPU only, and {unit.name} is on {placement.torch_device(unit)}"
            for unit in placement.of(name)
            if placement.torch_device(unit) != "cpu"
        ]
    return problems


def _edges(deployment: Deployment, placement: Placement, graph: StageGraph) -> list[str]:
    """Edges that are none, and connectors where nothing crosses. A stage that is split hands KV to itself."""
    problems: list[str] = []
    for name, edge in deployment.edges.items():
        own = _edge(name, edge)
        is_move = own.source == own.target and any(unit.role != "both" for unit in placement.of(own.source))
        if is_move and own.chosen:
            problems.append(
                f"edges.{name}: KV that moves has a connector only; take {', '.join(own.chosen)} out"
            )
            continue
        try:
            if not is_move:
                graph.changed(own.source, own.target, **own.chosen)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if edge.connector is not None and (why := idle(graph, placement.units, own.source, own.target)):
            problems.append(f"edges.{name}.connector: {why}; take it out")
    return problems


def _options(
    deployment: Deployment, placement: Placement, graph: StageGraph, sizes: Mapping[str, Mapping[str, int]]
) -> EngineOptions:
    """Raises ConfigError."""
    main = _main_device(deployment, placement, graph)
    defaults: dict[str, Any] = {
        "max_rows": USUAL.max_rows,
        "kv_tokens": usual_kv_tokens(deployment),
        "step_tokens": USUAL.step_tokens,
        **written(deployment.defaults),
    }
    edges = [_edge(name, edge) for name, edge in deployment.edges.items()]
    is_plain = placement.is_plain
    return EngineOptions(
        device=main,
        dtype=deployment.dtype,
        attention=deployment.attention,
        preset=deployment.preset,
        profile=deployment.profile or "",
        classes=_classes(deployment),
        **defaults,
        max_context_tokens=deployment.limits.max_context_tokens,
        start_limit_s=deployment.limits.start_limit_s,
        silence_limit_s=deployment.limits.silence_limit_s,
        threads=_threads(deployment, placement).get("", 0),
        depth=deployment.depth,
        tensor_parallel=max((spec.tensor_parallel for spec in deployment.stages.values()), default=1),
        divided=tuple(name for name, spec in deployment.stages.items() if spec.tensor_parallel > 1),
        graphs=deployment.cuda_graphs,
        layer_groups=deployment.layer_groups,
        step_s=deployment.step_s,
        link_gb_s=deployment.link_gb_s,
        load_format=deployment.load_format,
        units=() if is_plain else placement.units,
        stages_apart=False,
        processes=tuple(
            ProcessOptions(name, threads)
            for name, threads in _threads(deployment, placement).items()
            if name and threads
        ),
        links=tuple(
            LinkOptions(own.source, own.target, edge.connector)
            for own, edge in zip(edges, deployment.edges.values(), strict=True)
            if edge.connector is not None
        ),
        stages={stage: _stage(deployment, stage, own) for stage, own in sizes.items()},
        edges=tuple(edge for edge in edges if edge.chosen),
        places={} if is_plain else _places(placement, main),
    )


def _classes(deployment: Deployment) -> dict[str, ClassBounds]:
    """Those that are promised anything."""
    written = deployment.classes.model_dump(exclude_none=True)
    return {name: ClassBounds(**bounds) for name, bounds in written.items() if bounds}


def _main_device(deployment: Deployment, placement: Placement, graph: StageGraph) -> str:
    """Where replies are written (or the first stage there is): what units without a place are on."""
    first = next(iter(placement.of(graph.reply_stages[0])), placement.units[0])
    spec = deployment.devices.get(first.device)
    return "auto" if spec is None else spec.device


def _places(placement: Placement, main: str) -> dict[str, str]:
    """Devices of units by name; those that are on `main` anyway are left out."""
    used = dict.fromkeys(unit.device for unit in placement.units if unit.device)
    return {name: placement.devices[name] for name in used if placement.devices[name] != main}


def _threads(deployment: Deployment, placement: Placement) -> dict[str, int]:
    """By process, the most that its stages ask for."""
    found: dict[str, int] = {}
    for unit in placement.units:
        asked = deployment.stage(unit.stage).threads
        found[unit.process] = max(found.get(unit.process, 0), asked)
    return found


def _edge(name: str, edge: WrittenEdge) -> EdgeOptions:
    source, target = name.split(" -> ")
    return EdgeOptions(source, target, edge.first_chunk, edge.chunk, edge.credit)


def _stage(deployment: Deployment, stage: str, sizes: Mapping[str, int]) -> StageOptions:
    sampling: dict[str, Any] = deployment.stage(stage).sampling.model_dump()
    return StageOptions(**sizes, sampling=SamplingDefaults(**sampling))
