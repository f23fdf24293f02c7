"""Qwen2.5-Omni, for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.latency.shapes import ModelShape
from antiphon.models.decoder_stage import Thinker
from antiphon.models.family import Family
from antiphon.models.geometry import Json
from antiphon.models.layout import speech_of
from antiphon.models.prompt import Prompter
from antiphon.models.qwen2_5_omni.audio import AudioFeatures
from antiphon.models.qwen2_5_omni.config import FRAME_PIXELS, Qwen25OmniConfig
from antiphon.models.qwen2_5_omni.geometry import read_geometry, read_shape
from antiphon.models.qwen2_5_omni.prompt import load_prompter
from antiphon.models.qwen2_5_omni.stages import SpeechStage
from antiphon.models.qwen2_5_omni.voices import load_voices
from antiphon.models.qwen2_5_omni.weights import LAYOUTS
from antiphon.models.qwen_media.positions import Scale
from antiphon.models.qwen_media.preprocess_shapes import video_shape


class Qwen25Omni(Family):
    name = "Qwen2.5-Omni"
    layouts = LAYOUTS

    def read_config(self, values: Mapping[str, Any]) -> Qwen25OmniConfig:
        return Qwen25OmniConfig.from_dict(values)

    def read_geometry(self, config: Qwen25OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
        return read_geometry(config, generation, options)

    def read_shape(self, config: Qwen25OmniConfig, name: str) -> ModelShape:
        return read_shape(config, name)

    def load_prompter(self, path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
        return load_prompter(path, config, max_prompt_tokens)

    def voices(self, config: Qwen25OmniConfig, path: Path) -> tuple[str, ...]:
        return () if config.speech is None else tuple(load_voices(path))

    def dtype_of(self, stage: str, dtype: torch.dtype) -> torch.dtype:
        """token2wav runs in fp32, as in the reference."""
        return torch.float32 if stage == "token2wav" else dtype

    def build(self, stage: str, config: Qwen25OmniConfig, params: dict[str, Tensor]) -> Any:
        """Imports a stage's module when it is built."""
        if stage == "encoders":
            from antiphon.models.qwen2_5_omni.encoders import Qwen25Encoders, audio_tower, vision_tower

            towers = audio_tower(config.audio), vision_tower(config.vision)
            return Qwen25Encoders(*towers, config.merge_size, params)
        if stage == "thinker":
            last = None if config.speech is None else config.thinker.num_layers
            return Thinker(config.thinker, params, scale_of(config).positions, last, keeps_all=True)
        if stage == "talker":
            from antiphon.models.qwen2_5_omni.talker import Talker

            return Talker(speech_of(config.speech), params)
        from antiphon.models.qwen2_5_omni.token2wav import Token2Wav

        return Token2Wav(speech_of(config.speech), params)

    def adapt(self, stage: str, module: Any, config: Qwen25OmniConfig, checkpoint: Path) -> Any:
        if stage == "encoders":
            from antiphon.models.qwen_media import preprocess
            from antiphon.models.qwen_media.media_stage import MediaStage

            image = preprocess.ImagePreprocessor(checkpoint)
            video = preprocess.VideoPreprocessor(checkpoint, video_shape(checkpoint, FRAME_PIXELS))
            return MediaStage(module, AudioFeatures(checkpoint), image, video, scale_of(config))
        if stage == "talker":
            return SpeechStage(module, load_voices(checkpoint), scale_of(config))
        if stage == "token2wav":
            module.add_voices(load_voices(checkpoint))
        return module


def scale_of(config: Qwen25OmniConfig) -> Scale:
    return Scale(config.merge_size, config.positions_per_second, config.chunk_ticks)


FAMILY = Qwen25Omni()
