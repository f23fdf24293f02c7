"""The KV ledger of a decoder stage: what its requests hold on the device, and what of it the next step tells
the executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.facts import Ints, Mask
from antiphon.core.graph import Stage, Survives
from antiphon.core.plans import BlockDelta
from antiphon.kv.sequences import Prefix, prefix_of
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import KvLease
from antiphon.policy.base import Place
from antiphon.policy.memory import KvPolicies, KvState
from antiphon.stage.fetches import Wanted
from antiphon.stage.lanes import Lanes
from antiphon.stage.requests import ArRequest, RequestSizes, kv_groups
from antiphon.stage.rows import RowLedger
from antiphon.stage.tiers import Tiers

MAX_REQUESTS_HASHED_PER_STEP = 32
"""Bounds prefix hashing per plan: all rows may fill a block in one step. The rest is hashed on lookup."""

Entries = tuple[Ints, Ints, list[int]]
"""Block table entries: rows [n], index [n], and the blocks."""


class KvLedger:
    """Opens, grows and parks the sequences of a stage's requests, and has the row ledger say so; `kv` and
    `tiers` own blocks and copies.

    `after_step` is the last step in flight: what is given up now may still be named by it.
    """

    def __init__(
        self,
        stage: Stage,
        config: ArConfig,
        policies: KvPolicies,
        unit: str,
        tickets: Iterator[int],
        rows: RowLedger,
        lanes: Lanes | None = None,
    ) -> None:
        self.kv = StageKv(kv_groups(stage, config), config.num_blocks, config.block_size, config.ready_blocks)
        self.tiers = Tiers(unit, self.kv, config, policies, tickets, lanes)
        self.sizes = RequestSizes(config, self.kv.num_blocks)
        self.leases: dict[KvLease, None] = {}
        """What other units may copy from here, in order."""
        self._unit = unit
        self._rows = rows
        self._block_size = config.block_size
        self._survives = stage.survives
        self._entries: list[Entries] = []
        self._filled: dict[int, ArRequest] = {}
        """Requests that filled blocks whose names the KV has not been told of, in the order of filling."""

    # -- what a waiting request finds ----------------------------------------------------------------

    def look(self, request: ArRequest) -> None:
        """Note what it would find on the device if it joined now."""
        match = self.kv.find(request.owner, self._prefix(request))
        request.found, request.found_used = match

    def lacks(self, request: ArRequest, with_host: bool = False) -> frozenset[int]:
        """Media that it would have to compute if it joined now, and that are not at hand. `with_host`: once
        what the host has was brought."""
        if request.media is None or not request.prompt.spans:
            return frozenset()
        prefix, spans = self._prefix(request), request.prompt.spans
        if with_host:
            cached = self.tiers.fetches.cached(request.owner, prefix, request.lease)
        else:
            lease = self.tiers.leases.lease_of(request, prefix)
            cached = self.kv.cached(request.owner, prefix) if lease is None else lease[1]
        return frozenset(span.key for span in spans if span.start + span.length > cached) - request.media

    def fits(self, request: ArRequest, apart: int, with_coming: bool = False) -> bool:
        """Are there blocks for it beside `apart` others, and for what its lease brings? Makes room for the
        latter."""
        prefix, promise = self._prefix(request), self.sizes.promise(request)
        fits = self.kv.fits(request.owner, prefix, promise, apart, with_coming=with_coming)
        return fits and self.tiers.leases.has_room_for(request, prefix, promise)

    def has_spare(self, request: ArRequest) -> bool:
        """Are there free blocks for it, beside those that it finds?"""
        self.look(request)
        num_free = self.kv.num_free_beside(request.owner, self._prefix(request))
        return self.sizes.promise(request) - request.found // self._block_size <= num_free

    def place(self, request: ArRequest) -> Place:
        """Where what it begins with lies: on the host, if that has more of it than the device."""
        owner, fetches, prefix = request.owner, self.tiers.fetches, self._prefix(request)
        if owner in fetches.coming:
            return Place.COMING
        is_on_host = fetches.cached(owner, prefix, None) > self.kv.cached(owner, prefix)
        return Place.HOST if is_on_host else Place.DEVICE

    def cached(self, request: ArRequest) -> int:
        """Leading tokens that it would not have to compute, what the host has included."""
        return self.tiers.fetches.cached(request.owner, self._prefix(request), request.lease)

    def reload_s(self, request: ArRequest) -> float:
        """Until what it lacks of what the host has is there."""
        return self.tiers.fetches.arrival_s(request.owner, self._prefix(request))

    def wanted(self, requests: Sequence[ArRequest]) -> list[Wanted]:
        """What these begin with, as the tiers are told."""
        return [
            Wanted(one.owner, one.session, self._prefix(one), self.sizes.promise(one), one.tier)
            for one in requests
        ]

    def give_up(self, request: ArRequest) -> None:
        """A waiting request is over: what was kept or brought for it alone is dropped, or becomes its
        session's past."""
        self.tiers.leases.give_back(request)
        self.tiers.no_more_wanted(request.owner)
        if request.owner == request.session:
            return
        keys = request.reusable(self._survives, self.kv.resting.held_tokens(request.owner))
        is_past = not request.is_aside and self._survives is not Survives.NONE
        if is_past and len(keys):
            self.kv.resting.rename(request.owner, request.session, keys)
            self.tiers.rename(request.owner, request.session)
            self.tiers.rest(request.session, request.session)
        else:
            self.kv.resting.drop(request.owner, None)
            self.tiers.forget(request.owner)

    # -- running requests ----------------------------------------------------------------------------

    def open(self, request: ArRequest, after_step: int | None, with_coming: bool = False) -> int:
        """Give a waiting request that fits its KV and a row. Returns how many leading tokens are cached.
        `with_coming`: what is on its way from the host counts, and steps wait for it."""
        prefix, owner = self._prefix(request), request.owner
        filled = self.tiers.leases.lease_of(request, prefix)
        until = 0 if filled is None else filled[1]
        sequence, cached = self.kv.open(
            owner, prefix, self.sizes.promise(request), after_step, until=until, with_coming=with_coming
        )
        request.sequence, request.limit = sequence, self.sizes.limit(request)
        request.cached = cached if request.cached is None else request.cached
        request.row = self._rows.seat(request, cached, request.limit)
        if filled is not None:
            self.tiers.leases.move(request, sequence, filled[0])
        there = sequence.num_ready * self._block_size
        if there < cached:  # no reported step has read the rest: a request that leaves before has this much
            self._rows.confirm(request.row, len(sequence.chain) * self._block_size)
        self.tiers.leases.give_back(request)
        is_resumed = bool(request.tokens)
        since_s = request.reload_wait_since_s
        self.tiers.joined(owner, request.session, sequence, since_s, request.request, is_resumed)
        request.reload_wait_since_s = None
        self._tell_blocks(request)
        return cached

    def grow(self, requests: list[ArRequest], num_tokens: Ints) -> Mask:
        """Make room for so many tokens in all, for each of them; False for each that gets none."""
        at = np.array([request.row for request in requests], np.int64)
        sequences = [request.sequence for request in requests if request.sequence is not None]
        held = self._rows.blocks[at]
        counts = -(-num_tokens // self._block_size) - held
        if not self.kv.grow_all(sequences, counts.tolist()):
            pairs = zip(requests, num_tokens.tolist(), strict=True)
            return np.array([self._grow(request, wanted) for request, wanted in pairs])
        self._rows.grow(at, counts)
        new = [sequence.blocks[first:] for sequence, first in zip(sequences, held.tolist(), strict=True)]
        index = np.arange(int(counts.sum())) + np.repeat(held - counts.cumsum() + counts, counts)
        self._entries.append((np.repeat(at, counts), index, [b for part in new for b in part]))
        return np.ones(len(at), np.bool_)

    def _grow(self, request: ArRequest, num_tokens: int) -> bool:
        assert request.sequence is not None
        count = self.kv.blocks_for(num_tokens) - request.sequence.num_blocks
        self.tiers.room.make_room(count)
        if not self.kv.grow(request.sequence, num_tokens):
            self.tiers.room.claim(count)
            return False
        self._tell_blocks(request)
        return True

    def fill(self, request: ArRequest) -> None:
        """Reported steps filled blocks of it: they may be shared from now on."""
        self._filled[request.request] = request

    def leave(self, request: ArRequest, after_step: int | None, keep: bool = False) -> None:
        """Keep what survives a turn, as far as reported steps filled it, as the session's past; or all of it
        (`keep`) for the request itself. A request beside the conversation leaves the session's past as it is,
        if there is one."""
        sequence = request.sequence
        assert sequence is not None
        self._filled.pop(request.request, None)
        self.tiers.left(request.owner, sequence)
        owner, confirmed = request.owner, self._confirmed(request)
        is_beside = request.is_aside and self.kv.resting.get(request.session) is not None
        if keep:
            if not request.paused_as:
                if self.kv.resting.get(owner) is None:  # the session's past may be another request's since
                    self.tiers.rename(owner, request.own_name)
                request.paused_as = request.own_name
            keys = request.keys(self._survives)[:confirmed]
            self.kv.park(request.paused_as, sequence, keys, after_step)
            self.tiers.rest(request.paused_as, request.session, KvState.PAUSED, request.request)
        elif self._survives is Survives.NONE or is_beside:
            self.kv.discard(sequence, after_step)
            self.tiers.forget(owner)
        else:
            keys = request.reusable(self._survives, confirmed)
            self.kv.park(request.session, sequence, keys, after_step)
            if owner != request.session:
                self.tiers.rename(owner, request.session)
                request.paused_as = ""
            self.tiers.rest(request.session, request.session)
        request.sequence = request.prefix = None

    def forget(self, session: str, after_step: int | None, as_cache: bool) -> None:
        """Drop the session's idle KV; `as_cache`: what it has on the device stays until its room is needed.
        What a step in flight names of that is known since its request left."""
        self.kv.resting.drop(session, None if as_cache else after_step, as_cache=as_cache)
        self.tiers.forget(session)

    # -- leases --------------------------------------------------------------------------------------

    def lend(self, request: ArRequest, target: str) -> KvLease:
        """What reported steps have computed of it, for the unit `target`, until `take_back`."""
        assert request.sequence is not None
        confirmed = self._confirmed(request)
        blocks = request.sequence.blocks[: self.kv.blocks_for(confirmed)]
        lease = KvLease(self._unit, target, blocks, self.kv.blocks.slots(blocks), confirmed)
        self.kv.blocks.lend([*lease.blocks])
        self.leases[lease] = None
        return lease

    def take_back(self, lease: KvLease) -> None:
        """It is over. One that this ledger never gave, since its unit was lost meanwhile, is nothing."""
        if lease in self.leases:
            del self.leases[lease]
            self.kv.blocks.take_back(lease.blocks)

    # -- what the next step tells --------------------------------------------------------------------

    def drain(self) -> tuple[BlockDelta, ...]:
        """Block table entries since the last call, one column set per group."""
        self._name_filled(MAX_REQUESTS_HASHED_PER_STEP)
        entries, self._entries = self._entries, []
        if not entries:
            return ()
        row, index, _ = (list(column) for column in zip(*entries, strict=True))
        slots = self.kv.blocks.slots([block for _, _, blocks in entries for block in blocks])
        at, places = np.concatenate(row), np.concatenate(index)
        return tuple(BlockDelta(group, at, places, slots[g]) for g, group in enumerate(self.kv.groups))

    def _name_filled(self, most: int) -> None:
        """Name the blocks that were filled, of so many requests."""
        if not self._filled:
            return
        requests = [self._filled.pop(number) for number in list(islice(self._filled, most))]
        reach = self._rows.confirmed[[request.row for request in requests]]
        for request, confirmed in zip(requests, reach.tolist(), strict=True):
            assert request.sequence is not None
            self.kv.learn(request.sequence, request.reusable(self._survives, confirmed))

    def _prefix(self, request: ArRequest) -> Prefix:
        """What the KV knows a waiting request's tokens by. By then it knows all blocks that may be shared."""
        self._name_filled(len(self._filled))
        if request.prefix is None:
            request.prefix = prefix_of(request.keys(self._survives), self._block_size)
        return request.prefix

    def _confirmed(self, request: ArRequest) -> int:
        """Tokens of a running request that reported steps computed."""
        assert request.row is not None
        return int(self._rows.confirmed[request.row])

    def _tell_blocks(self, request: ArRequest) -> None:
        """The blocks that its row has not been given yet."""
        row, sequence = request.row, request.sequence
        assert row is not None
        assert sequence is not None
        first = int(self._rows.blocks[row])
        index = np.arange(first, sequence.num_blocks)
        if len(index):
            self._entries.append((np.full(len(index), row), index, sequence.blocks[first:]))
            self._rows.grow(row, len(index))

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """(tokens, blocks) on the device of what rests, by owner."""
        resting = self.kv.resting
        return {one.owner: (resting.resident_tokens(one), one.num_blocks) for one in resting.sequences}

    def check_integrity(self) -> None:
        """Raises AssertionError unless blocks, tiers and copies agree."""
        self.kv.check_integrity()
        self.tiers.check_integrity()
