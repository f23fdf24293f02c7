"""What of a decoder stage's KV is brought from the host: for requests that wait, and before any does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.kv.host import HostCopy, HostTier
from antiphon.kv.sequences import Prefix
from antiphon.kv.sequences import Sequence as Kv
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import CHUNK_BLOCKS, MAX_CHUNKS, KvLease, Transfer, Transfers
from antiphon.policy.base import Tier
from antiphon.policy.memory import KvState
from antiphon.stage.kv_asks import KvAsks, KvMove
from antiphon.stage.room import Room
from antiphon.stage.tier_views import Owners, Unread, next_copies

MOST_SWAPS = 2
"""How often as many blocks as an owner has may be given up after they were brought and before a request read
them: then evict and fetch disagree, and nothing of it is brought until a request waits for it, or SWAP_S are
over."""
SWAP_S = 10.0
"""So long after the last of them, blocks that were brought and given up belong to another turn."""

BUSY = "the link has as much on its way as it is given at a time"
SWAPPED = "it was brought and had to leave again too often"
NO_ROOM = "no block is free, and none that is needed later may leave"
"""Why nothing is ordered of what the policy would have brought."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that could have a row, if it were not for its KV."""

    owner: str
    session: str
    prefix: Prefix
    promise: int
    """Blocks that must be there for it to join."""
    tier: Tier = Tier.LATENCY


