"""A pool of four small layers, whose pages hold random numbers."""

from __future__ import annotations

import torch

from antiphon.core.config import ArConfig
from antiphon.engine.kv_pool import KvPool

LAYERS, BLOCKS, BLOCK_SIZE = 4, 6, 2
SPLIT = (("low", 0, 1), ("high", 1, 4))


def new_pool(groups: tuple[tuple[str, int, int], ...] = SPLIT, host_blocks: int = 8) -> KvPool:
    """Groups "low" (layer 0) and "high" (1 to 3), and the payload "beside" of width 5."""
    config = ArConfig(num_blocks=BLOCKS, block_size=BLOCK_SIZE, layer_groups=groups, host_blocks=host_blocks)
    shape = BLOCKS, BLOCK_SIZE, 1, 3
    pages = [(torch.rand(shape), torch.rand(shape)) for _ in range(LAYERS)]
    return KvPool(pages, config, {"beside": torch.rand(BLOCKS, BLOCK_SIZE, 5)})
