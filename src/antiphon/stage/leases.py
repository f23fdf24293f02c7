"""KV that a request brings along from another unit, which lends it until it is copied."""

from __future__ import annotations

from antiphon.kv.sequences import Prefix
from antiphon.kv.sequences import Sequence as Kv
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import KvLease, Transfer, Transfers
from antiphon.stage.fetches import Fetches
from antiphon.stage.requests import ArRequest
from antiphon.stage.room import Room


class Leases:
    """Owner of leases that are over, until their lender is told."""

    def __init__(self, kv: StageKv, transfers: Transfers, room: Room, fetches: Fetches) -> None:
        self.num_moved_blocks = 0
        """From other units."""
        self._kv, self._transfers, self._room, self._fetches = kv, transfers, room, fetches
        self._returned: list[KvLease] = []

    def lease_of(self, request: ArRequest, prefix: Prefix) -> tuple[int, int] | None:
        """Of a request that brings KV from another unit: how many blocks would be filled if it joined now,
        and up to which position. None where that is nothing."""
        lease = request.lease
        if lease is None or lease.is_void:
            return None
        cached = self._kv.cached(request.owner, prefix)
        if lease.num_tokens <= cached:
            return None
        return len(lease.blocks) - cached // self._kv.block_size, lease.num_tokens

    def has_room_for(self, request: ArRequest, prefix: Prefix, promise: int) -> bool:
        """Are there free blocks for what its lease brings? If not, room is made, for all of the `promise`,
        but not at the cost of what is being brought for others: they would take turns for ever."""
        filled = self.lease_of(request, prefix)
        if filled is None:
            return True
        cached = self._kv.num_cached(request.owner, prefix)
        cache = self._kv.blocks.num_free - self._kv.num_free_beside(request.owner, prefix)
        count = max(filled[0], promise - cached) + cache
        self._room.make_room(count, last=request.owner, keep=self._fetches.coming)
        filled = self.lease_of(request, prefix)
        if filled is None or self._kv.num_free_beside(request.owner, prefix) >= filled[0]:
            return True
        self._room.claim(count)
        return False

    def move(self, request: ArRequest, sequence: Kv, num_blocks: int) -> None:
        """The request joined: fill the last blocks of its sequence from its lease."""
        blocks = sequence.blocks[len(sequence.blocks) - num_blocks :]
        self._kv.blocks.lend(blocks)
        self.num_moved_blocks += num_blocks
        self._transfers.begin(Transfer("device", blocks, lease=request.lease))
        request.lease = None

    def give_back(self, request: ArRequest) -> None:
        """It has no use for what it was leased."""
        if request.lease is not None:
            self._returned.append(request.lease)
            request.lease = None
            self._room.unclaim()

    def over(self, lease: KvLease) -> None:
        """All that it brings is copied, or failed to be."""
        self._returned.append(lease)

    def returned(self) -> list[KvLease]:
        """Leases that are over since the last call."""
        returned, self._returned = self._returned, []
        return returned
