"""Counter-based noise: a hash of (seed, stage, position, codebook, column), no state; and named streams.

The same integers give the same noise on every device, in every batch, after any preemption.
The mixing function works on 32-bit lanes held in int64, so that numpy and torch agree bit for bit;
`engine.sampler` holds its torch twin and a test compares them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ids import content_key

MASK = 0xFFFFFFFF
MUL_A = 0x7FEB352D
MUL_B = 0x846CA68B
GOLDEN = 0x9E3779B9


def mix32(value: int) -> int:
    """A bijective 32-bit finaliser (lowbias32)."""
    value &= MASK
    value ^= value >> 16
    value = (value * MUL_A) & MASK
    value ^= value >> 15
    value = (value * MUL_B) & MASK
    return value ^ (value >> 16)


def counter_key(seed: int, stage: int, position: int, codebook: int) -> int:
    """The 32-bit key of one draw."""
    key = mix32(seed ^ mix32(seed >> 32))
    for part in (stage, position, codebook):
        key = mix32(key ^ ((part * GOLDEN) & MASK))
    return key


def uniforms(key: int, size: int) -> NDArray[np.float64]:
    """`size` numbers in (0, 1), a function of `key` alone."""
    lanes = (np.arange(size, dtype=np.int64) * GOLDEN + key) & MASK
    lanes ^= lanes >> 16
    lanes = (lanes * MUL_A) & MASK
    lanes ^= lanes >> 15
    lanes = (lanes * MUL_B) & MASK
    lanes ^= lanes >> 16
    return (lanes.astype(np.float64) + 0.5) / (MASK + 1)


def stream(seed: int, *names: str) -> np.random.Generator:
    """A named random stream: the same seed and names give the same numbers, whatever other streams draw."""
    return np.random.Generator(np.random.PCG64([seed, *(content_key(name.encode()) for name in names)]))
