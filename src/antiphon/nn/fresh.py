"""Zeroed tensors on a CPU that take memory as they are written to."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

SMALL_BYTES = 1 << 16


def fresh(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros [*shape]. torch writes them all; on a CPU the kernel's own zeroed pages do, and each takes memory
    once it is written to. Not for what is small."""
    num_bytes = prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < SMALL_BYTES:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(shape)
