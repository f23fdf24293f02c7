"""From a loaded engine to its latency profile: every stage, its links, what deciding costs, CPU attention.

The engine is the profiler's own while it runs: its orders number steps and tickets as they please.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.graph import StageGraph
from antiphon.engine.load import (
    Engine,
    Loader,
    Progress,
    build_engine,
    check_room,
    load_engine,
    open_source,
)
from antiphon.latency.profile import Profile, Provenance, StageProfile, served
from antiphon.latency.shapes import DecoderShape, ModelShape
from antiphon.nn.graphs import cuda_capture
from antiphon.runtime.attention_times import cpu_attention
from antiphon.runtime.deciding_time import deciding_s
from antiphon.runtime.link_times import measure_links
from antiphon.runtime.stage_times import Effort, measure_stages

HOST_BLOCKS = 256
"""Blocks of the host tier that copies are measured with, where an engine has none of its own."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled. `served` is its node as an operator asked for it, without tiers for measuring."""

    engine: Engine
    graph: StageGraph
    shape: ModelShape
    served: NodeConfig


def load_subject(source: str, options: EngineOptions, name: str, progress: Progress) -> Subject:
    """An engine with a host tier, if it is one process. Raises CheckpointError or ConfigError."""
    opened = open_source(source, options, progress)
    shape = opened.family.read_shape(opened.config, name)
    if options.tensor_parallel > 1:
        return Subject(load_engine(opened, options, name, progress), opened.graph, shape, opened.node)
    served = opened.node
    opened = replace(opened, node=with_host_tier(opened.node))
    check_room(opened)
    capture = cuda_capture(opened.device) if options.graphs == "on" else None
    engine = build_engine(opened, options, name, Loader(opened, progress, capture=capture))
    return Subject(engine, opened.graph, shape, served)


def with_host_tier(node: NodeConfig) -> NodeConfig:
    """At least a small one for each decoder."""
    ar = {
        name: msgspec.structs.replace(config, host_blocks=max(config.host_blocks, HOST_BLOCKS))
        for name, config in node.ar.items()
    }
    return msgspec.structs.replace(node, ar=ar)


def profile(
    subject: Subject, provenance: Provenance, progress: Progress, effort: Effort = Effort()
) -> Profile:
    """Raises StageFailed where a step fails."""
    engine = subject.engine
    progress("deciding", 0, 0)
    decide_s = deciding_s(engine)
    stages = measure_stages(engine, subject.graph, effort, progress)
    progress("attention on the CPU", 0, 0)
    return Profile(
        stages={name: with_attention(one, subject.shape, name) for name, one in stages.items()},
        links=measure_links(engine, progress),
        source="measured",
        provenance=provenance,
        decide_s=decide_s,
        served=served(subject.served, engine.depth, subject.shape),
    )


def with_attention(profile: StageProfile, shape: ModelShape, stage: str) -> StageProfile:
    """A decoder's with what its attention takes on this machine's CPU."""
    decoder = shape.stages.get(stage)
    if not isinstance(decoder, DecoderShape):
        return profile
    return msgspec.structs.replace(profile, cpu_attention=cpu_attention(decoder))
