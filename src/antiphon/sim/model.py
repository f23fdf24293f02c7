"""The engine that is simulated, as its node has it, without a checkpoint: one that was profiled, or a
released model on hardware that is not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from antiphon.assembly.preset import with_preset
from antiphon.assembly.times import BlockBytes, rescaled
from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.graph import StageKind
from antiphon.core.sampling import Sampling
from antiphon.graphs import find_graph, graph_with
from antiphon.latency.finding import find_costs
from antiphon.latency.models import ArModel
from antiphon.latency.profile import Profile, Replies, Served, served
from antiphon.latency.shapes import DecoderShape, ModelShape
from antiphon.sim.executors import DEFAULT_REPLIES, FRAME_SAMPLES
from antiphon.sim.memory import DeviceRoom, room_of
from antiphon.sim.places import Replicas, placed
from antiphon.sim.sizes import AS_SERVED, ROOMY, Sizes, roomy, sized
from antiphon.wire.readers import ReaderRates

STOP, CODEC_STOP, END_INPUT = 1, 2, 3
"""Ids of our own: nothing else in a simulated prompt or reply has them."""
BLOCK_SIZE = 16
REPLY_TOKENS, REPLY_S = 1024, 4096 * 0.08
"""Longest replies of a model that speaks, where nobody says: of text, and what sounds of it."""
NO_LIMIT = 1 << 30
"""Of a text model's reply to whose length its client sets none: it is drawn, and the context ends it."""
USUAL_CONTEXT = EngineOptions().max_context_tokens
"""Less KV than this is not taken for an engine that fits."""

ONE_EACH = Replicas()


@dataclass(frozen=True, slots=True)
class SimEngine:
    """What a machine is made of.

    block_bytes  of a block, per (stage, KV group)
    readers      of texts whose requests do not say how fast they are read
    """

    served: Served
    block_bytes: BlockBytes
    readers: ReaderRates = field(default_factory=ReaderRates)

    @property
    def node(self) -> NodeConfig:
        return self.served.node

    @property
    def depth(self) -> int:
        return self.served.depth

    @property
    def replies(self) -> Replies:
        """Where nobody says, tokens are spoken as fast as Qwen3-Omni's, in frames of this model's length."""
        if self.served.replies is not None:
            return self.served.replies
        frames = DEFAULT_REPLIES.frames_per_token * FRAME_SAMPLES / self.served.frame_samples
        return msgspec.structs.replace(DEFAULT_REPLIES, frames_per_token=frames)

    @property
    def inline(self) -> frozenset[str]:
        """Units whose steps hold up the driver: without steps in flight, those in its process."""
        return frozenset(unit.name for unit in self.node.placed if not (self.depth or unit.process))

    @property
    def position_bytes(self) -> int:
        """Of a position that is handed over between stages."""
        return sum(
            num_bytes // self.node.ar[stage].block_size
            for (stage, group), num_bytes in self.block_bytes.items()
            if group == "hidden" and stage in self.node.ar
        )


def released(preset: str = "baseline", sizes: Sizes = ROOMY, replicas: Replicas = ONE_EACH) -> SimEngine:
    """Qwen3-Omni-30B-A3B."""
    return _asked(bare_engine(find_costs("H200")), preset, roomy(sizes), replicas)


def engine_of(
    profile: Profile, preset: str = "baseline", sizes: Sizes = AS_SERVED, replicas: Replicas | None = None
) -> SimEngine:
    """The engine that was profiled, else the released model on such hardware. Raises ConfigError, also where
    the memory of that hardware does not hold it.

    replicas  None: as it was served, or of a datasheet one of each stage, on two devices
    """
    base, layers = bare_engine(profile), num_layers(profile)
    if profile.served is not None:
        return _asked(base, preset, sizes, replicas, layers)
    return _fitting(profile, base, preset, sizes, replicas or ONE_EACH)


def bare_engine(profile: Profile) -> SimEngine:
    """The engine as it was served; of a datasheet its stages, of no size in particular. Raises
    ConfigError."""
    block_bytes = {
        (stage, group): num_bytes
        for stage, one in profile.stages.items()
        for group, num_bytes in one.block_bytes.items()
    }
    if profile.served is not None:
        return SimEngine(profile.served, block_bytes)
    if profile.source == "measured":
        raise ConfigError(
            f"the profile of {profile.provenance.model!r} does not say how its engine was served; "
            "make it again: antiphon profile"
        )
    if profile.datasheet is None:
        raise ConfigError(
            f"the profile of {profile.provenance.model!r} does not say what model it is of; make it again: "
            "antiphon profile --roofline"
        )
    shape = profile.datasheet.shape
    return SimEngine(served(_bare_node(shape), 0, shape), block_bytes)


