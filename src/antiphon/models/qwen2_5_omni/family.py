"""Qwen2.5-Omni's functions for the engine, by the names that `engine.family.Family` asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from antiphon.core.errors import ConfigError
from antiphon.models.qwen2_5_omni import weights
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig
from antiphon.models.qwen2_5_omni.geometry import read_geometry
from antiphon.models.qwen2_5_omni.prompt import load_prompter
from antiphon.models.qwen2_5_omni.shape import read_shape
from antiphon.models.qwen2_5_omni.stages import SpeechStage, TextStage
from antiphon.models.qwen2_5_omni.voices import load_voices
from antiphon.models.qwen3_omni.stages import Scale
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


def read_config(values: Mapping[str, Any]) -> Qwen25OmniConfig:
    """From config.json; raises CheckpointError."""
    return Qwen25OmniConfig.from_dict(values)


def voices(config: Qwen25OmniConfig, path: Path) -> tuple[str, ...]:
    """Names, lower case; none for a checkpoint without speech."""
    return () if config.speech is None else tuple(load_voices(path))


def tensor_names(stage: str, config: Qwen25OmniConfig) -> list[str]:
    """Checkpoint tensors that a stage needs."""
    return sorted(weights.layout_for(stage, config).sources)


def tensor_shapes(stage: str, config: Qwen25OmniConfig) -> dict[str, tuple[int, ...]]:
    """The same tensors with their shapes in a checkpoint."""
    return {name: source.shape for name, source in weights.layout_for(stage, config).sources.items()}


def check_ranks(stage: str, config: Qwen25OmniConfig, ranks: int) -> NoReturn:
    """Raises ConfigError."""
    raise ConfigError(f"tensor_parallel {ranks}: Qwen2.5-Omni runs in one process; leave it at 1")


def load_follower(
    stage: str,
    read: Callable[[list[str]], Iterable[tuple[str, torch.Tensor]]],
    config: Qwen25OmniConfig,
    place: tuple[torch.device, torch.dtype],
    shard: Shard,
) -> NoReturn:
    """Raises ConfigError, as `check_ranks` does before any rank is started."""
    check_ranks(stage, config, shard.ranks)


def load_stage(
    stage: str,
    tensors: Iterable[tuple[str, torch.Tensor]],
    config: Qwen25OmniConfig,
    place: tuple[torch.device, torch.dtype],
    checkpoint: Path,
    shard: Shard | None = None,
) -> Any:
    """A stage's model on a device. token2wav runs in fp32, as in the reference."""
    device, dtype = place
    model = weights.load(stage, tensors, config, (device, torch.float32 if stage == "token2wav" else dtype))
    scale = Scale(config.merge_size, config.positions_per_second, config.chunk_ticks)
    if stage == "encoders":
        from antiphon.models.qwen2_5_omni.media_stage import MediaStage

        return MediaStage(model, checkpoint, scale)
    if stage == "thinker":
        return TextStage(model, scale)
    if stage == "talker":
        return SpeechStage(model, load_voices(checkpoint), scale)
    model.add_voices(load_voices(checkpoint))
    return model
