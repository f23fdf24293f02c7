"""One rank's part of a model that several processes compute together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part is ours, and how parts become a whole.

    total  adds up the parts [n, hidden] of all ranks, the same bits on each; may write into its argument
    """

    rank: int
    ranks: int
    total: Callable[[Tensor], Tensor]
