"""The deciding half's picture of a row table: one column per quantity, one entry per row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import Ints

UNBOUNDED = 1 << 60
"""More tokens than anybody draws."""

Mask = NDArray[np.bool_]
"""One entry per row."""


class Rows:
    """Columns over rows. Planned counts run ahead of confirmed ones by the steps in flight. Who writes into a
    column says so (`changed`): which rows could run is asked several times a step, and worked out once.

    prompt     tokens that a row joined with: its prompt, and what its request drew before
    planned    tokens in the KV once every planned step is done
    confirmed  tokens in the KV by reported steps
    sampled    tokens drawn once every planned step is done
    limit      tokens that may be drawn
    granted    tokens that may be drawn so far: the consumer's credit
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
        self.granted = np.zeros(size, np.int64)
        self.inputs = np.zeros(size, np.int64)
        self.closed = np.zeros(size, np.int64)
        self.blocks = np.zeros(size, np.int64)
        self.order = np.zeros(size, np.int64)
        self.best_effort = np.zeros(size, np.int64)
        self._block_size = block_size
        self._conditioned = conditioned
        self._masks: tuple[Mask, Mask] | None = None
        """Which rows prefill and which decode, since the last change."""
        self._has_work: bool | None = None
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
        self.granted[row] = UNBOUNDED
        self.changed()

    def leave(self, row: int) -> None:
        self.request[row] = -1
        self.changed()

    def plan(self, rows: Ints, counts: Ints, emits: Ints) -> None:
        """One more step will run so many tokens of these rows, and draw one of those that emit."""
        self.planned[rows] += counts
        self.sampled[rows] += emits
        self.changed()

    def changed(self) -> None:
        """Another row may run now, or no more."""
        self._masks = self._has_work = None

    @property
    def running(self) -> Ints:
        """Live rows, oldest first."""
        return self._oldest_first(self.request >= 0)

    @property
    def num_needy(self) -> int:
        """Rows whose next token needs another block."""
        full = self.planned >= self.blocks * self._block_size
        prefilling, decoding = self._could_run()
        return int(np.count_nonzero(full & (prefilling | decoding)))

    @property
    def has_work(self) -> bool:
        """Some row could run."""
        if self._has_work is None:
            prefilling, decoding = self._could_run()
            self._has_work = bool(prefilling.any() or decoding.any())
        return self._has_work

    @property
    def starved(self) -> bool:
        return self.num_spare < len(self.request) and self.num_needy > self.num_spare

    @property
    def prefilling(self) -> Ints:
        """Live rows whose prompt is not wholly planned, oldest first."""
        return self._oldest_first(self._could_run()[0])

    @property
    def decoding(self) -> Ints:
        """Live rows that can draw their next token now, oldest first."""
        return self._oldest_first(self._could_run()[1])

    def wanted(self, rows: Ints) -> Ints:
        """Tokens each row could run in the next step."""
        return np.maximum(self.prompt[rows] - self.planned[rows], 1)

    def _could_run(self) -> tuple[Mask, Mask]:
        """Rows with more of their prompt to compute, and rows that can draw; no row is both."""
        if self._masks is None:
            live, read = self.request >= 0, self.planned >= self.prompt
            decoding = live & read & (self.sampled < np.minimum(self.limit, self.granted))
            if self._conditioned:
                decoding &= (self.inputs >= self.sampled) | (self.closed == 1)
            self._masks = live & ~read, decoding
        return self._masks

    def _oldest_first(self, mask: Mask) -> Ints:
        rows = mask.nonzero()[0]
        return rows[self.order[rows].argsort(kind="stable")] if len(rows) > 1 else rows
