"""The seats of a decoder stage: which request has which row and KV, and what changed since the last step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.facts import Ints
from antiphon.core.graph import Stage, Survives
from antiphon.core.plans import BlockDelta, Join, ints
from antiphon.kv.blocks import BlockPool
from antiphon.kv.prefix import Prefix, prefix_of
from antiphon.kv.sequences import StageKv
from antiphon.stage.groups import kv_groups
from antiphon.stage.requests import ArRequest
from antiphon.stage.rows import Rows
from antiphon.stage.sizes import Sizes

Entry = tuple[str, int, int, int]
"""A block table entry: (group, row, index, block)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a step's plan tells the executor of its seats, beside who joins."""

    leaves: Ints
    blocks: tuple[BlockDelta, ...]
    inputs_rows: Ints
    inputs_tokens: Ints


class Seats:
    """Owner of one stage's rows and KV.

    `after_step` is the last step in flight: what is given up now may still be named by it.
    """

    def __init__(self, stage: Stage, config: ArConfig) -> None:
        self.kv = StageKv(kv_groups(stage, config), config.num_blocks, config.block_size)
        self.rows = Rows(config.max_rows, config.block_size, stage.conditioned)
        self.sizes = Sizes(config, self.kv.num_blocks)
        self._config = config
        self._survives = stage.survives
        self._pool = BlockPool(config.max_rows)
        self._leaves: list[int] = []
        self._inputs: list[tuple[int, int]] = []
        self._entries: list[Entry] = []

    @property
    def num_free(self) -> int:
        """Rows."""
        return self._pool.num_free

    @property
    def num_limbo(self) -> int:
        """Rows and blocks that come back by themselves once steps in flight are done."""
        return self._pool.num_limbo + self.kv.num_limbo

    def cached(self, request: ArRequest) -> int:
        """Leading tokens that it would find cached if it joined now."""
        return self.kv.cached(request.owner, self._prefix(request))

    def fits(self, request: ArRequest, apart: int) -> bool:
        """Are there blocks for it beside `apart` others?"""
        return self.kv.fits(request.owner, self._prefix(request), self.sizes.promise(request), apart)

    def join(self, request: ArRequest, after_step: int | None) -> Join:
        """Give a waiting request that fits a row and its KV."""
        row = self._pool.allocate(1)[0]
        promise = self.sizes.promise(request)
        sequence, cached = self.kv.open(request.owner, self._prefix(request), promise, after_step)
        request.row, request.sequence = row, sequence
        request.cached = cached if request.cached is None else request.cached
        self._fill_columns(request, row, cached)
        self.rows.blocks[row] = sequence.num_blocks
        self._inputs += [(row, token) for token in request.inputs]
        self._add_entries(row, self.kv.entries(sequence))
        return Join(
            row,
            request.request,
            request.prompt,
            cached,
            request.sampling,
            np.array(request.tokens, np.int64).reshape(-1, self._config.width),
            request.first_input,
            request.voice,
            request.residual,
        )

    def _fill_columns(self, request: ArRequest, row: int, cached: int) -> None:
        drawn = len(request.tokens)
        self.rows.join(row, request.request, len(request.prompt.token_ids) + drawn, cached, request.order)
        self.rows.sampled[row] = drawn
        self.rows.limit[row] = self.sizes.limit(request)
        self.rows.best_effort[row] = int(request.is_best_effort)
        self.rows.inputs[row] = len(request.inputs)
        self.rows.closed[row] = int(request.closed)

    def push(self, row: int, token: int) -> None:
        """One more upstream token for who sits there."""
        self.rows.inputs[row] += 1
        self._inputs.append((row, token))

    def grow(self, request: ArRequest, num_tokens: int) -> bool:
        """Make room for `num_tokens` in all; False while there is none."""
        row, sequence = request.row, request.sequence
        assert row is not None
        assert sequence is not None
        entries = self.kv.grow(sequence, num_tokens)
        if entries is None:
            return False
        self._add_entries(row, entries)
        self.rows.blocks[row] = sequence.num_blocks
        return True

    def learn(self, request: ArRequest) -> None:
        """Reported steps filled blocks of it: they may be shared from now on."""
        assert request.sequence is not None
        self.kv.learn(request.sequence, self._reusable(request))

    def leave(self, request: ArRequest, after_step: int | None) -> None:
        """Free the row; keep of the KV what survives a turn, as far as reported steps filled it."""
        row, sequence = request.row, request.sequence
        assert row is not None
        assert sequence is not None
        if self._survives is Survives.NONE or request.is_best_effort:
            self.kv.discard(sequence, after_step)
        else:
            self.kv.park(request.session, sequence, self._reusable(request), after_step)
        self.rows.leave(row)
        self._pool.release([row], after_step)
        self._leaves.append(row)
        self._inputs = [entry for entry in self._inputs if entry[0] != row]

    def settle(self, step: int) -> None:
        """Steps report in order, so everything up to `step` is done."""
        self.kv.settle(step)
        self._pool.settle(step)

    def drain(self) -> Changes:
        """All since the last call."""
        leaves, self._leaves = self._leaves, []
        inputs, self._inputs = self._inputs, []
        entries, self._entries = self._entries, []
        return Changes(
            ints(leaves),
            block_deltas(self.kv.groups, entries),
            ints([row for row, _ in inputs]),
            ints([token for _, token in inputs]),
        )

    def check_integrity(self, requests: Iterable[ArRequest]) -> None:
        """Rows and blocks of all these, and of nobody else; raises AssertionError otherwise."""
        self.kv.check_integrity()
        seated = {request.row: request for request in requests if request.row is not None}
        self._pool.check_integrity(sorted(seated))
        for row, request in seated.items():
            assert request.request == int(self.rows.request[row]), "a row names a request that sits elsewhere"
            assert request.sequence is not None
            assert request.sequence.num_blocks == int(self.rows.blocks[row]), "block count of a row is wrong"
        assert (self.rows.confirmed <= self.rows.planned).all(), "confirmed runs ahead of planned"

    def _reusable(self, request: ArRequest) -> Ints:
        """Keys of the row's positions that reported steps filled and that another prompt may begin with."""
        return request.reusable(self._survives, int(self.rows.confirmed[request.row]))

    def _prefix(self, request: ArRequest) -> Prefix:
        if request.prefix is None:
            request.prefix = prefix_of(request.keys(self._survives), self._config.block_size)
        return request.prefix

    def _add_entries(self, row: int, entries: list[tuple[str, int, int]]) -> None:
        self._entries += [(group, row, index, block) for group, index, block in entries]


def block_deltas(groups: tuple[str, ...], entries: list[Entry]) -> tuple[BlockDelta, ...]:
    """One column set per group."""
    deltas: list[BlockDelta] = []
    for group in groups:
        mine = np.array([entry[1:] for entry in entries if entry[0] == group], np.int64)
        if len(mine):
            deltas.append(BlockDelta(group, mine[:, 0], mine[:, 1], mine[:, 2]))
    return tuple(deltas)
