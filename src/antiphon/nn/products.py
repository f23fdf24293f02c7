"""Products of a few rows with a large weight: the arithmetic of every decode step.

On a CPU the general product reads a weight two to four times slower than memory gives it. `pack` lays a
weight out once: in panels for our own kernel where the CPU has AVX-512 or AVX2, elsewhere as oneDNN's read
it. `linear` and `add_linear` take weights of any kind. A product with a packed weight gives a row the same
bits whatever rows are beside it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.nn.cpu import in_half_panels, in_panels, times_panels

PACKED_ROWS = 16
"""The number of rows that the packed layout is chosen for; others are computed from the same layout, and
measured to be as fast as with one chosen for them.
"""

PACKED_NUMEL = 1 << 17
"""Smaller weights stay as they are: 10 µs a call are more than is gained."""

PANEL_OUTPUTS = 16
"""A weight is in panels only where it has a multiple of so many outputs."""

LEFT_ROWS = {"AuthenticAMD": (2, 10), "GenuineIntel": (8, 64)}
"""From and to how many rows, both included, a weight that isn't packed is faster on the left of the product.
By the maker of the CPU, because MKL chooses its kernels by that.
"""


def pack(weight: Tensor, smallest: int = PACKED_NUMEL) -> Tensor:
    """weight [out, in] as `linear` and `add_linear` compute fastest with it; for nothing else.

    A copy on a CPU in fp32, the weight itself elsewhere and where it has fewer than `smallest` elements. Of a
    packed weight only shape, dtype and device can be read.
    """
    wanted = weight.dim() == 2 and weight.dtype is torch.float32 and weight.numel() >= smallest
    if not wanted or weight.device.type != "cpu":
        return weight
    panels = in_panels(weight)
    if panels is not None or not can_pack():
        return weight if panels is None else panels
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)


def pack_halves(weight: Tensor) -> Tensor:
    """As `pack`, in fp16 where that keeps every number: half the bytes, the same products."""
    halves = in_half_panels(weight) if weight.numel() >= PACKED_NUMEL else None
    return pack(weight) if halves is None else halves


def pack_for_tape(weight: Tensor) -> Tensor:
    """The weight as a product of a decoder's layer reads it: in panels if it can be, however small. Where a
    step is one tape (`nn.cpu.tape`), its product costs no call."""
    panels = in_panels(weight)
    return pack(weight) if panels is None else panels


def in_whole_panels(weight: Tensor) -> Tensor:
    """weight [out, in] with outputs of zeros behind its own, as many as `pack` needs for panels. Itself
    where it would not be packed."""
    lacking = -len(weight) % PANEL_OUTPUTS
    is_packed = weight.dtype is torch.float32 and weight.device.type == "cpu"
    return F.pad(weight, (0, 0, 0, lacking)) if is_packed and lacking else weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in], weight [out, in] packed or not, bias [out] -> [..., out]."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    if weight.dim() == 3:
        out = times_panels(x, weight)
        return out if bias is None else out.add_(bias)
    if bias is None and x.dim() == 2 and is_left_faster(x):
        return torch.mm(weight, x.t()).t().contiguous()
    return F.linear(x, weight, bias)


def add_linear(residual: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """residual [n, out] + x [n, in] @ weight [out, in]^T, packed or not."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "").add_(residual)
    if weight.dim() == 3:
        return times_panels(x, weight).add_(residual)
    if is_left_faster(x):
        return torch.add(residual, torch.mm(weight, x.t()).t())
    return torch.addmm(residual, x, weight.t())


def is_left_faster(x: Tensor) -> bool:
    """Whether so many rows [n, in] are multiplied faster from the right."""
    if x.dtype is not torch.float32 or x.device.type != "cpu":
        return False
    first, last = left_rows()
    return first <= x.shape[0] <= last


@cache
def can_pack() -> bool:
    """Whether this build of torch has the operators; they are those that its compiler uses."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


@cache
def left_rows() -> tuple[int, int]:
    """Of this machine's CPU; no rows where its maker isn't known."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return 1, 0
    return next((rows for maker, rows in LEFT_ROWS.items() if maker in text), (1, 0))
