"""Qwen3-Omni's functions for the engine, by the names that `engine.family.Family` asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from antiphon.models.qwen3_omni import weights
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.geometry import read_geometry
from antiphon.models.qwen3_omni.prompt import load_prompter
from antiphon.models.qwen3_omni.stages import MediaStage, SpeechStage, TextStage

__all__ = [
    "load_prompter",
    "load_stage",
    "read_config",
    "read_geometry",
    "tensor_names",
    "tensor_shapes",
    "voices",
]

PARTS = {"encoders": "encoders", "thinker": "thinker", "talker": "talker", "code2wav": "vocoder"}
"""Stage of the graph -> part of the checkpoint."""


def read_config(values: Mapping[str, Any]) -> Qwen3OmniConfig:
    """From config.json; raises CheckpointError."""
    return Qwen3OmniConfig.from_dict(values)


def voices(config: Qwen3OmniConfig) -> tuple[str, ...]:
    """Speaker names, lower case; none for a checkpoint without speech."""
    return tuple(config.speech.speakers) if config.speech is not None else ()


def tensor_names(stage: str, config: Qwen3OmniConfig) -> list[str]:
    """Checkpoint tensors that a stage needs."""
    return weights.names_for(PARTS[stage], config)


def tensor_shapes(stage: str, config: Qwen3OmniConfig) -> dict[str, tuple[int, ...]]:
    """The same tensors with their shapes in a checkpoint."""
    return weights.shapes_for(PARTS[stage], config)


def load_stage(
    stage: str,
    tensors: Iterable[tuple[str, torch.Tensor]],
    config: Qwen3OmniConfig,
    place: tuple[torch.device, torch.dtype],
    checkpoint: Path,
) -> Any:
    """A stage's model on a device.

    The vocoder runs in fp32 at least: bf16 is audibly wrong (rel. rms 8e-2).
    """
    device, dtype = place
    if stage == "code2wav" and dtype.itemsize < 4:
        dtype = torch.float32
    model = weights.load(PARTS[stage], tensors, config, device, dtype)
    if stage == "encoders":
        return MediaStage(model, checkpoint)
    if stage == "thinker":
        return TextStage(model)
    if stage == "talker":
        return SpeechStage(model, config.tokens.tts_pad, config.merge_size)
    return model
