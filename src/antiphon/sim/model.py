"""The engine that is simulated, as its node has it, without a checkpoint: one that was profiled, or
Qwen3-Omni-30B-A3B on hardware that is not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Sampling
from antiphon.latency.profile import Profile, Replies, Served
from antiphon.sim.executors import DEFAULT_REPLIES, FRAME_SAMPLES
from antiphon.sim.memory import room_of
from antiphon.sim.places import Replicas, placed

THINKER, TALKER, VOCODER, ENCODERS = "thinker", "talker", "code2wav", "encoders"
STOP, CODEC_STOP, END_INPUT = 1, 2, 3
"""Ids of our own: nothing else in a simulated prompt or reply has them."""
CODEBOOKS = 16
BLOCK_SIZE = 16

BLOCK_BYTES: Mapping[tuple[str, str], int] = {
    (THINKER, "kv"): BLOCK_SIZE * 48 * 2 * 4 * 128 * 2,
    (THINKER, "hidden"): BLOCK_SIZE * 2048 * 2,
    (TALKER, "kv"): BLOCK_SIZE * 20 * 2 * 2 * 128 * 2,
}
"""bf16: layers x (key, value) x KV heads x head size x 2 bytes; a position's layer-24 hidden state."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an operator chooses, per replica; None: as the engine was profiled, or as `ROOMY` says, with as
    much of its KV as a datasheet's devices have room for. Raises ConfigError."""

    max_rows: int | None = None
    kv_tokens: int | None = None
    step_tokens: int | None = None
    max_context_tokens: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_rows", "kv_tokens", "step_tokens", "max_context_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be 1 or more")
        if self.depth not in (None, 0, 1):
            raise ConfigError(f"depth is {self.depth}; it must be 0 or 1 (steps in flight)")


AS_SERVED, ONE_EACH = Sizes(), Replicas()
ROOMY = Sizes(max_rows=64, kv_tokens=262_144, step_tokens=2048, max_context_tokens=32_768, depth=1)


@dataclass(frozen=True, slots=True)
class SimEngine:
    """What a machine is made of.

    block_bytes  of a block, per (stage, KV group)
    """

    served: Served
    block_bytes: Mapping[tuple[str, str], int] = field(default_factory=lambda: BLOCK_BYTES)

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


def released(
    preset: str = "baseline",
    sizes: Sizes = ROOMY,
    replicas: Replicas = ONE_EACH,
    block_bytes: Mapping[tuple[str, str], int] = BLOCK_BYTES,
) -> SimEngine:
    """Qwen3-Omni-30B-A3B."""
    node = NodeConfig(
        graph="qwen3_omni_moe",
        ar={THINKER: _decoder(STOP, 1, 1024), TALKER: _decoder(CODEC_STOP, CODEBOOKS, 4096)},
        codec={VOCODER: CodecConfig()},
        encoder={ENCODERS: EncoderConfig()},
        end_inputs={TALKER: END_INPUT},
    )
    whole = _filled(sizes, ROOMY)
    return _asked(SimEngine(Served(node), block_bytes), preset, whole, replicas)


def engine_of(
    profile: Profile, preset: str = "baseline", sizes: Sizes = AS_SERVED, replicas: Replicas | None = None
) -> SimEngine:
    """The engine that was profiled, else the released model on such hardware. Raises ConfigError, also where
    the memory of that hardware does not hold it.

    replicas  None: as it was served, or of a datasheet one of each stage, on two devices
    """
    block_bytes = {
        (stage, group): num_bytes
        for stage, one in profile.stages.items()
        for group, num_bytes in one.block_bytes.items()
    }
    if profile.served is None:
        if profile.source == "measured":
            raise ConfigError(
                f"the profile of {profile.provenance.model!r} does not say how its engine was served; "
                "make it again: antiphon profile"
            )
        if profile.stages.keys() != {ENCODERS, THINKER, TALKER, VOCODER}:
            raise ConfigError(
                f"the datasheet profile of {profile.provenance.model!r} says times only, and no "
                "engine but Qwen3-Omni's is known without a checkpoint; measure one with antiphon profile"
            )
        return _fitting(profile, released(preset, sizes, replicas or ONE_EACH, block_bytes), sizes)
    return _asked(SimEngine(profile.served, block_bytes), preset, sizes, replicas)


