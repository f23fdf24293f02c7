"""Convolutions over time whose weights lie as oneDNN's kernels read them, on a CPU in fp32.

Values are [b, n, channels], channels last: so a weight is laid out once instead of at every call, nothing is
laid out anew on the way, and a transposed convolution is an ordinary one with more channels.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor


class PackedConv:
    """weight [out, in / groups, k], bias [out]: x [b, n + (k - 1) * dilation, in] -> [b, n, out], contiguous.

    oneDNN wants another layout for short inputs than for long ones and says which only by making it; so each
    length asks for its own when it first occurs, and lengths whose layouts are equal share one.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1, groups: int = 1) -> None:
        self.remembered = (weight.shape[2] - 1) * dilation
        # from channels last a layout is made ten times faster
        self._weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        self._bias = bias
        self._geometry = [0, 0], [1, 1], [1, dilation], groups
        self._layouts: list[Tensor] = []
        self._by_length: dict[int, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        packed = self._packed(x.shape[1])
        out = torch.ops.mkldnn._convolution_pointwise(
            as_image(x), packed, self._bias, *self._geometry, "none", [], ""
        )
        return out.squeeze(2).transpose(1, 2)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual [b, n, out] += the convolution of x."""
        if not self.remembered:
            # a batch of points is one long input; as a batch it might want a layout of its own
            residual, x = residual.view(1, -1, residual.shape[2]), x.view(1, -1, x.shape[2])
        packed = self._packed(x.shape[1])
        after = "add", 1.0, None, [], None
        torch.ops.mkldnn._convolution_pointwise_(
            as_image(residual), as_image(x), packed, self._bias, *self._geometry, *after
        )

    def _packed(self, length: int) -> Tensor:
        packed = self._by_length.get(length)
        if packed is None:
            packed = self._by_length[length] = self._pack(length)
        return packed

    def _pack(self, length: int) -> Tensor:
        size = [1, self._weight.shape[1] * self._geometry[3], 1, length]
        new = torch.ops.mkldnn._reorder_convolution_weight(self._weight, *self._geometry, size)
        for known in self._layouts:
            if is_same_memory(new, known):
                return known
        self._layouts.append(new)
        return new


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two packed weights are equal byte by byte."""
    sizes = [torch.ops.mkldnn._nbytes(t) for t in (one, other)]
    if sizes[0] != sizes[1]:
        return False
    views = [(ctypes.c_byte * sizes[0]).from_address(torch.ops.mkldnn.data_ptr(t)) for t in (one, other)]
    return torch.equal(*(torch.frombuffer(view, dtype=torch.uint8) for view in views))


@cache
def can_pack() -> bool:
    """Whether this build of torch has the operators; they are those that its compiler uses."""
    names = "_reorder_convolution_weight", "_nbytes", "data_ptr"
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def as_image(x: Tensor) -> Tensor:
    """[b, n, channels] as an image of one row, [b, channels, 1, n], channels last; the same memory."""
    return x.transpose(1, 2).unsqueeze(2)


def as_ordinary(weight: Tensor, bias: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Weight [in, out, k] and bias [out] of a transposed convolution -> those of an ordinary one.

    k is a multiple of `stride`. The ordinary one has k / stride taps and its outputs [b, n, stride * out] are
    the transposed one's [b, n * stride, out], but for the ends that not all taps reach.
    """
    taps = weight.unflatten(2, (-1, stride)).flip(2)
    return taps.permute(3, 1, 0, 2).flatten(0, 1).contiguous(), bias.repeat(stride)
