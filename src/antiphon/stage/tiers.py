"""Where the KV of a decoder stage lies, and what is copied to and from its device.

Policies decide; here it is made true. Evicted blocks are copied to the host as far as it has room and lost
otherwise. What a request begins with is brought back while it waits; what it has computed at another unit
comes when it joins here. A copy that fails loses KV, which is then computed anew, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from math import inf, nan
from typing import Protocol

from antiphon.core.config import ArConfig
from antiphon.core.facts import CopyFact
from antiphon.core.plans import StagePrepared
from antiphon.interaction.next_use import Order
from antiphon.kv.host import HostCopy, HostTier
from antiphon.kv.prefix import Prefix
from antiphon.kv.sequences import Evicted
from antiphon.kv.sequences import Sequence as Kv
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import CopyOrder, KvLease, Transfer, Transfers
from antiphon.policy.memory import KvPolicies, KvState, Lane, Selection, Tier
from antiphon.stage.lanes import Lanes
from antiphon.stage.policies import soonest
from antiphon.stage.requests import ArRequest
from antiphon.stage.tier_views import NextUse, Owners, People, View

CHUNK_BLOCKS = 32
"""Blocks of one order for what no request waits for: to cancel it is to order no more."""
MOST_SWAPS = 2
"""How often as many blocks as an owner has may be given up after they were brought and before a request read
them: then evict and fetch disagree, and nothing of it is brought until a request waits for it, or SWAP_S are
over."""
SWAP_S = 10.0
"""So long after the last of them, blocks that were brought and given up belong to another turn."""
MAX_CHUNKS = 2
"""Orders on their way in a direction, so that the link is never idle while the next one is decided."""


def unknown() -> float:
    """How long something takes of which nothing is known."""
    return nan


class KvMove(StrEnum):
    """What becomes of an owner's blocks."""

    EVICTED = "evicted"
    """Left the device, as the policy chose."""
    TAKEN = "taken"
    """Left the device for what is wanted, beyond what the policy chose."""
    COPIED = "copied"
    """Copied to the host as they left the device."""
    WRITTEN = "written"
    """Copied to the host before they had to leave."""
    DROPPED = "dropped"
    """Left the host."""
    FETCHED = "fetched"
    """Ordered from the host for a request that waits."""
    PRELOADED = "preloaded"
    """Ordered from the host though no request waits."""


