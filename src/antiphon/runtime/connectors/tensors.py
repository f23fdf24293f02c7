"""Torch tensors as arrays of a message and back. The only module of the room that needs torch."""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon.runtime.connectors.port import DTYPE_BYTES, Array


def array_of(tensor: Tensor) -> Array:
    """Without a copy where the tensor is contiguous and on the CPU. Raises ValueError for a dtype without a
    wire form."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"a tensor of {tensor.dtype} has no wire form; allowed: {', '.join(DTYPE_BYTES)}")
    flat = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    return Array(name, tuple(tensor.shape), flat.numpy().data)


def tensor_of(array: Array) -> Tensor:
    """A view of the array's data, on the CPU: `.clone()` what is needed after its message is released."""
    dtype = getattr(torch, array.dtype)
    if not array.num_bytes:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(array.data, dtype=dtype).reshape(array.shape)
