"""FlashInfer's paged attention behind the interface of the reference."""

from __future__ import annotations

from typing import Any

import flashinfer  # pyright: ignore[reportMissingImports]
import torch
from torch import Tensor

from antiphon.nn.attention import PagedBatch

WORKSPACE_BYTES = 128 * 2**20


class FlashInfer:
    """One stage's attention. A step is planned at its first layer; the others reuse the plan.

    Its one kernel serves prefill and decode: a decoding row is a prefill of one token.
    """

    def __init__(self) -> None:
        self._wrapper: Any = None
        self._planned: PagedBatch | None = None

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch) -> Tensor:
        """q [n, H, d] over pages [blocks, block_size, K, d] with this step's keys in them -> [n, H, d]."""
        if self._wrapper is None:
            workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
            self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        if self._planned is not batch:
            self._plan(q, k_pages, batch)
            self._planned = batch
        return self._wrapper.run(q, (k_pages, v_pages))

    def _plan(self, q: Tensor, k_pages: Tensor, batch: PagedBatch) -> None:
        """Rows as FlashInfer wants them: offsets of queries and blocks, all blocks side by side."""
        lengths = batch.starts + batch.cu.diff()
        widths = (lengths + batch.block_size - 1) // batch.block_size
        mine = torch.arange(batch.tables.shape[1], device=q.device) < widths[:, None]
        offsets = torch.cat((widths.new_zeros(1), widths.cumsum(0)))
        self._wrapper.plan(
            batch.cu.int(),
            offsets.int(),
            batch.tables[mine].int(),
            ((lengths - 1) % batch.block_size + 1).int(),
            q.shape[1],
            k_pages.shape[2],
            q.shape[2],
            batch.block_size,
            causal=True,
            q_data_type=q.dtype,
            kv_data_type=k_pages.dtype,
        )