class KvWatch(Protocol):
    """Is told of every move of KV, in order."""

    def __call__(
        self, unit: str, move: KvMove, owner: str, session: str, num_blocks: int, tickets: Set[int]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that could have a row, if it were not for its KV."""

    owner: str
    session: str
    prefix: Prefix
    promise: int
    """Blocks that must be there for it to join."""


@dataclass(slots=True)
class _Unread:
    """Blocks of an owner that were brought and not read: those that are there, those that were given up, and
    when either changed last."""

    num: int = 0
    num_swapped: int = 0
    at: float = -inf

    def given_up(self, count: int, now: float) -> int:
        """How many of them leave with the owner's last `count` blocks."""
        lost = min(count, self.num)
        self.num, self.num_swapped, self.at = self.num - lost, self.num_swapped + lost, now
        return lost


class Tiers:
    """Owner of a stage's host tier, of copies under way, and of what is known of KV's owners."""

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
        self.num_written_blocks = 0
        self.num_fetched_blocks = 0
        self.num_moved_blocks = 0
        """From other units."""
        self.num_swapped_blocks = 0
        """Brought though no request waited, and given up before one read them."""
        self.people: People | None = None
        self._next_use: NextUse | None = None
        self._orders: dict[str, Order] = {}
        """By tier, and of what may lack a copy on the host."""
        self.watch: KvWatch | None = None
        self._kv = kv
        self._policies = policies
        num_layers = max(len(config.layer_groups), 1)
        order = (*range(num_layers, len(kv.groups)), *range(num_layers))
        self._unit = unit
        self._lanes = lanes or Lanes()
        self._transfers = Transfers(unit, kv, order, tickets, self._lanes.ordered)
        self._returned: list[KvLease] = []
        self.now = 0.0
        """As it was told last."""
        self._num_claimed = 0
        """Blocks that are pending free and that requests of the last plan wait for: others have to find
        more."""
        self._num_sought = 0
        """The same, of what is fetched since the last plan."""
        self._coming: set[str] = set()
        """Owners whose KV is brought, or is to be as soon as there is room, for a request that waits."""
        self._unfit: set[str] = set()
        """Owners whose KV was to be brought, and for whose requests there was not room enough."""
        self._unread: dict[str, _Unread] = {}
        """By owner: KV that was brought though no request waited, until one reads it."""
        self._wake_at: float | None = None
        self._num_changes = 0
        """Of what requests wait for."""

    def meet(self, people: People, next_use: NextUse) -> None:
        """Who says what people do, and when they will need their KV."""
        self.people, self._next_use = people, next_use
        orders = ("device", "host", "dirty") if self.host.num_blocks else ("device",)
        self._orders = {order: next_use.order() for order in orders}

    @property
    def num_in_flight(self) -> int:
        """Copies that are ordered and not answered."""
        return self._transfers.num_in_flight

    @property
    def wake_at(self) -> float | None:
        """When a policy that was asked for room since `tell_time` wishes to be asked again."""
        return self._wake_at

    @property
    def num_changes(self) -> tuple[int, ...]:
        """Of the KV here, of what is on its way over the links, and of when people will need theirs."""
        people = 0 if self._next_use is None else self._next_use.num_changes
        kv = self._num_changes, self._kv.resting.num_evicted_blocks, self._num_claimed
        return *kv, self._lanes.num_changes, people

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self.now, self._wake_at = now, None

    def drain(self) -> tuple[CopyOrder, ...]:
        """Copies ordered since the last call; they go before the step that was planned with them."""
        return self._transfers.drain()

    # -- at every decision ---------------------------------------------------------------------------

    def tend(self, wanted: Sequence[Wanted], last: str, apart: int) -> float | None:
        """Before steps are planned: evict ahead, and fetch. `wanted`: in the order of the queue; what rests
        as `last` is wanted soon; rows need `apart` more blocks now. Returns when the policies wish to be
        asked again."""
        self._num_sought, self._wake_at = 0, None
        self._evict(0, last)
        if self.host.num_blocks:
            self._fetch({one.owner: one for one in wanted if self._is_on_host(one)}, apart)
        return self._wished()

    def _wished(self) -> float | None:
        """What those that were asked wish, told once."""
        wake_at, self._wake_at = self._wake_at, None
        return wake_at

    def write(self, step_s: Callable[[], float] = unknown) -> float | None:
        """After steps are planned, of which that of this device takes so long (nan: there is none, or it is
        not known): write what will have to leave. Returns when the policy wishes to be asked again."""
        if not self.host.num_blocks:
            return None
        asked_before = self._wished()
        for name in self.host.gone():
            for owner in self._kv.blocks.owners_of(name):
                self._lacks_copies(owner)
        selection = self._asked(self._policies.write.decide(self._view("device", 0, step_s), self.now))
        count = min(selection.count, self.host.num_free)  # nothing leaves the host for what need not leave
        if count:
            self._write(self._unwritten(selection.owners, count), KvMove.WRITTEN)
        wake_at, self._wake_at = self._wished(), asked_before
        return wake_at

    def joined(self, owner: str, session: str, sequence: Kv, since_s: float | None) -> None:
        """A request of a session runs on what rested under this name. It waited for copies since `since_s`,
        and goes on waiting, in its steps, for those that are not there."""
        self.known.running[owner], self.known.session[owner] = sequence, session
        self.known.used_s[owner] = self.now
        self.known.states.pop(owner, None)
        self._coming.discard(owner)
        self._unread.pop(owner, None)
        self.known.preloaded.pop(owner, None)
        if since_s is None:
            return
        awaited = self.bringing(sequence)
        if awaited:
            awaited[-1].reload_wait_since_s = since_s
        else:
            self.reload_s += self.now - since_s

    def left(self, owner: str, sequence: Kv) -> None:
        """It runs no more."""
        if self.known.running.get(owner) is sequence:
            del self.known.running[owner]
        self._num_claimed = 0

    def no_more_wanted(self, owner: str) -> None:
        """The request that was to begin with it is over."""
        if self.known.states.get(owner) is KvState.WAITING:
            del self.known.states[owner]
        self._coming.discard(owner)

    def rest(self, owner: str, session: str, state: KvState = KvState.RESTING) -> None:
        """KV was just left behind under this name."""
        self.known.used_s[owner], self.known.session[owner] = self.now, session
        if state is KvState.RESTING:
            self.known.states.pop(owner, None)
        else:
            self.known.states[owner] = state
        self._rests(owner, "device")
        self.known.unwritten.pop(owner, None)
        sequence = self._kv.resting.get(owner)
        if sequence is not None:
            self._lacks_copies(owner)
            self.host.rest(owner, sequence.chain)
            if self.host.num_held(owner):
                self._rests(owner, "host")

    def _lacks_copies(self, owner: str) -> None:
        """Full blocks of it may have no copy on the host."""
        if self.host.num_blocks:
            self.known.unwritten.setdefault(owner)
            self._rests(owner, "dirty")

    def _rests(self, owner: str, order: str) -> None:
        """There is KV of it in the tier, to be found by when it is due."""
        if self._next_use is not None:
            self._next_use.rests(owner, self._orders[order])

    def forget(self, owner: str) -> None:
        """The KV under this name is of no use any more; the device's is dropped already."""
        self.host.forget(owner)
        known = self.known
        kept = (known.used_s, known.states, known.session, known.unwritten, known.preloaded, self._unread)
        for each in kept:
            each.pop(owner, None)

    def rename(self, owner: str, name: str) -> None:
        """What is on the host under `owner` goes by `name`, as the device's does already."""
        if owner == name:
            return
        self.host.rename(owner, name)
        self.forget(owner)

    # -- room ----------------------------------------------------------------------------------------

    def begin_plan(self) -> None:
        """Nothing that is pending free is claimed."""
        self._num_claimed = self._num_sought = 0

    def make_room(
        self, count: int, last: str = "", keep: Set[str] = frozenset(), by_policy: bool = False
    ) -> None:
        """Have `count` blocks free, now or once what is under way is done, beside those that were claimed;
        what rests as `last` goes only if nothing else does, and as one of `keep` not at all. `by_policy`:
        only what the policy gives up."""
        wanted = count + self._num_claimed + self._num_sought
        if self._kv.blocks.num_free_soon < wanted and count <= self._kv.blocks.num_spare:
            self._evict(wanted, last, keep, by_policy)

    def claim(self, count: int) -> None:
        """A request for which room was made waits until so many blocks are free."""
        self._num_claimed += count

    def _evict(self, wanted: int, last: str, keep: Set[str] = frozenset(), by_policy: bool = False) -> None:
        """As the policy chooses, and then, for what is wanted, whatever there is: what waiting requests begin
        with after all other, the last in the queue first, and what rests as `last` in the end. The policy may
        choose the KV of a request that was preempted, though it waits."""
        view = self._view("device", wanted)
        selection = self._asked(self._policies.evict.decide(view, self.now))
        if not selection.count and not wanted:
            return
        goal = max(view.num_free + selection.count, wanted)
        waiting = self.known.waiting
        paused = (owner for owner, state in self.known.states.items() if state is KvState.PAUSED)
        put_off = {last, *waiting} - {*paused} | keep
        chosen, taken = dict[str, int](), dict[str, int]()
        evicted = self._evict_from(selection.owners, goal, put_off, keep, chosen, self._groups(selection))
        if not by_policy and self._kv.blocks.num_free_soon < wanted:
            put_off |= {last, *waiting}
            others = (owner for owner in view.oldest() if owner not in put_off)
            late = chain(others, (owner for owner in reversed(waiting) if owner != last), [last])
            evicted += self._evict_from(late, wanted, keep, keep, taken)
        if self.watch is not None:
            self._tell(KvMove.EVICTED, chosen)
            self._tell(KvMove.TAKEN, taken)
        for owner, count in (*chosen.items(), *taken.items()):
            unread = self._unread.get(owner)
            if unread is not None:
                self.num_swapped_blocks += unread.given_up(count, self.now)
        self._write(evicted, KvMove.COPIED)
        self._prune((*chosen, *taken))

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

    def _prune(self, owners: Iterable[str]) -> None:
        """Forget owners that have nothing anywhere, and for which no request waits."""
        for owner in dict.fromkeys(owners):
            if owner in self.known.waiting:
                continue
            sequence = self._kv.resting.get(owner)
            if sequence is not None and not sequence.blocks and not self.host.num_held(owner):
                self._kv.resting.drop(owner, None)
                self.forget(owner)

    # -- to the host ---------------------------------------------------------------------------------

    def _write(self, evicted: list[Evicted], move: KvMove) -> None:
        """Copy these lent blocks as far as the host has no copy yet, and room: the front of what was used
        last before all else. What is not copied is taken back at once."""
        if not evicted:
            return
        if not self.host.num_blocks:
            self._kv.blocks.take_back([block for run in reversed(evicted) for block in run.blocks])
            return
        emptied = self._make_host_room(evicted)
        batches: dict[tuple[int, ...] | None, list[tuple[int, HostCopy]]] = {}
        lost: list[int] = []
        for run in reversed(evicted):
            for index, block, name in zip(
                range(run.start, run.start + len(run.blocks)), run.blocks, run.names, strict=True
            ):
                lacking = self.host.lacks(name, run.groups)
                if lacking and self.host.num_free:
                    whole = len(lacking) == len(self._kv.groups)
                    copy = self.host.begin(name, lacking)
                    batches.setdefault(None if whole else lacking, []).append((block, copy))
                else:
                    lost.append(block)
                found = self.host.find(name)
                if found is not None:
                    for owner in run.owners:
                        self.host.hold(owner, index, found)
                        self._rests(owner, "host")
        self._kv.blocks.take_back(lost)
        for groups, written in batches.items():
            self.num_written_blocks += len(written)
            blocks, copies = [block for block, _ in written], [copy for _, copy in written]
            self._transfers.begin(Transfer("host", blocks, copies, groups))
        if self.watch is not None:
            begun = {copy.name for written in batches.values() for _, copy in written}
            copied = Counter[str]()
            for run in evicted:
                copied.update(dict.fromkeys(run.owners, sum(name in begun for name in run.names)))
            self._tell(move, copied)
        self._prune(emptied)

    def _make_host_room(self, evicted: list[Evicted]) -> list[str]:
        """For what of these has no copy, as far as the policy gives up others. Returns the owners that were
        looked at."""
        new, incoming = dict[bytes, None](), Counter[str]()
        for run in evicted:
            names = [name for name in run.names if name not in new and self.host.lacks(name, run.groups)]
            new.update(dict.fromkeys(names))
            incoming.update(dict.fromkeys(run.owners, len(names)))
        if len(new) <= self.host.num_free:
            return []
        view = self._view("host", min(len(new), self.host.num_blocks))
        view.incoming = incoming
        selection = self._asked(self._policies.evict.decide(view, self.now))
        goal = view.num_free + selection.count
        emptied: list[str] = []
        for owner in selection.owners if selection.count else ():
            if (short := goal - view.num_free) <= 0:
                break
            num_held = self.host.num_held(owner)
            self.host.evict(owner, short)
            emptied.append(owner)
            if self.watch is not None:
                self._tell(KvMove.DROPPED, {owner: num_held - self.host.num_held(owner)})
        return emptied

    def _unwritten(self, owners: Iterable[str], count: int) -> list[Evicted]:
        """Full blocks that are there and that the host has no copy of, the first first; lent."""
        found: dict[bytes, Evicted] = {}
        room = MAX_CHUNKS * CHUNK_BLOCKS - self._transfers.num_blocks["host"]
        most = min(count, room)
        for owner in owners:
            if len(found) >= most:
                break
            sequence = self.known.running.get(owner) or self._kv.resting.get(owner)
            if sequence is None:
                continue
            for index, name in enumerate(sequence.filled):
                lacking = self.host.lacks(name)
                if len(found) < most and name not in found and lacking:
                    groups = None if len(lacking) == len(self._kv.groups) else lacking
                    found[name] = Evicted((owner,), index, [sequence.blocks[index]], [name], groups)
        self._kv.blocks.lend([block for run in found.values() for block in run.blocks])
        return [*reversed(found.values())]

    # -- to the device -------------------------------------------------------------------------------

    @property
    def is_bringing(self) -> bool:
        """Is anything coming?"""
        return bool(self._coming)

    def is_coming(self, owner: str) -> bool:
        """Is its KV being brought, or to be as soon as there is room?"""
        return owner in self._coming

    def is_ordered(self, owner: str) -> bool:
        """Of KV that is coming: are all copies ordered, so that a step can wait for them layer by layer?"""
        sequence = self._kv.resting.get(owner)
        if sequence is None or owner not in self.known.waiting:
            return False
        return not self._next_copies(owner, 1, None)

    def cached(self, owner: str, prefix: Prefix, lease: KvLease | None) -> int:
        """Leading tokens that a request would not have to compute if it joined now: on the device, brought
        from another unit, or coming from the host."""
        cached = self._kv.cached(owner, prefix)
        if lease is not None and not lease.is_void:
            return max(cached, lease.num_tokens)
        if not self.host.num_blocks:
            return cached
        size, most = self._kv.block_size, len(prefix.keys) - 1
        sequence, found = self._kv.resting.get(owner), cached // size
        beside = 0 if sequence is None else min(len(sequence.blocks), most // size)
        while found < beside and self._has_rest(sequence, found, prefix.chain[found]):
            found += 1
        if found >= beside:
            found += len(self.host.run_of(prefix.chain[found : most // size]))
        return max(cached, found * size)

    def _has_rest(self, sequence: Kv | None, index: int, name: bytes) -> bool:
        """Has the host what the device lacks of block `index` of a prompt, whose beginning may rest in the
        sequence?"""
        groups = None
        if sequence is not None and index < min(len(sequence.blocks), len(sequence.chain)):
            groups = self._kv.blocks.lacks(sequence.blocks[index]) if sequence.chain[index] == name else None
        return bool(self.host.run_of((name,), groups))

    def _is_on_host(self, wanted: Wanted) -> bool:
        """Has the host more of it than the device?"""
        cached = self._kv.cached(wanted.owner, wanted.prefix)
        return wanted.owner in self._coming or self.cached(wanted.owner, wanted.prefix, None) > cached

    def is_unfit(self, owner: str) -> bool:
        """Is there KV that the policy would bring, had there been room for the request that reads it? It
        joins once it was asked for again."""
        return owner in self._unfit

    def _fetch(self, wanted: dict[str, Wanted], apart: int) -> None:
        """What a request waits for comes only if the request would fit beside `apart` blocks and the others
        that wait: otherwise their KV, and that of rows, would chase each other from the device."""
        waiting = list(wanted)
        self._num_changes += waiting != self.known.waiting
        self.known.waiting = waiting
        coming: set[str] = set()
        self._unfit.clear()
        view = self._view("device", 0)
        selection = self._asked(self._policies.fetch.decide(view, self.now))
        count, fit, prepared = selection.count, set[str](), set[str]()
        for owner in selection.owners if count else ():
            if count <= 0:
                break
            reach = None if selection.reach is None else selection.reach.get(owner)
            one = wanted.get(owner)
            if one is None:
                if self._transfers.num_blocks["device"] < MAX_CHUNKS * CHUNK_BLOCKS:
                    prepared.add(owner)
                    count -= self._prepare(owner, min(count, CHUNK_BLOCKS), reach, {*wanted, *prepared})
            elif self._kv.fits(owner, one.prefix, one.promise, apart):
                apart += one.promise
                count -= self._bring(one, count, reach, fit)
                fit.add(owner)
                if not self._is_there(owner, reach):
                    coming.add(owner)
            else:
                self._unfit.add(owner)
        coming |= {owner for owner in wanted if self._is_filling(owner)}
        for owner in self._coming - coming:
            self.known.states.pop(owner, None)
        self._num_changes += coming != self._coming
        self._coming = coming

    def _bring(self, wanted: Wanted, count: int, reach: int | None, keep: set[str]) -> int:
        """All of it at once, as far as there is room, which is made. Returns the blocks ordered."""
        owner = wanted.owner
        self._kv.adopt(owner, wanted.prefix)
        self.known.used_s[owner], self.known.session[owner] = self.now, wanted.session
        self.known.states[owner] = KvState.WAITING
        self._lacks_copies(owner)
        num_ordered = self._order(owner, count, reach, keep)
        while num_ordered < count and (more := self._order(owner, count - num_ordered, reach, keep)):
            num_ordered += more
        return num_ordered

    def _prepare(self, owner: str, count: int, reach: int | None, keep: set[str]) -> int:
        """The next blocks of what no request waits for, into room that is free or that the evict policy
        gives up. None of an owner whose blocks come and go."""
        sequence, unread = self._kv.resting.get(owner), self._unread.get(owner) or _Unread()
        if self.now - unread.at > SWAP_S:
            unread.num_swapped = 0
        if sequence is not None and unread.num_swapped >= MOST_SWAPS * max(len(sequence.chain), 1):
            return 0
        num_ordered = self._order(owner, count, reach, keep, by_policy=True)
        if num_ordered:
            unread.num, unread.at = unread.num + num_ordered, self.now
            self._unread[owner] = unread
            self.known.preloaded[owner] += num_ordered
            self._kv.resting.touch(owner)
            self.known.used_s[owner] = self.now
        return num_ordered

    def _order(
        self, owner: str, count: int, reach: int | None, keep: set[str], by_policy: bool = False
    ) -> int:
        """Bring at most so many of the next blocks that the host has; the KV of `keep` stays, and
        (`by_policy`) all that the policy does not give up. Returns how many."""
        run = self._next_copies(owner, count, reach)
        if not run:
            return 0
        self.host.pin(run)  # room on the device may be made at the host's cost
        self.make_room(len(run), keep={owner, *keep}, by_policy=by_policy)
        room = max(min(len(run), self._kv.blocks.num_free - self._num_claimed), 0)
        self._num_sought += len(run) - room
        arrival = self._kv.resting.extend(owner, room) if room else None
        copies = run[: len(arrival.blocks)] if arrival is not None else []
        self.host.unpin(run[len(copies) :])
        if arrival is None:
            return 0
        self._rests(owner, "device")
        assert arrival.names[0] == run[0].name, "the sequence gave up blocks while it was brought more"
        self._kv.blocks.lend(arrival.blocks)
        self.host.touch(owner)
        self.num_fetched_blocks += len(copies)
        transfer = Transfer("device", arrival.blocks, copies, arrival.groups, arrival)
        self._transfers.begin(transfer)
        if self.watch is not None:
            move = KvMove.PRELOADED if by_policy else KvMove.FETCHED
            self._tell(move, {owner: len(copies)}, {*transfer.tickets})
        return len(copies)

    def _next_copies(self, owner: str, count: int, reach: int | None) -> list[HostCopy]:
        """At most so many of the next blocks that the device lacks and the host has."""
        sequence = self._kv.resting.get(owner)
        if sequence is None:
            return []
        first = sequence.num_coming
        end = len(sequence.chain) if reach is None else reach
        groups = self._kv.blocks.lacks(sequence.blocks[first]) if first < len(sequence.blocks) else None
        return self.host.run_of(sequence.chain[first : min(end, first + count)], groups)

    def _is_there(self, owner: str, reach: int | None) -> bool:
        """Has the device all that is to be brought?"""
        sequence = self._kv.resting.get(owner)
        if sequence is None:
            return True
        is_filling = sequence.num_ready < sequence.num_coming
        return not is_filling and not self._next_copies(owner, 1, reach)

    def _is_filling(self, owner: str) -> bool:
        sequence = self._kv.resting.get(owner)
        return sequence is not None and sequence.num_ready < sequence.num_coming

    # -- leases --------------------------------------------------------------------------------------

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
        cached = self._kv.cached(request.owner, prefix) // self._kv.block_size
        count = max(filled[0], promise - cached)
        self.make_room(count, last=request.owner, keep=self._coming)
        filled = self.lease_of(request, prefix)
        if filled is None or self._kv.blocks.num_free >= filled[0]:
            return True
        self.claim(count)
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
            self._num_claimed = 0

    def returned(self) -> list[KvLease]:
        """Leases that are over since the last call."""
        returned, self._returned = self._returned, []
        return returned

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
            self.host.lose(transfer.copies)
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
                self._lacks_copies(owner)
        self._kv.blocks.take_back(transfer.blocks)
        if transfer.lease is not None:
            self._returned.append(transfer.lease)
        if transfer.reload_wait_since_s is not None:
            self.reload_s += self.now - transfer.reload_wait_since_s

    # -- views ---------------------------------------------------------------------------------------

    def lane(self, to: Tier) -> Lane:
        """The link to the host, or back."""
        queued_s = self._lanes.queued_s(to)
        block_s = self._lanes.block_s(self._unit, self._kv.groups, to)
        return Lane(self._transfers.num_blocks[to], queued_s, block_s)

    def arrival_s(self, owner: str, prefix: Prefix) -> float:
        """Until what a waiting request lacks and the host has is there, if it is ordered now, behind all that
        is on its way; 0 if that is nothing, nan if it is not known."""
        lacking = self.cached(owner, prefix, None) - self._kv.cached(owner, prefix)
        if lacking <= 0:
            return 0.0
        lane = self.lane("device")
        if self.is_coming(owner) and self.is_ordered(owner):
            return lane.queued_s
        return lane.queued_s + lacking // self._kv.block_size * lane.block_s

    def prepared(self, owner: str) -> StagePrepared | None:
        """What is there of an owner's KV, and whether what is not on the device is brought before a request
        waits for it; None if it has none here."""
        held = self._view("device", 0).find(owner)
        if held is None:
            return None
        brings = bool(getattr(self._policies.fetch, "prepares", False))
        return StagePrepared(self._unit, held.device, held.host, self._num_lacking(owner), brings)

    def _num_lacking(self, owner: str) -> int:
        """Blocks that the host has and the device neither has nor is being brought."""
        return 0 if owner in self.known.running else len(self._next_copies(owner, self.host.num_blocks, None))

    def _view(
        self,
        tier: Tier,
        num_wanted: int,
        step_s: Callable[[], float] = unknown,
    ) -> View:
        return View(
            tier,
            num_wanted,
            self._kv,
            self.host,
            self.known,
            self.now,
            self.people,
            self._next_use,
            self._orders,
            self.lane,
            step_s,
        )

    def _tell(self, move: KvMove, owners: Mapping[str, int], tickets: Set[int] = frozenset()) -> None:
        """So many blocks of each owner."""
        assert self.watch is not None
        for owner, num_blocks in owners.items():
            if num_blocks:
                session = self.known.session.get(owner, owner)
                self.watch(self._unit, move, owner, session, num_blocks, tickets)

    def _asked(self, selection: Selection) -> Selection:
        """Note when the policy wishes to be asked again."""
        self._wake_at = soonest(self._wake_at, selection.wake_at)
        return selection

    def _groups(self, selection: Selection) -> tuple[int, ...] | None:
        if selection.groups is None:
            return None
        return tuple(self._kv.groups.index(name) for name in selection.groups)

    def check_integrity(self) -> None:
        """Raises AssertionError unless both tiers and the copies between them agree."""
        self.host.check_integrity()
        resting = {
            *self._kv.resting.owners,
            *self._kv.resting.away,
            *self.host.owners,
        } - self.known.running.keys()
        unknown = resting - self.known.used_s.keys()
        assert not unknown, f"nobody knows when KV of {unknown} was used last"
