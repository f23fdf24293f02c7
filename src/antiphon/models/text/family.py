"""The functions for the engine, by the names that `engine.family.Family` asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.latency.shapes import ModelShape
from antiphon.models.geometry import Json, text_stage
from antiphon.models.prompt import NoMedia, Prompter
from antiphon.models.shapes import decoder_shape
from antiphon.models.text.model import TextConfig, TextDecoder
from antiphon.models.vocabulary import Vocabulary, call_ids, load_template, load_tokenizer
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


def read_config(values: Mapping[str, Any]) -> TextConfig:
    """From config.json; raises CheckpointError."""
    return TextConfig.from_dict(values)


def read_geometry(config: TextConfig, generation: Json, options: EngineOptions) -> NodeConfig:
    """The node's configuration for this checkpoint under these options."""
    thinker = text_stage(generation, options, config.decoder.num_layers, config.stop_ids)
    return NodeConfig("text", {"thinker": thinker}, {}, {}, {}, options.preset)


def read_shape(config: TextConfig, name: str) -> ModelShape:
    """Its one decoder."""
    return ModelShape(name, {"thinker": decoder_shape(config.decoder, config.vocab)})


def load_prompter(path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
    """From a checkpoint's directory; raises CheckpointError."""
    tokenizer = load_tokenizer(path)
    vocabulary = Vocabulary(tokenizer.backend_tokenizer)
    return Prompter(vocabulary, load_template(path, tokenizer), NoMedia(), max_prompt_tokens)


def voices(config: TextConfig, path: Path) -> tuple[str, ...]:
    """It has none."""
    return ()


def tensor_names(stage: str, config: TextConfig) -> list[str]:
    """Checkpoint tensors that the one stage needs."""
    return sorted(config.layout.sources)


def tensor_shapes(stage: str, config: TextConfig) -> dict[str, tuple[int, ...]]:
    """The same tensors with their shapes in a checkpoint."""
    return {name: source.shape for name, source in config.layout.sources.items()}


def check_ranks(stage: str, config: TextConfig, ranks: int) -> NoReturn:
    """Raises ConfigError."""
    raise ConfigError(
        f"tensor_parallel {ranks}: a checkpoint that is text only runs in one process; leave it at 1"
    )


def load_follower(
    stage: str,
    read: Callable[[list[str]], Iterable[tuple[str, torch.Tensor]]],
    config: TextConfig,
    place: tuple[torch.device, torch.dtype],
    shard: Shard,
) -> NoReturn:
    """Raises ConfigError, as `check_ranks` does before any rank is started."""
    check_ranks(stage, config, shard.ranks)


def load_stage(
    stage: str,
    tensors: Iterable[tuple[str, torch.Tensor]],
    config: TextConfig,
    place: tuple[torch.device, torch.dtype],
    checkpoint: Path,
    shard: Shard | None = None,
) -> TextDecoder:
    """The decoder on a device."""
    return TextDecoder.load(config, tensors, *place)
