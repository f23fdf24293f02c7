"""Where the KV of a decoder stage lies, and what is copied to and from its device.

Policies decide; here it is made true. Evicted blocks are copied to the host as far as it has room and lost
otherwise. What a request begins with is brought back while it waits; what it has computed at another unit
comes when it joins here. A copy that fails loses KV, which is then computed anew, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from antiphon.core.config import ArConfig
from antiphon.core.facts import CopyFact
from antiphon.core.plans import StagePrepared
from antiphon.kv.host import HostTier
from antiphon.kv.sequences import Sequence as Kv
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import CopyOrder, Purpose, Transfer, Transfers
from antiphon.policy.memory import KvPolicies, KvState
from antiphon.stage.fetches import Fetches, Wanted
from antiphon.stage.host_writes import HostWrites
from antiphon.stage.kv_asks import KvAsks, unknown
from antiphon.stage.lanes import Lanes
from antiphon.stage.leases import Leases
from antiphon.stage.room import Room
from antiphon.stage.tier_views import Owners


class Tiers:
    """Owner of a stage's host tier, of copies under way, and of what is known of KV's owners.

    asks     the policies, and what they are told
    room     on the device: what leaves it
    writes   what is copied to the host
    fetches  what is brought from the host
    leases   what requests bring from other units
    """

    def __init__(
        self,
        unit: str,
        kv: StageKv,
        config: ArConfig,
        policies: KvPolicies,
        tickets: Iterator[int],
        lanes: Lanes | None = None,
    ) -> None:
        self.host = HostTier(len(kv.groups), config.host_blocks)
        self.known = Owners()
        self.reload_s = 0.0
        """Seconds that requests waited for their KV, from when they could join but for it."""
        self.resume_s = 0.0
        """Seconds that requests waited for their KV after they were preempted behind their first token."""
        self._kv = kv
        num_layers = max(len(config.layer_groups), 1)
        order = (*range(num_layers, len(kv.groups)), *range(num_layers))
        self._unit = unit
        self._lanes = lanes or Lanes()
        self._transfers = Transfers(unit, kv, order, tickets, self._lanes.ordered)
        held = kv, self.host, self.known
        self.asks = KvAsks(unit, *held, policies, self._transfers, self._lanes)
        self.writes = HostWrites(*held, self.asks, self._transfers)
        self.room = Room(kv, self.known, self.asks, self.writes)
        self.fetches = Fetches(*held, self.asks, self._transfers, self.room)
        self.leases = Leases(kv, self._transfers, self.room, self.fetches)

    @property
    def num_in_flight(self) -> int:
        """Copies that are ordered and not answered."""
        return self._transfers.num_in_flight

    @property
    def num_failed_blocks(self) -> Mapping[Purpose, int]:
        """Of copies that broke off, by what they were for."""
        return self._transfers.num_failed_blocks

    @property
    def num_changes(self) -> int:
        """Of the KV here, of what is on its way over the links, and of when people will need theirs."""
        people = self.asks.next_use
        here = self.fetches.num_changes + self._kv.resting.num_evicted_blocks + self._lanes.num_changes
        return here if people is None else here + people.num_changes

    def drain(self) -> tuple[CopyOrder, ...]:
        """Copies ordered since the last call; they go before the step that was planned with them."""
        return self._transfers.drain()

    # -- at every decision ---------------------------------------------------------------------------

    def tend(self, wanted: Sequence[Wanted], last: str, apart: int) -> float | None:
        """Before steps are planned: evict ahead, and fetch. `wanted`: in the order of the queue; what rests
        as `last` is wanted soon; rows need `apart` more blocks now. Returns when the policies wish to be
        asked again."""
        self.room.begin_fetches()
        self.asks.wished()
        self.known.queue = [one.owner for one in wanted]
        self.room.evict(0, last)
        self.fetches.fetch(wanted, apart)
        return self.asks.wished()

    def write(self, step_s: Callable[[], float] = unknown) -> float | None:
        """After steps are planned, when that on this device will still take so long (inf: none runs; nan:
        not known): write what will have to leave. Returns when the policy wishes to be asked again."""
        asked_before = self.asks.wished()
        for name in self.host.gone():
            for owner in self._kv.blocks.owners_of(name):
                self.asks.lacks_copies(owner)
        self.writes.write_ahead(step_s)
        wake_at, self.asks.wake_at = self.asks.wished(), asked_before
        return wake_at

    # -- owners --------------------------------------------------------------------------------------

    def joined(
        self, owner: str, session: str, sequence: Kv, since_s: float | None, request: int, is_resumed: bool
    ) -> None:
        """A request of a session runs on what rested under this name. It waited for copies since `since_s`,
        and goes on waiting, in its steps, for those that are not there. is_resumed: it had been preempted
        after its first token."""
        self.known.running[owner], self.known.session[owner] = sequence, session
        self.known.request[owner] = request
        self.known.states.pop(owner, None)
        self.known.left_queue(owner)
        self.fetches.coming.discard(owner)
        self.known.unread.pop(owner, None)
        self.known.preloaded.pop(owner, None)
        if since_s is None:
            return
        awaited = self.bringing(sequence)
        if awaited:
            awaited[-1].reload_wait_since_s, awaited[-1].is_resumed = since_s, is_resumed
        else:
            self.waited(since_s, is_resumed)

    def waited(self, since_s: float, is_resumed: bool) -> None:
        """A request's KV is there, since when it could join but for it."""
        waited_s = self.asks.now - since_s
        if is_resumed:
            self.resume_s += waited_s
        else:
            self.reload_s += waited_s

    def left(self, owner: str, sequence: Kv) -> None:
        """It runs no more."""
        if self.known.running.get(owner) is sequence:
            del self.known.running[owner]
            self.known.request.pop(owner, None)
        self.room.unclaim()

    def no_more_wanted(self, owner: str) -> None:
        """The request that was to begin with it is over."""
        if self.known.states.get(owner) is KvState.WAITING:
            del self.known.states[owner]
        self.known.left_queue(owner)
        self.fetches.coming.discard(owner)

    def rest(
        self, owner: str, session: str, state: KvState = KvState.RESTING, request: int | None = None
    ) -> None:
        """KV was just left behind under this name, by a request that goes on from it if one is named."""
        self.known.session[owner] = session
        if state is KvState.RESTING:
            self.known.states.pop(owner, None)
        else:
            self.known.states[owner] = state
        if request is not None:
            self.known.request[owner] = request
        self.asks.rests(owner, "device")
        self.known.unwritten.pop(owner, None)
        self.known.refused.pop(owner, None)
        sequence = self._kv.resting.get(owner)
        if sequence is not None:
            self.asks.lacks_copies(owner)
            self.host.rest(owner, sequence.chain)
            if self.host.num_held(owner):
                self.asks.rests(owner, "host")

    def forget(self, owner: str) -> None:
        """The KV under this name is of no use any more; the device's is dropped already."""
        self.host.forget(owner)
        self.known.forget(owner)

    def rename(self, owner: str, name: str) -> None:
        """What is on the host under `owner` goes by `name`, as the device's does already."""
        if owner == name:
            return
        self.host.rename(owner, name)
        self.forget(owner)

    def prepared(self, owner: str) -> StagePrepared | None:
        """What is there of an owner's KV, and whether what is not on the device is brought before a request
        waits for it; None if it has none here."""
        view = self.asks.view("device", 0)
        if not view.has(owner):
            return None
        brings = bool(getattr(self.asks.policies.fetch, "prepares", False))
        coming = self.fetches.num_coming(owner)
        lacking = coming + self.fetches.num_lacking(owner)
        why = self.asks.told(owner) if brings and lacking else ""
        device = view.device(owner) - coming
        return StagePrepared(self._unit, device, view.on_host(owner), lacking, brings, why)

    # -- copies --------------------------------------------------------------------------------------

    def bringing(self, sequence: Kv) -> tuple[Transfer, ...]:
        """What has still to arrive in a sequence's blocks."""
        return self._transfers.bringing(sequence.blocks)

    def distrust(self, transfers: Iterable[Transfer]) -> None:
        """A step failed that had waited for these: what they were to bring is not tried again."""
        for transfer in transfers:
            self.host.lose(transfer.copies)

    def copied(self, fact: CopyFact) -> Sequence[int]:
        """A copy was answered. Returns device blocks that it was to fill and that hold nothing of use. What
        was ordered before the unit was lost and came again counts for nothing.
        """
        self._lanes.answered(fact)
        transfer = self._transfers.answer(fact)
        if transfer is None:
            return ()
        if transfer.has_failed:
            losers = self.host.lose(transfer.copies)
            if transfer.to == "host":
                self.known.refused.update(dict.fromkeys(losers))
        if not transfer.tickets:
            self._finish(transfer)
        return transfer.blocks if transfer.has_failed and transfer.to == "device" else ()

    def _finish(self, transfer: Transfer) -> None:
        if transfer.to == "host" and not transfer.has_failed:
            self.host.landed(transfer.copies, transfer.groups)
        self.host.unpin(transfer.copies)
        if transfer.arrival is not None:
            self._kv.resting.arrived(transfer.arrival, not transfer.has_failed)
            owner = transfer.arrival.sequence.owner
            if owner:  # the host may have given up the copies meanwhile
                self.asks.lacks_copies(owner)
            if owner in self.known.preloaded and transfer.has_failed and transfer.is_preload:
                self.known.preloaded[owner] -= len(transfer.blocks)
        self._kv.blocks.take_back(transfer.blocks)
        if transfer.lease is not None:
            self.leases.over(transfer.lease)
        if transfer.reload_wait_since_s is not None:
            self.waited(transfer.reload_wait_since_s, transfer.is_resumed)

    def check_integrity(self) -> None:
        """Raises AssertionError unless both tiers and the copies between them agree."""
        self.host.check_integrity()
        for owner, known in self.known.copied.items():
            sequence = self.known.running.get(owner) or self._kv.resting.get(owner)
            names = [] if sequence is None else sequence.filled
            if known.num_gone == self.host.num_gone and known.last in names:
                num = self.host.num_copied(names)
                assert known.num <= num, f"copies of the KV of {owner} are miscounted"
        for sequence in self._kv.resting.sequences:
            filling = sequence.blocks[sequence.num_ready : sequence.num_coming]
            assert self._transfers.are_arriving(filling), "nothing brings what a sequence waits for"
        owners = {*self._kv.resting.owners, *self._kv.resting.away, *self.host.owners, *self.known.running}
        unknown = owners - self.known.session.keys()
        assert not unknown, f"it is not known whose KV {unknown} is"
