"""What the vocoder's streams remember between chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

State = tuple[Tensor, ...]
"""What streams remember between chunks: the frames done int64 [b], then tensors [b, ...] in the order of use.
"""


class Memory:
    """The state while a chunk passes through: read in the order of use, written anew in the same order."""

    def __init__(self, state: State | None) -> None:
        self.old: Iterator[Tensor] | None = None if state is None else iter(state)
        self.new: list[Tensor] = []

    @property
    def is_first(self) -> bool:
        return self.old is None

    @property
    def state(self) -> State:
        return tuple(self.new)

    def recall(self) -> Tensor:
        assert self.old is not None
        return next(self.old)

    def keep(self, tensor: Tensor) -> None:
        self.new.append(tensor)

    def extend(self, x: Tensor, size: int, *, dim: int = -1, zeros: bool = True) -> Tensor:
        """Put the last `size` inputs of this place before x along `dim` (at the start: zeros, or nothing) and
        remember the last `size` of the result."""
        if not self.is_first:
            x = torch.cat((self.recall(), x), dim)
        elif zeros:
            shape = list(x.shape)
            shape[dim] = size
            x = torch.cat((x.new_zeros(shape), x), dim)
        self.keep(x.narrow(dim, x.shape[dim] - size, size).clone())
        return x