def _bare_node(shape: ModelShape) -> NodeConfig:
    """What its graph says of a model, and no more. Raises ConfigError for stages that no family has."""
    graph = graph_with(shape.stages)
    of_kind = {
        kind: [stage for stage in graph.stages if stage.kind is kind]
        for kind in (StageKind.AR, StageKind.CODEC, StageKind.ENCODER)
    }
    ar: dict[str, ArConfig] = {}
    for stage in of_kind[StageKind.AR]:
        decoder = shape.stages[stage.name]
        assert isinstance(decoder, DecoderShape)
        if stage.conditioned:
            ar[stage.name] = _decoder(CODEC_STOP, decoder.codebooks, round(REPLY_S / graph.frame_s))
        else:
            ar[stage.name] = _decoder(STOP, 1, REPLY_TOKENS if graph.has_voice else NO_LIMIT)
    return NodeConfig(
        graph=graph.family,
        ar=ar,
        codec={stage.name: CodecConfig() for stage in of_kind[StageKind.CODEC]},
        encoder={stage.name: EncoderConfig() for stage in of_kind[StageKind.ENCODER]},
        end_inputs={stage.name: END_INPUT for stage in graph.stages if stage.conditioned},
    )


def num_layers(profile: Profile) -> Mapping[str, int]:
    """Of the stages that have any."""
    models = {stage: one.model for stage, one in profile.stages.items()}
    return {stage: model.layers for stage, model in models.items() if isinstance(model, ArModel)}


def _fitting(profile: Profile, base: SimEngine, preset: str, sizes: Sizes, replicas: Replicas) -> SimEngine:
    """With as much KV as the devices have room for, where nobody says how much. Raises ConfigError if the
    engine does not fit."""
    layers = num_layers(profile)
    sheet = profile.datasheet
    context = None if sheet is None else sheet.shape.context
    engine = _asked(base, preset, roomy(sizes, context), replicas, layers)
    room = None if sheet is None else room_of(sheet, profile.provenance.dtype)
    if room is None:
        return engine
    if sizes.kv_tokens is None:
        fitting = replace(sizes, kv_tokens=_kv_tokens(room, engine, sizes))
        engine = _asked(base, preset, roomy(fitting, context), replicas, layers)
    room.check(engine.node)
    return engine


def _kv_tokens(room: DeviceRoom, engine: SimEngine, sizes: Sizes) -> int:
    """As many as there is room for, and the usual number at most. Where that is less than a context (than a
    usual one, if nobody says how long it is) as many as a context has: the engine will not fit."""
    config = next(iter(engine.node.ar.values()))
    fitting = min(room.kv_tokens(engine.node), config.num_blocks * config.block_size)
    if fitting >= (
        sizes.max_context_tokens or min(USUAL_CONTEXT, config.max_context_tokens or USUAL_CONTEXT)
    ):
        return fitting
    return config.max_context_tokens or config.block_size


def _asked(
    engine: SimEngine,
    preset: str,
    sizes: Sizes,
    replicas: Replicas | None,
    layers: Mapping[str, int] | None = None,
) -> SimEngine:
    """layers: how many each decoder has; None: nobody knows, so they cannot be split into KV groups."""
    node, known = engine.node, layers or {}
    graph = find_graph(node.graph)
    asked = msgspec.structs.replace(
        with_preset(node, preset),
        ar={
            stage: config
            if stage == graph.transcriber  # as large as its own transcripts need
            else sized(config, sizes, known.get(stage), is_entry=stage == graph.reply_stages[0])
            for stage, config in node.ar.items()
        },
        codec={
            stage: msgspec.structs.replace(config, max_rows=sizes.max_rows or config.max_rows)
            for stage, config in node.codec.items()
        },
    )
    if replicas is not None:
        asked = msgspec.structs.replace(asked, units=placed(asked, replicas))
    depth = engine.depth if sizes.depth is None else sizes.depth
    served = msgspec.structs.replace(engine.served, node=asked, depth=depth)
    return SimEngine(served, rescaled(engine.block_bytes, block_sizes(node), asked))


def block_sizes(node: NodeConfig) -> dict[str, int]:
    """Of its decoders."""
    return {stage: config.block_size for stage, config in node.ar.items()}


def _decoder(stop: int, width: int, max_tokens: int) -> ArConfig:
    return ArConfig(
        block_size=BLOCK_SIZE, stop_ids=(stop,), width=width, sampling=Sampling(max_tokens=max_tokens)
    )
