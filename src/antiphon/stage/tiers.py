"""Where the resting KV of a decoder stage lies, and what is copied to and from its device.

Policies decide; here it is made true. Evicted blocks are copied to the host as far as it has room and lost
otherwise; what a prompt begins with comes back when its request joins. What a request has computed at another
unit comes when it joins here. A copy that fails loses KV, which is then computed anew, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from antiphon.core.config import ArConfig
from antiphon.core.facts import CopyFact
from antiphon.kv.host import HostCopy, HostTier
from antiphon.kv.leases import KvLease
from antiphon.kv.prefix import Prefix
from antiphon.kv.sequences import Evicted, StageKv
from antiphon.kv.sequences import Sequence as Cached
from antiphon.kv.transfers import CopyOrder, Transfer, Transfers
from antiphon.policy.memory import FetchView, KvPolicies
from antiphon.stage.requests import ArRequest
from antiphon.stage.tier_views import DeviceView, HostView


@dataclass(frozen=True, slots=True)
class Coming:
    """What would be filled from elsewhere if a request joined: `num_blocks` after the full ones that the
    device has, up to position `until`; from the host's `copies`, or the end of a `lease`."""

    num_blocks: int
    until: int
    copies: Sequence[HostCopy] = ()
    lease: KvLease | None = None


