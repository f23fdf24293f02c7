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

from antiphon.models.qwen_media.preprocess_shapes import CHUNK_FRAMES, num_audio_tokens, num_image_tokens

Grid = tuple[int, int, int]


class Encoders:
    """Both towers of one checkpoint. Implements `media_stage.Towers`."""

    def __init__(
        self, audio: nn.Module, vision: nn.Module, merge_size: int, params: Mapping[str, Tensor]
    ) -> None:
        self.audio, self.vision = fill_tower(audio, params, "audio."), fill_tower(vision, params, "vision.")
        self.merge_size = merge_size
        weight = next(self.audio.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    def hear(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Mels [bins, frames] at 100 Hz, of any lengths -> for each the rows [tokens, H], as if alone."""
        packs = defaultdict(list)
        for i, mel in enumerate(mels):
            packs[self.pack_of(mel.shape[1])].append(i)
        out: dict[int, Tensor] = {}
        for members in packs.values():
            out.update(zip(members, self._hear_pack([mels[i] for i in members]), strict=True))
        return [out[i] for i in range(len(mels))]

    def see(
        self, patches: Sequence[Tensor], grids: Sequence[Grid]
    ) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
        """Patches [t * h * w, channels * 2 * patch * patch] of images (or of a video's pairs of frames) with
        their grids (t, h, w) -> for each the rows, one per merged square of patches: embeddings [tokens, H]
        and the deepstack features, each [tokens, H]."""
        if not patches:
            return []
        packed = torch.cat(list(patches)).to(self.device, self.dtype)
        out = self.vision(packed, grid_thw=torch.tensor(grids, device=self.device), return_dict=True)
        sizes = [num_image_tokens(grid, self.merge_size) for grid in grids]
        rows = (out.pooler_output, *self.deepstack_of(out))
        return [
            (shown, tuple(deep)) for shown, *deep in zip(*(part.split(sizes) for part in rows), strict=True)
        ]

    def pack_of(self, frames: int) -> int:
        """Recordings of the same number are packed: attention never crosses a window, so nothing is padded.

        But the tower pads the last chunk of a pack to the longest, and its convolutions feel that within the
        first second: recordings shorter than a chunk are packed only with their like.
        """
        return min(frames, CHUNK_FRAMES)

    def num_tokens(self, frames: int) -> int:
        """13 a second."""
        return num_audio_tokens(frames)

    def deepstack_of(self, out: Any) -> Sequence[Tensor]:
        """Of what the vision tower gave."""
        return out.deepstack_features

    def _hear_pack(self, mels: list[Tensor]) -> tuple[Tensor, ...]:
        frames = [mel.shape[1] for mel in mels]
        packed = torch.cat(mels, 1).to(self.device, self.dtype)
        rows = self.audio(packed, feature_lens=torch.tensor(frames, device=self.device), return_dict=True)
        return rows.last_hidden_state.split([self.num_tokens(count) for count in frames])


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
