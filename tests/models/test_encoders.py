"""The encoders against transformers' towers: whatever they are packed with, media are encoded as if alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from antiphon.models.qwen3_omni.family import FAMILY
from antiphon.models.qwen_media.preprocess_shapes import num_audio_tokens, num_image_tokens
from models.scenes import PATCH_SIZE, noise

if TYPE_CHECKING:
    from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
    from antiphon.models.qwen3_omni.encoders import Encoders

FRAMES = [330, 37, 100, 640, 37, 8, 99]
GRIDS = [(1, 4, 6), (1, 2, 2), (3, 4, 4), (1, 8, 2)]


def test_packed_audio_equals_transformers_alone(reference: Any, encoders: Encoders) -> None:
    mels = [noise((128, frames), seed=i) for i, frames in enumerate(FRAMES)]
    for mel, rows in zip(mels, encoders.hear(mels), strict=True):
        alone = reference.thinker.get_audio_features(mel[None], torch.ones(1, mel.shape[1]).long())
        assert rows.shape[0] == num_audio_tokens(mel.shape[1])
        torch.testing.assert_close(rows, alone.last_hidden_state, rtol=0, atol=1e-12)


def test_packed_images_equal_transformers_alone(reference: Any, encoders: Encoders) -> None:
    patches = [noise((t * h * w, PATCH_SIZE), seed=i) for i, (t, h, w) in enumerate(GRIDS)]
    encoded = encoders.see(patches, GRIDS)
    for patch, grid, (rows, deepstack) in zip(patches, GRIDS, encoded, strict=True):
        alone = reference.thinker.get_image_features(patch, torch.tensor([grid]))
        assert rows.shape[0] == num_image_tokens(grid)
        torch.testing.assert_close(rows, torch.cat(alone.pooler_output), rtol=0, atol=1e-12)
        for ours, theirs in zip(deepstack, alone.deepstack_features, strict=True):
            torch.testing.assert_close(ours, theirs[0], rtol=0, atol=1e-12)


def test_nothing_to_encode(encoders: Encoders) -> None:
    assert encoders.hear([]) == []
    assert encoders.see([], []) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_keep_fp32(
    tensors: dict[str, torch.Tensor], config: Qwen3OmniConfig, dtype: torch.dtype
) -> None:
    encoders = FAMILY.load("encoders", tensors, config, dtype=dtype)
    for tower in (encoders.audio, encoders.vision):
        assert {p.dtype for p in tower.parameters()} == {dtype}
        assert not any(p.requires_grad for p in tower.parameters())
        assert {b.dtype for b in tower.buffers()} == {torch.float32}
    rows = encoders.hear([noise((128, 120), seed=0)])
    assert rows[0].dtype is dtype