class Tiers:
    """Owner of a stage's host tier and of copies under way; moves what rests in `kv`."""

    def __init__(
        self, unit: str, kv: StageKv, config: ArConfig, policies: KvPolicies, tickets: Iterator[int]
    ) -> None:
        self.host = HostTier(len(kv.groups), config.host_blocks)
        self.reload_s = 0.0
        """Seconds that requests waited for their KV, from when they could join but for it."""
        self.num_written_blocks = 0
        self.num_fetched_blocks = 0
        self.num_moved_blocks = 0
        """From other units."""
        self._kv = kv
        self._policies = policies
        num_layers = max(len(config.layer_groups), 1)
        order = (*range(num_layers, len(kv.groups)), *range(num_layers))
        self._transfers = Transfers(unit, kv, order, tickets)
        self._used_s: dict[str, float] = {}
        self._returned: list[KvLease] = []
        self._now = 0.0
        self._num_claimed = 0
        """Blocks in limbo that requests of this plan wait for: others have to find more."""

    @property
    def num_in_flight(self) -> int:
        """Copies that are ordered and not answered."""
        return self._transfers.num_in_flight

    def drain(self) -> tuple[CopyOrder, ...]:
        """Copies ordered since the last call; they go before the step that was planned with them."""
        return self._transfers.drain()

    # -- what rests ----------------------------------------------------------------------------------

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self._now = now

    def tend(self, last: str, now: float) -> None:
        """At every decision: what the policies want moved though nobody waits for it. What the session `last`
        left behind is wanted soon."""
        if not self.host.num_blocks:
            return
        self._evict(0, last)
        view = DeviceView(self._kv, self.host, self._used_s, 0)
        selection = self._policies.write.decide(view, now)
        count = min(selection.count, self.host.num_free)
        if count:  # nothing leaves the host for what need not leave the device
            self._write(self._dirty(selection.sessions, count))

    def rest(self, session: str) -> None:
        """The session has just left its sequence behind."""
        self._used_s[session] = self._now
        sequence = self._kv.resting(session)
        if sequence is not None:
            self.host.rest(session, sequence.chain)

    def forget(self, session: str) -> None:
        """Nobody wants the session's past any more."""
        self.host.forget(session)
        self._used_s.pop(session, None)

    def begin_plan(self) -> None:
        """Nobody has claimed what is in limbo."""
        self._num_claimed = 0

    def make_room(self, count: int, last: str = "") -> None:
        """Have `count` blocks free, now or once what is under way is done, beside those that were claimed in
        this plan; what the session `last` left behind goes only if nothing else does."""
        wanted = count + self._num_claimed
        if self._kv.num_free + self._kv.num_pending_free < wanted and count <= self._kv.num_spare:
            self._evict(wanted, last)

    def claim(self, count: int) -> None:
        """Somebody for whom room was made waits until so many blocks are free."""
        self._num_claimed += count

    def _evict(self, wanted: int, last: str) -> None:
        view = DeviceView(self._kv, self.host, self._used_s, wanted)
        selection = self._policies.evict.decide(view, self._now)
        if not selection.count and not wanted:
            return
        order = dict.fromkeys((*selection.sessions, *(self._kv.sessions if wanted else ())))
        if last in order:
            del order[last]
            order[last] = None
        start = view.num_free
        goal = max(start + selection.count, wanted)
        evicted: list[Evicted] = []
        for session in order:
            if (short := goal - view.num_free) <= 0:
                break
            evicted += self._kv.evict(session, short)
        self._write(evicted)

    def _write(self, evicted: list[Evicted]) -> None:
        """Copy these lent blocks as far as the host has no copy yet, and room: the front of what was used
        last before all else. What is not copied is taken back at once."""
        new = [one for one in evicted if self.host.find(one.name) is None]
        num_new = len({one.name for one in new})
        if num_new > self.host.num_free:
            self._make_host_room(num_new)
        written: list[tuple[int, HostCopy]] = []
        for one in reversed(evicted):
            copy = self.host.find(one.name)
            if copy is None and self.host.num_free:
                copy = self.host.begin(one.name)
                written.append((one.block, copy))
            else:
                self._kv.take_back([one.block])
            if copy is not None:
                for session in one.sessions:
                    self.host.hold(session, one.index, copy)
        if written:
            self.num_written_blocks += len(written)
            self._transfers.begin(Transfer("host", [b for b, _ in written], [c for _, c in written]))

    def _make_host_room(self, count: int) -> None:
        if not self.host.num_blocks:
            return
        view = HostView(self.host, self._used_s, min(count, self.host.num_blocks))
        selection = self._policies.evict.decide(view, self._now)
        goal = view.num_free + selection.count
        for session in selection.sessions:
            if (short := goal - view.num_free) <= 0:
                break
            self.host.evict(session, short)

    def _dirty(self, sessions: Sequence[str], count: int) -> list[Evicted]:
        """Full blocks of resting sequences that the host has no copy of, the first first; lent."""
        found: dict[bytes, Evicted] = {}
        for session in sessions:
            sequence = self._kv.resting(session)
            for index, name in enumerate(sequence.chain if sequence is not None else ()):
                if len(found) < count and name not in found and self.host.find(name) is None:
                    assert sequence is not None
                    found[name] = Evicted((session,), index, sequence.blocks[index], name)
        self._kv.lend(one.block for one in found.values())
        return [*reversed(found.values())]

    # -- what comes back -----------------------------------------------------------------------------

    def cached(self, request: ArRequest, prefix: Prefix) -> int:
        """Leading tokens that the request would not have to compute if it joined now."""
        coming = self.coming(request, prefix)
        return self._kv.cached(request.owner, prefix) if coming is None else coming.until

    def coming(self, request: ArRequest, prefix: Prefix) -> Coming | None:
        """What would be filled if the request joined now; None if that is nothing."""
        lease, size = request.lease, self._kv.block_size
        if not self.host.num_blocks and lease is None:
            return None
        cached = self._kv.cached(request.owner, prefix)
        first = cached // size
        if lease is not None and not lease.is_void:
            count = len(lease.blocks) - first
            return Coming(count, lease.num_tokens, lease=lease) if lease.num_tokens > cached else None
        copies = self._copies(request, prefix, cached)
        return Coming(len(copies), (first + len(copies)) * size, copies) if copies else None

    def _copies(self, request: ArRequest, prefix: Prefix, cached: int) -> list[HostCopy]:
        """What would come from the host."""
        size, most = self._kv.block_size, len(prefix.keys) - 1
        first = cached // size
        run = self.host.run_of(prefix.chain[first : most // size])
        if not run:
            return []
        view = FetchView(request.session, first, len(run), size)
        count = self._policies.fetch.decide(view, self._now)
        return run[:count] if (first + count) * size > cached else []

    def is_ready(self, request: ArRequest, prefix: Prefix, promise: int) -> bool:
        """Are there free blocks for what has to come back? If not, room is made, for all of the `promise`."""
        coming = self.coming(request, prefix)
        if coming is None:
            return True
        if request.reload_wait_since_s is None and not request.tokens:
            request.reload_wait_since_s = self._now
        cached = self._kv.cached(request.owner, prefix) // self._kv.block_size
        wanted = max(coming.num_blocks, promise - cached)
        self.make_room(wanted, last=request.owner)
        coming = self.coming(request, prefix)
        if coming is None or self._kv.num_free >= coming.num_blocks:
            return True
        self.claim(wanted)
        return False

    def fetch(self, request: ArRequest, sequence: Cached, coming: Coming) -> None:
        """The request joins: fill the last blocks of its sequence."""
        blocks = sequence.blocks[len(sequence.blocks) - coming.num_blocks :]
        self._kv.lend(blocks)
        if coming.lease is None:
            self.host.pin(coming.copies)
            self.host.touch(request.owner)
            self.num_fetched_blocks += len(blocks)
        else:
            request.lease = None
            self.num_moved_blocks += len(blocks)
        self._transfers.begin(
            Transfer("device", blocks, coming.copies, request.reload_wait_since_s, coming.lease)
        )

    def give_back(self, request: ArRequest) -> None:
        """It has no use for what it was lent."""
        if request.lease is not None:
            self._returned.append(request.lease)
            request.lease = None

    def returned(self) -> list[KvLease]:
        """KvLeases that are over since the last call."""
        returned, self._returned = self._returned, []
        return returned

    def bringing(self, sequences: Iterable[Cached]) -> tuple[Transfer, ...]:
        """What these sequences wait for."""
        return self._transfers.bringing(block for sequence in sequences for block in sequence.blocks)

    def distrust(self, transfers: Iterable[Transfer]) -> None:
        """A step failed that had waited for these: what they were to bring is not tried again."""
        for transfer in transfers:
            self.host.lose(transfer.copies)

    def copied(self, fact: CopyFact, now: float) -> Sequence[int]:
        """A copy was answered. Returns device blocks that it was to fill and that hold nothing of use. What
        was ordered before the unit was lost and came again counts for nothing.
        """
        transfer = self._transfers.answer(fact)
        if transfer is None:
            return ()
        if transfer.has_failed:
            self.host.lose(transfer.copies)
        if not transfer.tickets:
            self._finish(transfer, now)
        return transfer.blocks if transfer.has_failed and transfer.to == "device" else ()

    def _finish(self, transfer: Transfer, now: float) -> None:
        if transfer.to == "host" and not transfer.has_failed:
            for copy in transfer.copies:
                copy.is_ready = True
        self.host.unpin(transfer.copies)
        self._kv.take_back(transfer.blocks)
        if transfer.lease is not None:
            self._returned.append(transfer.lease)
        if transfer.reload_wait_since_s is not None:
            self.reload_s += now - transfer.reload_wait_since_s

    def check_integrity(self) -> None:
        """Raises AssertionError unless both tiers and the copies between them agree."""
        self.host.check_integrity()
        resting = {*self._kv.sessions, *self.host.sessions}
        assert resting <= self._used_s.keys(), "nobody knows when a session was used last"
