"""Flow matching: from noise to mel frames, along the velocity that the DiT gives.

Solved as the reference does: ten times between 0 and 1, denser at the start (sway), fourth-order Runge-Kutta
(3/8 rule) between them, classifier-free guidance 0.5. The layers are transformers' own; what does not change
from one evaluation to the next (the speaker, the codes, the positions) is computed once here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from antiphon.models.qwen2_5_omni.voices import Voice
from antiphon.models.qwen2_5_omni.windows import NUM_TIMES

GUIDANCE = 0.5
SWAY = -1.0
NOISE_FRAMES = 24


@dataclass(frozen=True, slots=True)
class Speaker:
    """What a voice sounds like, and what no voice does: each fp32 [2, 1, size]."""

    embedding: Tensor
    condition: Tensor


@dataclass(frozen=True, slots=True)
class Fixed:
    """What stays the same in all evaluations over b windows of n mel frames: first all guided, then all free.

    inputs     [2b, n, size] beside the noisy mel frames
    angles     cos and sin, each [2b, n, head_dim]
    distance   blocks from row to column, [2b, heads, n, n]
    """

    inputs: tuple[Tensor, ...]
    angles: tuple[Tensor, Tensor]
    distance: Tensor


class Flow:
    """The DiT and its solver."""

    def __init__(self, dit: Any) -> None:
        self._dit = dit
        self.block_size: int = dit.block_size
        self.repeats: int = dit.repeats
        self.mel_dim: int = dit.mel_dim
        self.device = dit.proj_out.weight.device

    def speaker(self, voice: Voice) -> Speaker:
        """Encodes the voice's recording."""
        with torch.inference_mode():
            mel, condition = voice.mel.to(self.device), voice.condition.to(self.device)
            both = torch.cat([mel, torch.zeros_like(mel)])
            embedding = self._dit.input_embed.spk_encoder(both)
        return Speaker(embedding[:, None], torch.stack([condition, torch.zeros_like(condition)]))

    def sample(self, codes: Tensor, speakers: Sequence[Speaker], noise: Tensor) -> Tensor:
        """codes int64 [b, n] and noise [b, n * repeats, mel] -> mel [b, mel, n * repeats]."""
        fixed = self._fixed(codes, speakers)
        times = torch.linspace(0, 1, NUM_TIMES, device=self.device)
        times = times + SWAY * (torch.cos(torch.pi / 2 * times) - 1 + times)
        x = noise
        for start, end in pairwise(times):
            x = x + self._step(x, start, end, fixed)
        return x.transpose(1, 2)

    def _step(self, x: Tensor, start: Tensor, end: Tensor, fixed: Fixed) -> Tensor:
        """What x [b, n, mel] gains from one time to the next."""
        size = end - start
        k1 = self._velocity(x, start, fixed)
        k2 = self._velocity(x + size * k1 / 3, start + size / 3, fixed)
        k3 = self._velocity(x + size * (k2 - k1 / 3), start + size * 2 / 3, fixed)
        k4 = self._velocity(x + size * (k1 - k2 + k3), end, fixed)
        return (k1 + 3 * (k2 + k3) + k4) * size / 8

    def _velocity(self, x: Tensor, time: Tensor, fixed: Fixed) -> Tensor:
        dit = self._dit
        at = dit.time_embed(time.repeat(2 * len(x)))
        embedding, codes, condition = fixed.inputs
        h = dit.input_embed.proj(torch.cat((x.repeat(2, 1, 1), embedding, codes, condition), -1))
        for block in dit.transformer_blocks:
            h = block(h, at, position_embeddings=fixed.angles, block_diff=fixed.distance)
        guided, free = dit.proj_out(dit.norm_out(h, at)).chunk(2)
        return guided + (guided - free) * GUIDANCE

    def _fixed(self, codes: Tensor, speakers: Sequence[Speaker]) -> Fixed:
        dit, length = self._dit, codes.shape[1] * self.repeats
        shown = torch.cat([dit.text_embed(codes), dit.text_embed(codes, drop_code=True)])
        places = torch.arange(length, device=self.device).expand(len(shown), -1)
        embeddings = torch.stack([speaker.embedding for speaker in speakers], 1).flatten(0, 1)
        conditions = torch.stack([speaker.condition for speaker in speakers], 1).flatten(0, 1)
        inputs = (embeddings.expand(-1, length, -1), shown, conditions.expand(-1, length, -1))
        return Fixed(inputs, dit.rotary_embed(shown, places), dit._create_block_diff(shown))


def start_noise(first: int, end: int, mel_dim: int) -> Tensor:
    """Standard normal fp32 [end - first, mel_dim] from which the mel frames [first, end) begin: a function of
    their place in the reply and of nothing else, so that a frame begins alike in every window, batch and run.
    The reference draws it anew each time.
    """
    chunks = range(first // NOISE_FRAMES, -(-end // NOISE_FRAMES))
    noise = torch.cat([_noise(index, mel_dim) for index in chunks])
    return noise[first - chunks.start * NOISE_FRAMES :][: end - first]


@lru_cache(maxsize=4096)
def _noise(index: int, mel_dim: int) -> Tensor:
    return torch.randn(NOISE_FRAMES, mel_dim, generator=torch.Generator().manual_seed(index))
