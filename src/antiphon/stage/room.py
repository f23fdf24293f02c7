"""Room for KV on the device of a decoder stage: what is evicted for it, and what waits for what is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import chain
from types import MappingProxyType

from antiphon.kv.sequences import Evicted
from antiphon.kv.stage_kv import StageKv
from antiphon.policy.memory import KvState, Selection
from antiphon.stage.host_writes import HostWrites
from antiphon.stage.kv_asks import KvAsks, KvMove
from antiphon.stage.tier_views import Owners

NO_BLOCKS: Mapping[str, int] = MappingProxyType({})


class Room:
    """Owner of the blocks that are claimed before they are free. What it evicts, `writes` copies."""

    def __init__(self, kv: StageKv, known: Owners, asks: KvAsks, writes: HostWrites) -> None:
        self.num_swapped_blocks = 0
        """Brought though no request waited, and given up before one read them."""
        self.num_claimed = 0
        """Blocks that are pending free and that requests of the last plan wait for: others have to find
        more."""
        self._num_sought = 0
        """Blocks that fetches since the last plan lack."""
        self._kv, self._known = kv, known
        self._asks, self._writes = asks, writes

    def begin_plan(self) -> None:
        """Nothing that is pending free is claimed."""
        self.num_claimed = self._num_sought = 0

    def make_room(self, count: int, last: str = "", keep: Set[str] = frozenset(), ahead_of: str = "") -> None:
        """Have `count` blocks free, now or once what is under way is done, beside those that were claimed;
        what rests as `last` goes only if nothing else does, and as one of `keep` not at all. `ahead_of`: it
        is for KV of this owner, for which no request waits: only what the policy gives up."""
        wanted = count + self.num_claimed + self._num_sought
        if self._kv.blocks.num_free_soon < wanted and count <= self._kv.blocks.num_spare:
            self.evict(wanted, last, keep, {ahead_of: count} if ahead_of else {})

    def claim(self, count: int) -> None:
        """A request for which room was made waits until so many blocks are free."""
        self.num_claimed += count

    def unclaim(self) -> None:
        """A request left: what was claimed is to be had again until the next plan."""
        self.num_claimed = 0

    def begin_fetches(self) -> None:
        """Nothing is sought that the next fetches do not seek."""
        self._num_sought = 0

    def seek(self, count: int) -> None:
        """A fetch lacks so many blocks: they are not for others until the next fetches, or the next plan."""
        self._num_sought += count

    def evict(
        self, wanted: int, last: str, keep: Set[str] = frozenset(), incoming: Mapping[str, int] = NO_BLOCKS
    ) -> None:
        """As the policy chooses, and then, for what is wanted, whatever there is: what waiting requests begin
        with after all other, the last in the queue first, and what rests as `last` in the end. The policy may
        choose the KV of a request that was preempted, though it waits. For what is `incoming` although no
        request waits goes only what the policy chooses."""
        view = self._asks.view("device", wanted)
        view.incoming = incoming
        selection = self._asks.evict(view)
        if not selection.count and not wanted:
            return
        goal = max(view.num_free + selection.count, wanted)
        queue = self._known.queue
        paused = (owner for owner, state in self._known.states.items() if state is KvState.PAUSED)
        put_off = {last, *queue} - {*paused} | keep
        chosen, taken = dict[str, int](), dict[str, int]()
        evicted = self._evict_from(selection.owners, goal, put_off, keep, chosen, self._groups(selection))
        if not incoming and self._kv.blocks.num_free_soon < wanted:
            put_off |= {last, *queue}
            others = (owner for owner in view.oldest() if owner not in put_off)
            late = chain(others, (owner for owner in reversed(queue) if owner != last), [last])
            evicted += self._evict_from(late, wanted, keep, keep, taken)
        if self._asks.watch is not None:
            self._asks.tell(KvMove.EVICTED, chosen, left=view)
            self._asks.tell(KvMove.TAKEN, taken)
        for owner, count in (*chosen.items(), *taken.items()):
            if owner in self._known.request:
                self._known.evicted[owner] = None
            unread = self._known.unread.get(owner)
            if unread is not None:
                self.num_swapped_blocks += unread.given_up(count, self._asks.now)
        self._writes.write(evicted, KvMove.COPIED)
        self._writes.prune((*chosen, *taken))

    def _evict_from(
        self,
        owners: Iterable[str],
        goal: int,
        put_off: Set[str],
        keep: Set[str],
        chosen: dict[str, int],
        groups: tuple[int, ...] | None = None,
    ) -> list[Evicted]:
        """Owner after owner gives up its last blocks until `goal` are free, or as many slots of these groups
        as blocks are short; those of `put_off` give up none, nor goes a block that one of `keep` holds too.
        `chosen`: those looked at, and how many each gave up."""
        kv = self._kv
        evicted: list[Evicted] = []
        short = goal - kv.blocks.num_free_soon
        for owner in owners if short > 0 else ():
            before = kv.resting.num_evicted_blocks
            count = int(owner not in put_off)
            while count and short > 0 and owner in kv.resting.owners:
                count = -kv.resting.num_evicted_blocks
                evicted += kv.resting.evict(owner, short, groups, keep)
                count += kv.resting.num_evicted_blocks
                short = goal - kv.blocks.num_free_soon if groups is None else short - count
            chosen[owner] = chosen.get(owner, 0) + kv.resting.num_evicted_blocks - before
            if short <= 0:
                break
        return evicted

    def _groups(self, selection: Selection) -> tuple[int, ...] | None:
        if selection.groups is None:
            return None
        return tuple(self._kv.groups.index(name) for name in selection.groups)
