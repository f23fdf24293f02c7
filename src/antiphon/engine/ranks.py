"""Several processes that compute one model together: how they meet, and what they tell each other.

Rank 0 is the engine; it alone knows requests, rows and samples. Before it runs a decoder it tells the other
ranks what (a small message over their standard input, whose end is also how they notice that rank 0 has gone)
and shares the inputs (gloo). So all ranks compute on the same bits and none has state of its own but weights
and pages.
"""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from antiphon.core.config import EngineOptions

WAIT_S = 300.0
"""How long a rank that is alive may keep the others waiting: the ranks' loads differ, their steps don't."""


class BeginRank(msgspec.Struct, frozen=True, tag=True):
    """Load this rank's part and meet the others in `store`."""

    source: str
    options: EngineOptions
    rank: int
    store: str
    threads: int
    """Of rank 0: what all ranks compute alike must be alike to the last bit."""


class NewPages(msgspec.Struct, frozen=True, tag=True):
    """Allocate a stage's pages, in place of earlier ones."""

    stage: str
    num_blocks: int
    block_size: int


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Run a stage's decoder. Inputs of these sizes are shared next: x, positions, and, where there are visual
    rows, their indices and `num_deep` layers of deepstack.
    """

    stage: str
    query_lens: tuple[int, ...]
    cached_lens: tuple[int, ...]
    block_size: int
    tables: bytes
    """int64 [rows, blocks]."""
    hidden_size: int
    num_visual: int = 0
    num_deep: int = 0


class Logits(msgspec.Struct, frozen=True, tag=True):
    """Multiply by the stage's head. Hidden states [rows, hidden_size] are shared next."""

    stage: str
    rows: int
    hidden_size: int


Order = BeginRank | NewPages | Forward | Logits

_length = struct.Struct("<I")


def write_order(pipe: IO[bytes], order: Order) -> None:
    data = msgspec.msgpack.encode(order)
    pipe.write(_length.pack(len(data)) + data)
    pipe.flush()


def read_order(pipe: IO[bytes]) -> Order | None:
    """The next order, or None once rank 0 has gone."""
    head = pipe.read(_length.size)
    if len(head) < _length.size:
        return None
    data = pipe.read(_length.unpack(head)[0])
    return msgspec.msgpack.decode(data, type=Order)


class Collective:
    """Sums and copies between the ranks. All ranks call the same methods in the same order.

    The ranks meet in a file on this machine. Raises RuntimeError once another rank is gone.
    """

    def __init__(self, store: Path, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._store = store
        self._group: Any = None

    def meet(self) -> None:
        """Wait for all the others."""
        store = dist.FileStore(str(self._store), self.ranks)  # pyright: ignore[reportPrivateImportUsage]
        # not torch's default group: a process may take part in several engines
        self._group = dist.ProcessGroupGloo(store, self.rank, self.ranks, timedelta(seconds=WAIT_S))

    def total(self, part: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each."""
        part = part.contiguous()
        self._group.allreduce([part]).wait()
        return part

    def share(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, on all; the others give one of the same size and type to receive it."""
        tensor = tensor.contiguous()
        self._group.broadcast([tensor], dist.BroadcastOptions()).wait()
        return tensor

    def side_by_side(self, part: Tensor) -> Tensor:
        """All ranks' parts [n, w], [n, w * ranks]."""
        parts = [torch.empty_like(part) for _ in range(self.ranks)]
        self._group.allgather([parts], [part.contiguous()]).wait()
        return torch.cat(parts, -1)