class Fetches:
    """Owner of which KV is coming. `room` is made for it, at the cost of what no request waits for."""

    def __init__(
        self, kv: StageKv, host: HostTier, known: Owners, asks: KvAsks, transfers: Transfers, room: Room
    ) -> None:
        self.num_fetched_blocks = 0
        self.num_changes = 0
        """Of what requests wait for."""
        self.coming: set[str] = set()
        """Owners whose KV is brought, or is to be as soon as there is room, for a request that waits."""
        self.unordered: dict[str, str] = {}
        """Owners whose KV the policy would have had brought in the last `fetch` though no request waits, of
        which nothing is on its way, and why."""
        self._unfit: set[str] = set()
        """Owners whose KV was to be brought, and for whose requests there was not room enough."""
        self._num_rows_want = 0
        """Blocks that rows are short of, or were promised: what no request waits for leaves them alone."""
        self._kv, self._host, self._known = kv, host, known
        self._asks, self._transfers, self._room = asks, transfers, room

    # -- what is there, and what is coming -----------------------------------------------------------

    def is_ordered(self, owner: str) -> bool:
        """Of KV that is coming: are all copies ordered, so that a step can wait for them layer by layer?"""
        is_known = owner in self._known.waiting and self._kv.resting.get(owner) is not None
        return is_known and not self._next_copies(owner, 1, None)

    def is_unfit(self, owner: str) -> bool:
        """Is there KV that the policy would bring, had there been room for the request that reads it? It
        joins once it was asked for again."""
        return owner in self._unfit

    def cached(self, owner: str, prefix: Prefix, lease: KvLease | None) -> int:
        """Leading tokens that a request would not have to compute if it joined now: on the device, brought
        from another unit, or coming from the host."""
        cached = self._kv.cached(owner, prefix)
        if lease is not None and not lease.is_void:
            return max(cached, lease.num_tokens)
        if not self._host.num_blocks:
            return cached
        size, most = self._kv.block_size, len(prefix.keys) - 1
        sequence, found = self._kv.resting.get(owner), cached // size
        beside = 0 if sequence is None else min(len(sequence.blocks), most // size)
        while found < beside and self._has_rest(sequence, found, prefix.chain[found]):
            found += 1
        if found >= beside:
            found += len(self._host.run_of(prefix.chain[found : most // size]))
        return max(cached, found * size)

    def _has_rest(self, sequence: Kv | None, index: int, name: bytes) -> bool:
        """Has the host what the device lacks of block `index` of a prompt, whose beginning may rest in the
        sequence?"""
        groups = None
        if sequence is not None and index < min(len(sequence.blocks), len(sequence.chain)):
            groups = self._kv.blocks.lacks(sequence.blocks[index]) if sequence.chain[index] == name else None
        return bool(self._host.run_of((name,), groups))

    def _is_on_host(self, wanted: Wanted) -> bool:
        """Has the host more of it than the device?"""
        owner, chain = wanted.owner, wanted.prefix.chain
        if owner in self.coming:
            return True
        found = self._kv.num_cached(owner, wanted.prefix)
        if found >= (len(wanted.prefix.keys) - 1) // self._kv.block_size:
            return False
        sequence = self._kv.resting.get(owner)
        if sequence is not None and found < len(sequence.blocks):
            return self._has_rest(sequence, found, chain[found])
        return bool(self._host.run_of(chain[found : found + 1]))

    def _next_copies(self, owner: str, count: int | None, reach: int | None) -> list[HostCopy]:
        """As `next_copies`, of what rests under this name."""
        sequence = self._kv.resting.get(owner)
        return [] if sequence is None else next_copies(sequence, self._kv, self._host, count, reach)

    def _is_there(self, owner: str, reach: int | None) -> bool:
        """Has the device all that is to be brought?"""
        return not self._is_filling(owner) and not self._next_copies(owner, 1, reach)

    def _is_filling(self, owner: str) -> bool:
        return self.num_coming(owner) > 0

    def _num_resting(self, owner: str) -> int:
        """Blocks that it has on the device, those that others use too included."""
        sequence = self._kv.resting.get(owner)
        return 0 if sequence is None else len(sequence.blocks)

    def num_coming(self, owner: str) -> int:
        """Blocks of what rests under this name that are on their way to the device."""
        sequence = self._kv.resting.get(owner)
        return 0 if sequence is None else max(sequence.num_coming - sequence.num_ready, 0)

    def num_lacking(self, owner: str) -> int:
        """Blocks that the host has and the device neither has nor is being brought."""
        return 0 if owner in self._known.running else len(self._next_copies(owner, None, None))

    def arrival_s(self, owner: str, prefix: Prefix) -> float:
        """Until what a waiting request lacks and the host has is there, if it is ordered now, behind all that
        is on its way; 0 if that is nothing, nan if it is not known."""
        lacking = self.cached(owner, prefix, None) - self._kv.cached(owner, prefix)
        if lacking <= 0:
            return 0.0
        lane = self._asks.lane("device")
        if owner in self.coming and self.is_ordered(owner):
            return lane.queued_s
        return lane.queued_s + lacking // self._kv.block_size * lane.block_s

    # -- what is ordered -----------------------------------------------------------------------------

    def fetch(self, queue: Sequence[Wanted], apart: int) -> None:
        """What a request waits for comes only if the request would fit beside `apart` blocks and the others
        that wait: otherwise their KV, and that of rows, would chase each other from the device. What is there
        of the KV of those before it in the queue, all of it or a part that does not fit now, stays, unless
        the policy has what it selects go first. While no request could join and nothing is on the host, it is
        not asked."""
        if not (queue or self._host.num_used or self._known.waiting or self.coming):
            return
        self._num_rows_want = self._kv.num_promised + apart
        wanted = {one.owner: one for one in queue if self._is_on_host(one)}
        there, before = list[Wanted](), dict[str, int]()
        for one in queue:
            if one.owner in wanted:
                before[one.owner] = len(there)
            elif self._num_resting(one.owner):
                there.append(one)
        waiting = list(wanted)
        self.num_changes += waiting != self._known.waiting
        self._known.waiting = waiting
        self._known.patient = {
            owner for owner, one in wanted.items() if one.tier != Tier.LATENCY or owner in self._unfit
        }
        coming: set[str] = set()
        self._unfit.clear()
        self.unordered.clear()
        selection = self._asks.fetch()
        count, kept, prepared, num_before = selection.count, set[str](), set[str](), 0
        for owner in selection.owners if count else ():
            if count <= 0:
                break
            reach = None if selection.reach is None else selection.reach.get(owner)
            one = wanted.get(owner)
            if one is None:
                if num_spare := self._num_spare(count):
                    prepared.add(owner)
                    count -= self._prepare(owner, num_spare, reach, {*wanted, *prepared})
                else:
                    self._note_unordered(owner, reach, BUSY)
                continue
            for other in there[num_before : before[owner]]:
                if not selection.is_first:
                    apart += other.promise
                    kept.add(other.owner)
            num_before = max(num_before, before[owner])
            if self._kv.fits(owner, one.prefix, one.promise, apart):
                apart += one.promise
                count -= self._bring(one, count, reach, kept)
                if not self._is_there(owner, reach):
                    coming.add(owner)
            else:
                self._unfit.add(owner)
                apart += self._num_resting(owner)
            kept.add(owner)
        pressing = (one.tier == Tier.LATENCY and owner not in self._unfit for owner, one in wanted.items())
        self._asks.press(any(pressing))
        coming |= {owner for owner in wanted if self._is_filling(owner)}
        for owner in self.coming - coming:
            self._known.states.pop(owner, None)
            if selection.is_first and owner in self._known.request:
                self._known.states[owner] = KvState.PAUSED
        self.num_changes += coming != self.coming
        self.coming = coming

    def _bring(self, wanted: Wanted, count: int, reach: int | None, keep: set[str]) -> int:
        """All of it at once, as far as there is room, which is made; of what is read ahead a chunk at a time,
        like what no request waits for. Returns the blocks ordered."""
        owner = wanted.owner
        self._kv.adopt(owner, wanted.prefix)
        self._known.session[owner] = wanted.session
        self._known.states[owner] = KvState.WAITING
        self._asks.lacks_copies(owner)
        if wanted.tier == Tier.PREPARATORY:
            num_spare = self._num_spare(count)
            return self._order(owner, num_spare, reach, keep, by_policy=True) if num_spare else 0
        num_ordered = self._order(owner, count, reach, keep)
        while num_ordered < count and (more := self._order(owner, count - num_ordered, reach, keep)):
            num_ordered += more
        return num_ordered

    def _num_spare(self, count: int) -> int:
        """Of so many blocks for which no request waits, those that may be ordered now."""
        is_full = self._transfers.num_blocks["device"] >= MAX_CHUNKS * CHUNK_BLOCKS
        return 0 if is_full else min(count, CHUNK_BLOCKS)

    def _prepare(self, owner: str, count: int, reach: int | None, keep: set[str]) -> int:
        """The next blocks of what no request waits for, into room that is free or that the evict policy
        gives up. None of an owner whose blocks come and go."""
        sequence, unread = self._kv.resting.get(owner), self._known.unread.get(owner) or Unread()
        if self._asks.now - unread.at > SWAP_S:
            unread.num_swapped = 0
        if sequence is not None and unread.num_swapped >= MOST_SWAPS * max(len(sequence.chain), 1):
            self.unordered[owner] = SWAPPED
            return 0
        num_ordered = self._order(owner, count, reach, keep, by_policy=True)
        if not num_ordered:
            self._note_unordered(owner, reach, NO_ROOM)
            return 0
        unread.num, unread.at = unread.num + num_ordered, self._asks.now
        self._known.unread[owner] = unread
        self._known.preloaded[owner] += num_ordered
        self._kv.resting.touch(owner)
        return num_ordered

    def _note_unordered(self, owner: str, reach: int | None, why: str) -> None:
        """Note why nothing of what it lacks is ordered, if nothing is on its way either."""
        if not self._is_there(owner, reach) and not self._is_filling(owner):
            self.unordered[owner] = why

    def _order(
        self, owner: str, count: int, reach: int | None, keep: set[str], by_policy: bool = False
    ) -> int:
        """Bring at most so many of the next blocks that the host has; the KV of `keep` stays, and
        (`by_policy`) all that the policy does not give up. Returns how many."""
        run = self._next_copies(owner, count, reach)
        if not run:
            return 0
        self._host.pin(run)  # room on the device may be made at the host's cost
        apart = self._num_rows_want if by_policy else 0
        self._room.make_room(len(run) + apart, keep={owner, *keep}, ahead_of=owner if by_policy else "")
        room = max(min(len(run), self._kv.blocks.num_free - self._room.num_claimed - apart), 0)
        self._room.seek(len(run) - room)
        arrival = self._kv.resting.extend(owner, room) if room else None
        copies = run[: len(arrival.blocks)] if arrival is not None else []
        self._host.unpin(run[len(copies) :])
        if arrival is None:
            return 0
        self._asks.rests(owner, "device")
        assert arrival.names[0] == run[0].name, "the sequence gave up blocks while it was brought more"
        self._kv.blocks.lend(arrival.blocks)
        self._host.touch(owner)
        self.num_fetched_blocks += len(copies)
        transfer = Transfer("device", arrival.blocks, copies, arrival.groups, arrival, is_preload=by_policy)
        self._transfers.begin(transfer)
        if self._asks.watch is not None:
            move = KvMove.PRELOADED if by_policy else KvMove.FETCHED
            self._asks.tell(move, {owner: len(copies)}, {*transfer.tickets})
        return len(copies)
