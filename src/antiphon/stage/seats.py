"""The seats of a decoder stage: which request has which row and KV, and what changed since the last step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from antiphon.core.config import ArConfig
from antiphon.core.facts import NO_INTS, Ints
from antiphon.core.graph import Stage, Survives
from antiphon.core.plans import BlockDelta, Join, ints
from antiphon.kv.blocks import BlockPool
from antiphon.kv.leases import KvLease
from antiphon.kv.prefix import Prefix, prefix_of
from antiphon.kv.sequences import StageKv
from antiphon.policy.memory import KvPolicies
from antiphon.stage.groups import kv_groups
from antiphon.stage.requests import ArRequest
from antiphon.stage.rows import Rows
from antiphon.stage.sizes import Sizes
from antiphon.stage.tiers import Tiers

Entries = tuple[Ints, Ints, list[int]]
"""Block table entries: rows [n], index [n], and the blocks."""

LEARNT_A_STEP = 32
"""Requests whose filled blocks are named in one step, where nobody asks for them: all rows of a stage may
fill one in the same step, and naming takes longer than all else of a decision."""


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

    def __init__(
        self, stage: Stage, config: ArConfig, policies: KvPolicies, unit: str, tickets: Iterator[int]
    ) -> None:
        self.kv = StageKv(kv_groups(stage, config), config.num_blocks, config.block_size)
        self.tiers = Tiers(unit, self.kv, config, policies, tickets)
        self.rows = Rows(config.max_rows, config.block_size, stage.conditioned)
        self.sizes = Sizes(config, self.kv.num_blocks)
        self.leases: dict[KvLease, None] = {}
        """What others may copy from here, in order."""
        self._unit = unit
        self._config = config
        self._survives = stage.survives
        self._pool = BlockPool(config.max_rows)
        self._leaves: list[int] = []
        self._inputs: list[tuple[int, int]] = []
        self._entries: list[Entries] = []
        self._filled: dict[int, ArRequest] = {}
        """Who filled blocks that the KV has not been told of, in the order in which they did."""

    @property
    def num_free(self) -> int:
        """Rows."""
        return self._pool.num_free

    @property
    def num_pending_free(self) -> int:
        """Rows and blocks that come back by themselves once steps in flight are done."""
        return self._pool.num_pending_free + self.kv.num_pending_free

    def cached(self, request: ArRequest) -> int:
        """Leading tokens that it would find cached if it joined now."""
        return self.tiers.cached(request, self._wanted(request)[1])

    def fits(self, request: ArRequest, apart: int) -> bool:
        """Are there blocks for it beside `apart` others?"""
        return self.kv.fits(*self._wanted(request), self.sizes.promise(request), apart)

    def has_way_back(self, request: ArRequest) -> bool:
        """Can what the host has of its prompt be copied now? If not, room is made for it."""
        return self.tiers.is_ready(request, self._wanted(request)[1], self.sizes.promise(request))

    def join(self, request: ArRequest, after_step: int | None) -> Join:
        """Give a waiting request that fits a row and its KV."""
        row = self._pool.allocate(1)[0]
        promise, prefix = self.sizes.promise(request), self._wanted(request)[1]
        coming = self.tiers.coming(request, prefix)
        until = 0 if coming is None else coming.until
        sequence, cached = self.kv.open(request.owner, prefix, promise, after_step, until)
        request.row, request.sequence = row, sequence
        request.cached = cached if request.cached is None else request.cached
        self._fill_columns(request, row, cached)
        if coming is not None:
            self.tiers.fetch(request, sequence, coming)
            # no reported step has read them yet: who leaves before has only what was there
            self.rows.confirmed[row] = len(sequence.chain) * self._config.block_size
        self.tiers.give_back(request)
        request.reload_wait_since_s = None
        self._inputs += [(row, token) for token in request.inputs]
        self._tell_blocks(request)
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
        request.limit = self.sizes.limit(request)
        self.rows.limit[row] = request.limit
        self.rows.granted[row] = request.granted
        self.rows.best_effort[row] = int(request.is_best_effort)
        self.rows.inputs[row] = len(request.inputs)
        self.rows.closed[row] = int(request.closed)
        self.rows.changed()

    def push(self, row: int, token: int) -> None:
        """One more upstream token for who sits there."""
        self.rows.inputs[row] += 1
        self.rows.changed()
        self._inputs.append((row, token))

    def grow(self, requests: list[ArRequest], rows: Ints, num_tokens: Ints) -> NDArray[np.bool_]:
        """Make room for so many tokens in all, for each of them; False for whom there is none."""
        sequences = [request.sequence for request in requests if request.sequence is not None]
        held = self.rows.blocks[rows]
        counts = -(-num_tokens // self._config.block_size) - held
        if not self.kv.grow_all(sequences, counts.tolist()):
            return np.array([self._grow(*one) for one in zip(requests, num_tokens.tolist(), strict=True)])
        self.rows.blocks[rows] += counts
        new = [sequence.blocks[first:] for sequence, first in zip(sequences, held.tolist(), strict=True)]
        index = np.arange(int(counts.sum())) + np.repeat(held - counts.cumsum() + counts, counts)
        self._entries.append((np.repeat(rows, counts), index, [b for part in new for b in part]))
        return np.ones(len(rows), np.bool_)

    def _grow(self, request: ArRequest, num_tokens: int) -> bool:
        assert request.sequence is not None
        count = self.kv.blocks_for(num_tokens) - request.sequence.num_blocks
        self.tiers.make_room(count)
        if not self.kv.grow(request.sequence, num_tokens):
            self.tiers.claim(count)
            return False
        self._tell_blocks(request)
        return True

    def fill(self, request: ArRequest) -> None:
        """Reported steps filled blocks of it: they may be shared from now on."""
        self._filled[request.request] = request

    def leave(self, request: ArRequest, after_step: int | None) -> None:
        """Free the row; keep of the KV what survives a turn, as far as reported steps filled it. A request
        beside the conversation leaves the session's past as it is, if there is one."""
        row, sequence = request.row, request.sequence
        assert row is not None
        assert sequence is not None
        self._filled.pop(request.request, None)
        is_beside = request.is_aside and self.kv.resting(request.session) is not None
        if self._survives is Survives.NONE or is_beside:
            self.kv.discard(sequence, after_step)
        else:
            self.kv.park(request.session, sequence, self._reusable(request), after_step)
            self.tiers.rest(request.session)
        self.rows.leave(row)
        self._pool.release([row], after_step)
        self._leaves.append(row)
        self._inputs = [entry for entry in self._inputs if entry[0] != row]

    def lend(self, request: ArRequest, target: str) -> KvLease:
        """What reported steps have computed of it, for the unit `target`, until `take_back`."""
        assert request.sequence is not None
        num_tokens = int(self.rows.confirmed[request.row])
        blocks = request.sequence.blocks[: self.kv.blocks_for(num_tokens)]
        lease = KvLease(self._unit, target, blocks, self.kv.slots(blocks), num_tokens)
        self.kv.lend(lease.blocks)
        self.leases[lease] = None
        return lease

    def take_back(self, lease: KvLease) -> None:
        """It is over. One that this scheduler never gave, since its unit was lost meanwhile, is nothing."""
        if lease in self.leases:
            del self.leases[lease]
            self.kv.take_back(lease.blocks)

    def forget(self, session: str, after_step: int | None) -> None:
        """Drop the session's idle KV."""
        self.kv.drop(session, after_step)
        self.tiers.forget(session)

    def settle(self, step: int) -> None:
        """Steps report in order, so everything up to `step` is done."""
        self.kv.settle(step)
        self._pool.settle(step)

    def drain(self) -> Changes:
        """All since the last call."""
        self._learn(LEARNT_A_STEP)
        leaves, self._leaves = self._leaves, []
        inputs, self._inputs = self._inputs, []
        entries, self._entries = self._entries, []
        return Changes(
            ints(leaves) if leaves else NO_INTS,
            block_deltas(self.kv, entries) if entries else (),
            ints([row for row, _ in inputs]) if inputs else NO_INTS,
            ints([token for _, token in inputs]) if inputs else NO_INTS,
        )

    def check_integrity(self, requests: Iterable[ArRequest]) -> None:
        """Rows and blocks of all these, and of nobody else; raises AssertionError otherwise."""
        self.kv.check_integrity()
        self.tiers.check_integrity()
        seated = {request.row: request for request in requests if request.row is not None}
        self._pool.check_integrity(sorted(seated))
        for row, request in seated.items():
            assert request.request == int(self.rows.request[row]), "a row names a request that sits elsewhere"
            assert request.sequence is not None
            assert request.sequence.num_blocks == int(self.rows.blocks[row]), "block count of a row is wrong"
        assert (self.rows.confirmed <= self.rows.planned).all(), "confirmed runs ahead of planned"

    def _wanted(self, request: ArRequest) -> tuple[str, Prefix]:
        """What the KV is asked for a waiting request by: whose it is, and its prefix. By then it knows all
        that may be shared."""
        self._learn(len(self._filled))
        return request.owner, self._prefix(request)

    def _learn(self, most: int) -> None:
        """Name the blocks that were filled, of so many requests."""
        for number in list(islice(self._filled, most)):
            request = self._filled.pop(number)
            assert request.sequence is not None
            self.kv.learn(request.sequence, self._reusable(request))

    def _reusable(self, request: ArRequest) -> Ints:
        """Keys of the row's positions that reported steps filled and that another prompt may begin with."""
        return request.reusable(self._survives, int(self.rows.confirmed[request.row]))

    def _prefix(self, request: ArRequest) -> Prefix:
        if request.prefix is None:
            request.prefix = prefix_of(request.keys(self._survives), self._config.block_size)
        return request.prefix

    def _tell_blocks(self, request: ArRequest) -> None:
        """The blocks that its row has not been given yet."""
        row, sequence = request.row, request.sequence
        assert row is not None
        assert sequence is not None
        first = int(self.rows.blocks[row])
        index = np.arange(first, sequence.num_blocks)
        if len(index):
            self._entries.append((np.full(len(index), row), index, sequence.blocks[first:]))
        self.rows.blocks[row] = sequence.num_blocks


def block_deltas(kv: StageKv, entries: list[Entries]) -> tuple[BlockDelta, ...]:
    """One column set per group."""
    rows, index = (np.concatenate(column) for column in list(zip(*entries, strict=True))[:2])
    slots = kv.slots([block for _, _, blocks in entries for block in blocks])
    return tuple(BlockDelta(group, rows, index, slots[g]) for g, group in enumerate(kv.groups))
