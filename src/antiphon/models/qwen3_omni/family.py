"""Qwen3-Omni's functions for the engine, by the names that `engine.family.Family` asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from antiphon.models.qwen3_omni import weights
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.geometry import read_geometry
from antiphon.models.qwen3_omni.prompt import load_prompter
from antiphon.models.qwen3_omni.shape import read_shape
from antiphon.models.qwen3_omni.shards import Follower, load_shard, shard_config, shard_layout
from antiphon.models.qwen3_omni.stages import Scale, SpeechStage, TextStage
from antiphon.models.vocabulary import call_ids
from antiphon.nn.shard import Shard

__all__ = [
    "call_ids",
    "check_ranks",
    "load_follower",
    "load_prompter",
    "load_stage",
    "read_config",
    "read_geometry",
    "read_shape",
    "tensor_names",
    "tensor_shapes",
    "voices",
]

PARTS = {"encoders": "encoders", "thinker": "thinker", "talker": "talker", "code2wav": "vocoder"}
"""Stage of the graph -> part of the checkpoint."""


def read_config(values: Mapping[str, Any]) -> Qwen3OmniConfig:
    """From config.json; raises CheckpointError."""
    return Qwen3OmniConfig.from_dict(values)


def voices(config: Qwen3OmniConfig, path: Path) -> tuple[str, ...]:
    """Speaker names, lower case; none for a checkpoint without speech."""
    return tuple(config.speech.speakers) if config.speech is not None else ()


def tensor_names(stage: str, config: Qwen3OmniConfig) -> list[str]:
    """Checkpoint tensors that a stage needs."""
    return weights.names_for(PARTS[stage], config)


def tensor_shapes(stage: str, config: Qwen3OmniConfig) -> dict[str, tuple[int, ...]]:
    """The same tensors with their shapes in a checkpoint."""
    return weights.shapes_for(PARTS[stage], config)


def check_ranks(stage: str, config: Qwen3OmniConfig, ranks: int) -> None:
    """Raises ConfigError unless so many ranks can divide the thinker or the talker among them."""
    shard_config(stage, config, ranks)


def load_follower(
    stage: str,
    read: Callable[[list[str]], Iterable[tuple[str, torch.Tensor]]],
    config: Qwen3OmniConfig,
    place: tuple[torch.device, torch.dtype],
    shard: Shard,
) -> Follower:
    """Another rank's part of the thinker or the talker; `read` gives the tensors it names."""
    names = sorted(shard_layout(stage, config, shard).sources)
    return load_shard(stage, read(names), config, place, shard)


def load_stage(
    stage: str,
    tensors: Iterable[tuple[str, torch.Tensor]],
    config: Qwen3OmniConfig,
    place: tuple[torch.device, torch.dtype],
    checkpoint: Path,
    shard: Shard | None = None,
) -> Any:
    """A stage's model on a device; with `shard`, thinker and talker have rank 0's part of the layers.

    The vocoder runs in fp32 at least: bf16 is audibly wrong (rel. rms 8e-2).
    """
    device, dtype = place
    if stage == "code2wav" and dtype.itemsize < 4:
        dtype = torch.float32
    if shard is not None and stage in ("thinker", "talker"):
        model = load_shard(stage, tensors, config, place, shard)
    else:
        model = weights.load(PARTS[stage], tensors, config, device, dtype)
    scale = Scale(config.merge_size, config.positions_per_second)
    if stage == "encoders":
        from antiphon.models.qwen3_omni.media_stage import MediaStage

        return MediaStage(model, checkpoint, scale)
    if stage == "thinker":
        return TextStage(model)
    if stage == "talker":
        return SpeechStage(model, config.tokens.tts_pad, scale)
    return model
