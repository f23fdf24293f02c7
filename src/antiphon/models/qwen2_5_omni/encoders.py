"""The encoders: mel frames and image patches to rows that stand in the place of media tokens.

The towers are transformers' own modules, as Qwen3-Omni's are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.initialization import no_init_weights
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
    Qwen2_5OmniVisionEncoderConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoder,
    Qwen2_5OmniVisionEncoder,
)

from antiphon.models.qwen2_5_omni.audio import num_audio_tokens
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig
from antiphon.models.qwen3_omni.counts import num_image_tokens
from antiphon.models.qwen3_omni.encoders import fill_tower

Grid = tuple[int, int, int]


class Encoders:
    """Both towers of one checkpoint."""

    def __init__(self, config: Qwen25OmniConfig, params: Mapping[str, Tensor]) -> None:
        self.audio = fill_tower(audio_tower(config.audio), params, "audio.")
        self.vision = fill_tower(vision_tower(config.vision), params, "vision.")
        self.merge_size = config.merge_size
        weight = next(self.audio.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    def hear(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Mels [bins, frames] of any lengths -> rows [num_audio_tokens(frames), H], each as if alone: chunks
        of two seconds see nothing outside them.
        """
        if not mels:
            return []
        frames = [mel.shape[1] for mel in mels]
        packed = torch.cat(list(mels), 1).to(self.device, self.dtype)
        rows = self.audio(packed, feature_lens=torch.tensor(frames, device=self.device)).last_hidden_state
        return list(rows.split([num_audio_tokens(count) for count in frames]))

    def see(self, patches: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """Patches with their grids (t, h, w) -> for each the rows [tokens, H]."""
        if not patches:
            return []
        packed = torch.cat(list(patches)).to(self.device, self.dtype)
        rows = self.vision(packed, grid_thw=torch.tensor(grids, device=self.device)).pooler_output
        return list(rows.split([num_image_tokens(grid, self.merge_size) for grid in grids]))


def audio_tower(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen2_5OmniAudioEncoder._from_config(Qwen2_5OmniAudioEncoderConfig(**config)).eval()


def vision_tower(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen2_5OmniVisionEncoder._from_config(Qwen2_5OmniVisionEncoderConfig(**config)).eval()
