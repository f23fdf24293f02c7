"""The encoders: mel frames and image patches to rows that stand in the place of media tokens.

The towers are transformers' own modules, as Qwen3-Omni's are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from antiphon.models.qwen3_omni.encoders import Encoders


class Qwen25Encoders(Encoders):
    """Both towers of one checkpoint, without deepstack."""

    def pack_of(self, frames: int) -> int:
        """All in one: chunks of two seconds see nothing outside them."""
        return 0

    def num_tokens(self, frames: int) -> int:
        """25 a second."""
        return num_audio_tokens(frames)

    def deepstack_of(self, out: Any) -> Sequence[Tensor]:
        return ()


def audio_tower(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen2_5OmniAudioEncoder._from_config(Qwen2_5OmniAudioEncoderConfig(**config)).eval()


def vision_tower(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen2_5OmniVisionEncoder._from_config(Qwen2_5OmniVisionEncoderConfig(**config)).eval()
