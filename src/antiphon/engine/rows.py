"""The executing half of a row table: block tables as ordered, and the paged batch of a step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon.core.plans import ArStep
from antiphon.nn.attention import PagedBatch


class BlockTables:
    """Per KV group an int64 array [max_rows, max_blocks], kept up by each step's block deltas."""

    def __init__(self, groups: tuple[str, ...], max_rows: int, max_blocks: int, block_size: int) -> None:
        self._tables = {group: np.zeros((max_rows, max_blocks), np.int64) for group in groups}
        self.block_size = block_size

    def apply(self, step: ArStep) -> None:
        for delta in step.blocks:
            self._tables[delta.group][delta.rows, delta.index] = delta.blocks

    def batch(self, group: str, step: ArStep, device: torch.device) -> PagedBatch:
        """The flat batch of a step in one group."""
        return PagedBatch.build(
            step.counts.tolist(),
            step.starts.tolist(),
            self._tables[group][step.rows],
            self.block_size,
            device,
        )

    def slots(self, group: str, row: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Flat slots of a row's token positions."""
        blocks = self._tables[group][row, positions // self.block_size]
        return blocks * self.block_size + positions % self.block_size
