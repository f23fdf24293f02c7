"""The deciding half's picture of a row table: one column per quantity, one entry per row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import Ints


class Rows:
    """Columns over rows. Planned counts run ahead of confirmed ones by the steps in flight.

    prompt     tokens that a row joined with: its prompt, and what its request drew before
    planned    tokens in the KV once every planned step is done
    confirmed  tokens in the KV by reported steps
    sampled    tokens drawn once every planned step is done
    limit      tokens that may be drawn
    inputs     upstream tokens received (conditioned stages)
    closed     1: no more upstream tokens will come, padding follows
    blocks     blocks held per group
    order      smaller is older; best effort counts as younger than all else
    best_effort  1: all others go first
    """

    def __init__(self, size: int, block_size: int, conditioned: bool) -> None:
        self.request = np.full(size, -1, np.int64)
        self.prompt = np.zeros(size, np.int64)
        self.planned = np.zeros(size, np.int64)
        self.confirmed = np.zeros(size, np.int64)
        self.sampled = np.zeros(size, np.int64)
        self.limit = np.zeros(size, np.int64)
        self.inputs = np.zeros(size, np.int64)
        self.closed = np.zeros(size, np.int64)
        self.blocks = np.zeros(size, np.int64)
        self.order = np.zeros(size, np.int64)
        self.best_effort = np.zeros(size, np.int64)
        self._block_size = block_size
        self._conditioned = conditioned
        self.num_waiting = 0
        self.crowded = False
        """Best-effort work has the rows or blocks that somebody else waits for."""
        self.num_spare = 0
        """Blocks per group that can be had now, or once the steps in flight are done."""

    def join(self, row: int, request: int, prompt: int, cached: int, order: int) -> None:
        self.request[row] = request
        self.prompt[row] = prompt
        self.planned[row] = self.confirmed[row] = cached
        self.sampled[row] = self.limit[row] = self.inputs[row] = self.closed[row] = self.blocks[row] = 0
        self.order[row] = order

    def leave(self, row: int) -> None:
        self.request[row] = -1

    @property
    def running(self) -> Ints:
        """Live rows, oldest first."""
        return self._oldest_first(self.request >= 0)

    @property
    def num_needy(self) -> int:
        """Rows whose next token needs another block."""
        rows = np.concatenate([self.prefilling, self.decoding])
        return int((self.planned[rows] >= self.blocks[rows] * self._block_size).sum())

    @property
    def starved(self) -> bool:
        return self.num_needy > self.num_spare

    @property
    def prefilling(self) -> Ints:
        """Live rows whose prompt is not wholly planned, oldest first."""
        return self._oldest_first((self.request >= 0) & (self.planned < self.prompt))

    @property
    def decoding(self) -> Ints:
        """Live rows that can draw their next token now, oldest first."""
        ready = (self.request >= 0) & (self.planned >= self.prompt) & (self.sampled < self.limit)
        if self._conditioned:
            ready &= (self.inputs >= self.sampled) | (self.closed == 1)
        return self._oldest_first(ready)

    def wanted(self, rows: Ints) -> Ints:
        """Tokens each row could run in the next step."""
        return np.maximum(self.prompt[rows] - self.planned[rows], 1)

    def _oldest_first(self, mask: NDArray[np.bool_]) -> Ints:
        rows = np.nonzero(mask)[0]
        return rows[np.argsort(self.order[rows], kind="stable")]
