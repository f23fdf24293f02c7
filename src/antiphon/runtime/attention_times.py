"""Measures decoding attention on this machine's CPU, of the shape of a decoder's layer: what rows cost whose
attention is computed beside the device (OmniServe §3.2, eq. 3)."""

from __future__ import annotations

import numpy as np
import torch

from antiphon.latency.fit import fit_attention
from antiphon.latency.models import AttentionModel
from antiphon.latency.shapes import DecoderShape
from antiphon.nn.attention import PagedBatch
from antiphon.nn.backends import BACKENDS
from antiphon.runtime.stopwatch import Stopwatch

ROWS = (1, 2, 4, 8)
CONTEXTS = (64, 256, 1024, 2048)
BLOCK_SIZE = 16
REPEATS = 7
QUARTILE = 25


@torch.inference_mode()
def cpu_attention(shape: DecoderShape) -> AttentionModel:
    """Eq. (3) of one layer in fp32, over rows and contexts, each with the planning of its batch."""
    places = [(rows, context) for rows in ROWS for context in CONTEXTS]
    seconds: dict[tuple[int, int], list[float]] = {place: [] for place in places}
    attend, watch = BACKENDS["cpu"].create(), Stopwatch()
    width = max(CONTEXTS) // BLOCK_SIZE
    pages = torch.randn(2, max(ROWS) * width, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    tables = np.arange(max(ROWS) * width).reshape(max(ROWS), width)
    for _ in range(REPEATS + 1):
        for rows, context in places:
            q = torch.randn(rows, shape.heads, shape.head_dim)
            watch.start()
            batch = PagedBatch.build([1] * rows, [context - 1] * rows, tables[:rows], BLOCK_SIZE)
            attend(q, pages[0], pages[1], batch)
            seconds[rows, context].append(watch.stop())
    return fit_attention(
        [
            (rows * context, rows, float(np.percentile(taken[1:], QUARTILE)))
            for (rows, context), taken in seconds.items()
        ]
    )
