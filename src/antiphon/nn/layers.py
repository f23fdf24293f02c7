"""The smallest pieces: RMSNorm with the casts of the reference, and the gated MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.nn.cpu import rows_of_panels
from antiphon.nn.products import PANEL_OUTPUTS, linear

ROWS = 4096
"""Of a table that are widened at once, to see whether they are the same."""


class Table:
    """Rows of an embedding. On a CPU they are kept in 16 bits where those hold every number of them, and
    widened as they are read: the same rows in half the memory. In panels they stay as they are."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [vocab, H], or its panels."""
        self._panels = weight if weight.dim() == 3 else None
        self.dtype = weight.dtype if self._panels is None else torch.float32
        self._weight = _narrowed(weight)
        if self._panels is not None:  # compiles, so that the first step doesn't wait for it
            rows_of_panels(self._panels, torch.zeros(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self._weight) * (1 if self._panels is None else PANEL_OUTPUTS)

    def rows(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, H]."""
        if self._panels is not None:
            return rows_of_panels(self._panels, ids)
        return F.embedding(ids, self._weight).to(self.dtype)


def _narrowed(weight: Tensor) -> Tensor:
    if weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return weight
    for dtype in (torch.bfloat16, torch.float16):
        narrow = weight.to(dtype)
        if all(
            torch.equal(a.float(), b) for a, b in zip(narrow.split(ROWS), weight.split(ROWS), strict=True)
        ):
            return narrow
    return weight


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of `x`, compute in fp32, return the dtype of `x`.

    `weight` is [d], or [heads, d] where the heads of one tensor have weights of their own. The reference
    casts to fp32 and back BEFORE it multiplies by the weight; only in fp32 is the fused operator the same
    thing.
    """
    if x.dtype is torch.float32:
        if weight.dim() == 1:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x, weight.shape[-1:], None, eps) * weight
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def swiglu(x: Tensor) -> Tensor:
    """[..., 2I] holding gate and up side by side -> silu(gate) * up, [..., I]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The dense MLP over flat tokens: x [n, H], gate_up [2I, H], down [H, I] -> [n, H]."""
    return linear(swiglu(linear(x, gate_up)), down)
