"""The engine that a deployment describes, simulated: its stages, replicas, devices, limits and sizes, on the
hardware that a profile is of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.footprint import GIB, facts_of
from antiphon.assembly.placement import Machine
from antiphon.assembly.preset import with_preset
from antiphon.assembly.resolve import USUAL_FAMILY, resolve
from antiphon.assembly.sizing import SIZES
from antiphon.assembly.times import rescaled, with_profile
from antiphon.core.config import ArConfig, CodecConfig, EngineOptions
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageGraph
from antiphon.core.stage_options import StageOptions
from antiphon.graphs import find_graph
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile
from antiphon.latency.roofline import datasheet_name
from antiphon.sim.model import SimEngine, bare_engine, block_sizes, num_layers
from antiphon.sim.sizes import Sizes, sized
from antiphon.wire.readers import ReaderRates

MOST_GPUS = 256
OF_A_STAGE = ("max_rows", "kv_tokens", "host_kv_tokens", "step_tokens", "block_size")
"""Sizes that stages have of their own; all others are the deployment's."""


def kinds(deployment: Deployment) -> tuple[str, ...]:
    """Of its devices, each once."""
    return tuple(dict.fromkeys(device.kind for device in deployment.devices.values() if device.kind))


def deployed_engine(
    profile: Profile, deployment: Deployment, preset: str = "", sizes: Sizes = Sizes()
) -> SimEngine:
    """preset and sizes: instead of the deployment's; a size is every stage's then. The deployment's devices
    are all of the profile's kind. Raises ConfigError for all that is wrong with the deployment there."""
    base = bare_engine(profile)
    graph = find_graph(base.node.graph)
    sheet = profile.datasheet
    facts = None if sheet is None else facts_of(sheet.shape, sheet.shape.name)
    if facts is None and graph.family != USUAL_FAMILY:
        raise ConfigError(
            f"a measured profile of {profile.provenance.model!r} cannot be laid out by a deployment: that is "
            "known of Qwen3-Omni and of datasheets only. Leave --config out, and say --replicas and sizes"
        )
    memory_gib = None if sheet is None else sheet.memory_gib
    machine = Machine() if memory_gib is None else Machine((int(memory_gib * GIB),) * MOST_GPUS)
    asked = _of_one_kind(_resized(deployment, graph, preset, sizes))
    engine = _laid_out(profile, base, resolve(asked, facts, machine).sound)
    return replace(engine, readers=ReaderRates(**deployment.readers.model_dump()))


def _of_one_kind(deployment: Deployment) -> Deployment:
    """Without the kinds of its devices: how much memory they have is the machine's to say, or the file's."""
    devices = {name: each.model_copy(update={"kind": None}) for name, each in deployment.devices.items()}
    return deployment.model_copy(update={"devices": devices})


def _resized(deployment: Deployment, graph: StageGraph, preset: str, sizes: Sizes) -> Deployment:
    chosen = {name: value for name in OF_A_STAGE if (value := getattr(sizes, name)) is not None}
    whole: dict[str, Any] = {"preset": preset or deployment.preset}
    for name in ("depth", "layer_groups"):
        if (value := getattr(sizes, name)) is not None:
            whole[name] = value
    if sizes.max_context_tokens is not None:
        update = {"max_context_tokens": sizes.max_context_tokens}
        whole["limits"] = deployment.limits.model_copy(update=update)
    stages = dict(deployment.stages)
    for stage in graph.stages if chosen else ():
        own = {name: value for name, value in chosen.items() if name in SIZES[stage.kind]}
        stages[stage.name] = deployment.stage(stage.name).model_copy(update=own)
    return deployment.model_copy(update={**whole, "stages": stages})


def _laid_out(profile: Profile, base: SimEngine, options: EngineOptions) -> SimEngine:
    node, layers = base.node, num_layers(profile)
    entry = find_graph(node.graph).reply_stages[0]
    made = msgspec.structs.replace(
        with_preset(node, options.preset),
        ar={
            stage: _decoder(config, options, stage, layers, is_entry=stage == entry)
            for stage, config in node.ar.items()
        },
        codec={stage: CodecConfig(options.of(stage).max_rows) for stage in node.codec},
        units=options.units,
        edges=options.edges,
        classes=options.classes,
    )
    if options.profile:
        sheet = profile.datasheet
        is_datasheet = sheet is not None and datasheet_name(options.profile) is not None
        known = find_costs(options.profile, sheet.shape if sheet and is_datasheet else None)
        made = with_profile(made, known)
    depth = options.depth
    if depth is None:
        is_host = profile.datasheet is not None and profile.datasheet.memory_gib is None
        depth = base.depth if profile.served is not None else int(not is_host)
    served = msgspec.structs.replace(base.served, node=made, depth=depth)
    return SimEngine(served, rescaled(base.block_bytes, block_sizes(node), made))


def _decoder(
    config: ArConfig, options: EngineOptions, stage: str, layers: Mapping[str, int], *, is_entry: bool
) -> ArConfig:
    own = options.of(stage)
    chosen = {name: getattr(own, name) for name in (*OF_A_STAGE, "layer_groups", "max_context_tokens")}
    made = sized(config, Sizes(**chosen), layers.get(stage), is_entry=is_entry)
    sampling = options.stages.get(stage, StageOptions()).sampling.over(config.sampling)
    return msgspec.structs.replace(made, sampling=sampling, step_rows=own.step_rows, step_s=own.step_s)