def _fitting(profile: Profile, engine: SimEngine, sizes: Sizes) -> SimEngine:
    """With as much KV as the devices have room for, where nobody says how much. Raises ConfigError if the
    engine does not fit."""
    room = room_of(profile.datasheet, profile.provenance.dtype) if profile.datasheet is not None else None
    if room is None:
        return engine
    if sizes.kv_tokens is None:
        config = engine.node.ar[THINKER]
        usual = config.num_blocks * config.block_size
        tokens = max(min(room.kv_tokens(engine.node), usual), config.max_context_tokens or config.block_size)
        engine = _asked(engine, engine.node.preset, Sizes(kv_tokens=tokens), None)
    room.check(engine.node)
    return engine


def _asked(engine: SimEngine, preset: str, sizes: Sizes, replicas: Replicas | None) -> SimEngine:
    node = engine.node
    node = msgspec.structs.replace(
        node,
        preset=preset,
        ar={stage: _sized(config, sizes, stage == next(iter(node.ar))) for stage, config in node.ar.items()},
        codec={
            stage: msgspec.structs.replace(config, max_rows=sizes.max_rows or config.max_rows)
            for stage, config in node.codec.items()
        },
    )
    if replicas is not None:
        node = msgspec.structs.replace(node, units=placed(node, replicas))
    depth = engine.depth if sizes.depth is None else sizes.depth
    served = msgspec.structs.replace(engine.served, node=node, depth=depth)
    return SimEngine(served, engine.block_bytes)


def _sized(config: ArConfig, sizes: Sizes, is_entry: bool) -> ArConfig:
    """Only the stage that reads the prompt has a context's limit of its own. Raises ConfigError."""
    context = sizes.max_context_tokens if is_entry else None
    kv_tokens = in_blocks(sizes.kv_tokens or config.num_blocks * config.block_size, config.block_size)
    most = context or config.max_context_tokens
    if most is not None and kv_tokens < most:
        raise ConfigError(
            f"kv_tokens ({kv_tokens}) must hold at least one context (max_context_tokens, {most})"
        )
    return msgspec.structs.replace(
        config,
        max_rows=sizes.max_rows or config.max_rows,
        num_blocks=kv_tokens // config.block_size,
        step_tokens=sizes.step_tokens or config.step_tokens,
        max_context_tokens=most,
    )


def in_blocks(kv_tokens: int, block_size: int) -> int:
    """As many of the tokens as whole blocks hold. Raises ConfigError if that is none."""
    if kv_tokens < block_size:
        raise ConfigError(f"kv_tokens is {kv_tokens}; it must hold a block at least, {block_size} tokens")
    return kv_tokens // block_size * block_size


def _decoder(stop: int, width: int, max_tokens: int) -> ArConfig:
    return ArConfig(
        block_size=BLOCK_SIZE, stop_ids=(stop,), width=width, sampling=Sampling(max_tokens=max_tokens)
    )


def _filled(sizes: Sizes, rest: Sizes) -> Sizes:
    """What is not chosen is as in `rest`; a context is never larger than the KV."""
    kv_tokens = in_blocks(sizes.kv_tokens or rest.kv_tokens or 0, BLOCK_SIZE)
    return Sizes(
        sizes.max_rows or rest.max_rows,
        kv_tokens,
        sizes.step_tokens or rest.step_tokens,
        sizes.max_context_tokens or min(rest.max_context_tokens or 0, kv_tokens),
        rest.depth if sizes.depth is None else sizes.depth,
    )
