"""What sessions left behind when they closed."""

from __future__ import annotations

import numpy as np

from antiphon.kv.sequences import prefix_of
from antiphon.kv.stage_kv import StageKv


def check_cache_leaves(kv: StageKv) -> None:
    """All that nothing holds is to be had, cache too, and then no prompt finds anything."""
    assert kv.blocks.num_free == kv.num_blocks
    everything, _ = kv.open(
        "everything", prefix_of(np.array([100], np.int64), kv.block_size), kv.num_blocks, None
    )
    assert kv.grow(everything, kv.num_blocks * kv.block_size)
    assert kv.blocks.num_cache == 0
    kv.check_integrity()
    kv.discard(everything, None)
    kv.check_integrity()
