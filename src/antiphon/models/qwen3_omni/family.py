"""Qwen3-Omni, for the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.latency.shapes import ModelShape
from antiphon.models.decoder_stage import DecoderStage, Thinker
from antiphon.models.family import Family
from antiphon.models.geometry import Json
from antiphon.models.layout import speech_of
from antiphon.models.prompt import Prompter
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.geometry import read_geometry, read_shape
from antiphon.models.qwen3_omni.prompt import load_prompter
from antiphon.models.qwen3_omni.shards import load_shard, shard_config, shard_layout
from antiphon.models.qwen3_omni.stages import SpeechStage
from antiphon.models.qwen3_omni.weights import LAYOUTS
from antiphon.models.qwen_media.positions import Scale
from antiphon.nn.shard import Shard
from antiphon.nn.stage_source import Pairs, Place, StageSource


class Qwen3Omni(Family):
    name = "Qwen3-Omni"
    layouts = LAYOUTS

    def read_config(self, values: Mapping[str, Any]) -> Qwen3OmniConfig:
        return Qwen3OmniConfig.from_dict(values)

    def read_geometry(self, config: Qwen3OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
        return read_geometry(config, generation, options)

    def read_shape(self, config: Qwen3OmniConfig, name: str) -> ModelShape:
        return read_shape(config, name)

    def load_prompter(self, path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
        return load_prompter(path, config, max_prompt_tokens)

    def voices(self, config: Qwen3OmniConfig, path: Path) -> tuple[str, ...]:
        return tuple(config.speech.speakers) if config.speech is not None else ()

    def dtype_of(self, stage: str, dtype: torch.dtype) -> torch.dtype:
        """The vocoder runs in fp32 at least: bf16 is audibly wrong (rel. rms 8e-2)."""
        return torch.float32 if stage == "code2wav" and dtype.itemsize < 4 else dtype

    def build(self, stage: str, config: Qwen3OmniConfig, params: dict[str, Tensor]) -> Any:
        """Imports a stage's module when it is built: the encoders bring in transformers."""
        if stage == "encoders":
            from antiphon.models.qwen3_omni.encoders import Encoders, audio_tower, vision_tower

            towers = audio_tower(config.audio), vision_tower(config.vision)
            return Encoders(*towers, config.merge_size, params)
        if stage == "thinker":
            return Thinker(config.thinker, params, scale_of(config).positions, config.capture_layer)
        if stage == "talker":
            from antiphon.models.qwen3_omni.talker import Talker

            return Talker(speech_of(config.speech), params)
        from antiphon.models.qwen3_omni.vocoder import Vocoder

        return Vocoder(speech_of(config.speech).vocoder, params)

    def adapt(self, stage: str, module: Any, config: Qwen3OmniConfig, checkpoint: Path) -> Any:
        if stage == "encoders":
            from antiphon.models.qwen_media import preprocess
            from antiphon.models.qwen_media.media_stage import MediaStage

            ears = preprocess.AudioPreprocessor(checkpoint)
            image = preprocess.ImagePreprocessor(checkpoint)
            video = preprocess.VideoPreprocessor(checkpoint)
            return MediaStage(module, ears, image, video, scale_of(config))
        if stage == "talker":
            return SpeechStage(module, config.tokens.tts_pad, scale_of(config))
        return module

    def load_stage(
        self, source: StageSource, place: Place, checkpoint: Path, shard: Shard | None = None
    ) -> Any:
        """With `shard`, thinker and talker have rank 0's part of the layers."""
        if shard is None or source.stage not in ("thinker", "talker"):
            return super().load_stage(source, place, checkpoint)
        module = load_shard(self, source, place, shard)
        return self.adapt(source.stage, module, source.config, checkpoint)

    def check_ranks(self, stage: str, config: Qwen3OmniConfig, ranks: int) -> None:
        """Raises ConfigError unless so many ranks can divide the thinker or the talker among them."""
        shard_config(stage, config, ranks)

    def load_follower(
        self,
        stage: str,
        read: Callable[[list[str]], Pairs],
        config: Qwen3OmniConfig,
        place: Place,
        shard: Shard,
    ) -> DecoderStage:
        """Another rank's part of the thinker or the talker."""
        names = sorted(shard_layout(self, stage, config, shard).sources)
        return load_shard(self, StageSource(stage, read(names), config), place, shard)


def scale_of(config: Qwen3OmniConfig) -> Scale:
    return Scale(config.merge_size, config.positions_per_second)


FAMILY = Qwen3Omni()
