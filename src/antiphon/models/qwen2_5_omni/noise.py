"""The noise from which every mel frame begins: a function of its place in the reply, and of nothing else.

So a frame begins alike in every window, batch and run. The reference draws it anew each time.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

CHUNK_FRAMES = 24


def start_noise(first: int, end: int, mel_dim: int) -> Tensor:
    """Standard normal fp32 [end - first, mel_dim] of the mel frames [first, end)."""
    chunks = range(first // CHUNK_FRAMES, -(-end // CHUNK_FRAMES))
    noise = torch.cat([_chunk(index, mel_dim) for index in chunks])
    return noise[first - chunks.start * CHUNK_FRAMES :][: end - first]


@lru_cache(maxsize=4096)
def _chunk(index: int, mel_dim: int) -> Tensor:
    return torch.randn(CHUNK_FRAMES, mel_dim, generator=torch.Generator().manual_seed(index))
