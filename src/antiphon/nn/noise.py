"""Counter-based noise: a hash of (seed, stage, position, codebook, column), no state.

The same integers give the same noise on every device, in every batch, after any preemption. The mixing
function works on 32-bit lanes held in int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MUL_A = 0x7FEB352D
MUL_B = 0x846CA68B
GOLDEN = 0x9E3779B9


def mix32(lanes: Tensor) -> Tensor:
    """A bijective 32-bit finaliser (lowbias32) on int64 lanes that hold 32-bit values. Products wrap; their
    low 32 bits stay right."""
    lanes = lanes & MASK
    lanes = lanes ^ (lanes >> 16)
    lanes = (lanes * MUL_A) & MASK
    lanes = lanes ^ (lanes >> 15)
    lanes = (lanes * MUL_B) & MASK
    return lanes ^ (lanes >> 16)


def counter_keys(seeds: Tensor, stage: int, positions: Tensor, codebook: int) -> Tensor:
    """Keys int64 [r] of one draw per row, from seeds and positions int64 [r]."""
    keys = mix32(seeds ^ mix32(seeds >> 32))
    for part in (stage, positions, codebook):
        keys = mix32(keys ^ ((part * GOLDEN) & MASK))
    return keys


def uniforms(keys: Tensor, size: int) -> Tensor:
    """fp64 [r, size] in (0, 1); a row depends on its key alone."""
    lanes = torch.arange(size, device=keys.device) * GOLDEN
    return (mix32(lanes + keys[:, None]).double() + 0.5) / (MASK + 1)


def gumbel(keys: Tensor, size: int) -> Tensor:
    """fp64 [r, size] of standard Gumbel noise: argmax(log p + noise) is a draw from p."""
    return -torch.log(-torch.log(uniforms(keys, size)))
