"""The encoders: mel frames and image patches to rows that stand in the place of media tokens.

The towers are transformers' own modules; here they are built from the checkpoint's config, packed and
unpacked. They run once per medium, so nothing about them is hot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.initialization import no_init_weights
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoderConfig,
    Qwen3OmniMoeVisionEncoderConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeAudioEncoder,
    Qwen3OmniMoeVisionEncoder,
)

from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.counts import CHUNK_FRAMES, num_audio_tokens, num_image_tokens

Grid = tuple[int, int, int]


class Encoders:
    """Both towers of one checkpoint."""

    def __init__(self, config: Qwen3OmniConfig, params: Mapping[str, Tensor]) -> None:
        self.audio = AudioEncoder(fill_tower(audio_tower(config.audio), params, "audio."))
        self.vision = VisionEncoder(
            fill_tower(vision_tower(config.vision), params, "vision."), config.merge_size
        )


class AudioEncoder:
    """Mel frames at 100 Hz -> 13 tokens a second."""

    def __init__(self, tower: nn.Module) -> None:
        self.tower = tower

    def encode(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Mels [num_mel_bins, frames] of any lengths -> rows [num_audio_tokens(frames), H], each as if alone.

        Attention never crosses a window, so recordings are packed and not padded. But the tower pads the last
        chunk of a pack to the longest, and its convolutions feel that within the first second: recordings
        shorter than a chunk are packed only with their like.
        """
        packs = defaultdict(list)
        for i, mel in enumerate(mels):
            packs[min(mel.shape[1], CHUNK_FRAMES)].append(i)
        out: dict[int, Tensor] = {}
        for members in packs.values():
            out.update(zip(members, self.encode_pack([mels[i] for i in members]), strict=True))
        return [out[i] for i in range(len(mels))]

    def encode_pack(self, mels: list[Tensor]) -> tuple[Tensor, ...]:
        weight = next(self.tower.parameters())
        frames = [mel.shape[1] for mel in mels]
        packed = torch.cat(mels, 1).to(weight.device, weight.dtype)
        rows = self.tower(packed, feature_lens=torch.tensor(frames, device=weight.device), return_dict=True)
        return rows.last_hidden_state.split([num_audio_tokens(n) for n in frames])


class VisionEncoder:
    """Patches of images (or of a video's pairs of frames) -> one token per merged square of patches."""

    def __init__(self, tower: nn.Module, merge_size: int) -> None:
        self.tower, self.merge_size = tower, merge_size

    def encode(self, patches: Sequence[Tensor], grids: Sequence[Grid]) -> list[tuple[Tensor, list[Tensor]]]:
        """Patches [t * h * w, channels * 2 * 16 * 16] with their grids (t, h, w) -> for each the embeddings
        [tokens, H] and the deepstack features, a list of [tokens, H]."""
        weight = next(self.tower.parameters())
        if not patches:
            return []
        packed = torch.cat(list(patches)).to(weight.device, weight.dtype)
        out = self.tower(packed, grid_thw=torch.tensor(grids, device=weight.device), return_dict=True)
        sizes = [num_image_tokens(grid, self.merge_size) for grid in grids]
        features = zip(*(feature.split(sizes) for feature in out.deepstack_features), strict=True)
        return [
            (rows, list(deep)) for rows, deep in zip(out.pooler_output.split(sizes), features, strict=True)
        ]


def audio_tower(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen3OmniMoeAudioEncoder._from_config(Qwen3OmniMoeAudioEncoderConfig(**config)).eval()


def vision_tower(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen3OmniMoeVisionEncoder._from_config(Qwen3OmniMoeVisionEncoderConfig(**config)).eval()


def fill_tower(tower: nn.Module, params: Mapping[str, Tensor], prefix: str) -> nn.Module:
    """Give the tower its parameters; its buffers keep their fp32, whatever the model's dtype."""
    mine = {name.removeprefix(prefix): t for name, t in params.items() if name.startswith(prefix)}
    tower.load_state_dict(mine, strict=True, assign=True)
    device = next(iter(mine.values())).device
    return tower.requires_grad_(False).to(device)
