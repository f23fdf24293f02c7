"""The row ledger: the deciding half's picture of an executor's row table, one column per quantity.

It is the only writer of its columns, and of what the next step has to say about rows beside joins.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.facts import NO_INTS, Ints, Mask
from antiphon.core.plans import ints
from antiphon.kv.blocks import BlockPool
from antiphon.stage.requests import ArRequest


class RowLedger:
    """Columns over rows. Planned counts run ahead of confirmed ones by the steps in flight.

    request     number of the request in the row, -1 of a free one
    to_compute  tokens that are computed before the row draws: the prompt, and what its request drew before
    planned     tokens in the KV once every planned step is done
    confirmed   tokens in the KV by reported steps
    sampled     tokens drawn once every planned step is done
    limit       tokens that may be drawn
    granted     tokens that may be drawn so far: the consumer's credit
    inputs      upstream tokens received (conditioned stages)
    closed      1: no more upstream tokens will come, padding follows
    blocks      blocks held per group
    order       smaller is older
    tier        `policy.base.Tier`
    slot        where the frontier knows the response
    told        the request is told of each token of its prompt
    """

    def __init__(self, size: int, block_size: int, conditioned: bool) -> None:
        self.request = np.full(size, -1, np.int64)
        columns = np.zeros((12, size), np.int64)
        self.to_compute, self.planned, self.confirmed, self.sampled, self.limit, self.granted = columns[:6]
        self.inputs, self.closed, self.blocks, self.order, self.tier, self.slot = columns[6:]
        self.told = np.zeros(size, np.bool_)
        self._block_size = block_size
        self._conditioned = conditioned
        self._pool = BlockPool(size)
        self._leaves: list[int] = []
        self._inputs: list[tuple[int, int]] = []
        self._could_run: Mask | None = None
        """Since the last change: it is asked several times a step."""
        self._has_work: bool | None = None
        self._running: Ints | None = None

    # -- writing -------------------------------------------------------------------------------------

    def seat(self, request: ArRequest, cached: int, limit: int) -> int:
        """Give a request a free row. `cached` of its tokens are in the KV."""
        row = self._pool.allocate(1)[0]
        drawn = len(request.tokens)
        self.request[row] = request.request
        self.to_compute[row] = len(request.prompt.token_ids) + drawn
        self.planned[row] = self.confirmed[row] = cached
        self.sampled[row], self.limit[row], self.granted[row] = drawn, limit, request.granted
        self.inputs[row], self.closed[row] = len(request.inputs), request.closed
        self.blocks[row] = 0
        self.order[row], self.tier[row], self.slot[row] = request.order, request.tier, request.slot
        self.told[row] = request.sampling.prompt_logprobs and not drawn
        self._inputs += [(row, token) for token in request.inputs]
        self._running = None
        self._changed()
        return row

    def leave(self, row: int, after_step: int | None) -> None:
        """Free a row, to be used again once step `after_step` is settled (at once if None)."""
        self.request[row] = -1
        self._pool.release([row], after_step)
        self._leaves.append(row)
        self._inputs = [entry for entry in self._inputs if entry[0] != row]
        self._running = None
        self._changed()

    def push(self, row: int, token: int) -> None:
        """One more upstream token."""
        self.inputs[row] += 1
        self._inputs.append((row, token))
        self._changed()

    def update(self, request: ArRequest) -> None:
        """Its credit or its tier is another one, or no more upstream tokens will come."""
        row = request.row
        assert row is not None
        self.granted[row], self.closed[row], self.tier[row] = request.granted, request.closed, request.tier
        self._changed()

    def grow(self, rows: Ints | int, counts: Ints | int) -> None:
        """They hold so many more blocks."""
        self.blocks[rows] += counts

    def plan(self, rows: Ints, counts: Ints, emits: Ints) -> None:
        """One more step will run so many tokens of these rows, and draw one of those that emit."""
        self.planned[rows] += counts
        self.sampled[rows] += emits
        self._changed()

    def confirm(self, rows: Ints | int, reach: Ints | int) -> None:
        """Reported steps have come so far."""
        self.confirmed[rows] = reach

    def settle(self, step: int) -> None:
        """Every step up to `step` is done."""
        self._pool.settle(step)

    def drain(self) -> tuple[Ints, Ints, Ints]:
        """What the next step tells the executor of its rows: those given up since the last call, and of each
        upstream token its row and the token."""
        leaves = NO_INTS
        if self._leaves:
            leaves, self._leaves = ints(self._leaves), []
        if not self._inputs:
            return leaves, NO_INTS, NO_INTS
        rows, tokens = zip(*self._inputs, strict=True)
        self._inputs = []
        return leaves, ints([*rows]), ints([*tokens])

    def _changed(self) -> None:
        """Another row may run now, or no more."""
        self._could_run = self._has_work = None

    # -- reading -------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_pending_free(self) -> int:
        """Rows that come back by themselves once steps in flight are done."""
        return self._pool.num_pending_free

    @property
    def in_use(self) -> float:
        """Share of the rows that requests have, 0 to 1."""
        return self._pool.in_use

    @property
    def running(self) -> Ints:
        """Rows in use, oldest first."""
        if self._running is None:
            rows = (self.request >= 0).nonzero()[0]
            self._running = rows[self.order[rows].argsort(kind="stable")] if len(rows) > 1 else rows
            self._running.flags.writeable = False  # policies see it
        return self._running

    @property
    def has_work(self) -> bool:
        """Some row could run."""
        if self._has_work is None:
            self._has_work = bool(np.count_nonzero(self.could_run))
        return self._has_work

    @property
    def could_run(self) -> Mask:
        """Rows with more of their prompt to compute, and rows that can draw: bool [rows]."""
        could_run = self._could_run
        if could_run is None:
            read = self.planned >= self.to_compute
            draws = self.sampled < np.minimum(self.limit, self.granted)
            if self._conditioned:
                draws &= (self.inputs >= self.sampled) | (self.closed == 1)
            could_run = self._could_run = (self.request >= 0) & (~read | draws)
        return could_run

    @property
    def num_short(self) -> int:
        """Rows that could run and whose next token needs another block."""
        full = self.planned >= self.blocks * self._block_size
        return int(np.count_nonzero(full & self.could_run))

    def wanted(self, rows: Ints) -> Ints:
        """Tokens each row could run in the next step."""
        return np.maximum(self.to_compute[rows] - self.planned[rows], 1)

    def check_integrity(self, seated: dict[int, ArRequest]) -> None:
        """Rows of all these, and of no other; raises AssertionError otherwise."""
        self._pool.check_integrity(sorted(seated))
        for row, request in seated.items():
            assert request.request == int(self.request[row]), "a row names a request that sits elsewhere"
            assert request.sequence is not None
            assert request.sequence.num_blocks == int(self.blocks[row]), "block count of a row is wrong"
        assert (self.confirmed <= self.planned).all(), "confirmed runs ahead of planned"
