"""LiveServe's KV management (§5): what will be needed last leaves first, and what a person is about to need
is brought while they still speak."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from math import inf, isnan, nan
from typing import NamedTuple

from antiphon.core.errors import ConfigError
from antiphon.policy.base import Told
from antiphon.policy.memory import NOTHING, KvState, KvView, Selection, num_beside_step, num_short

RETRY_S = 0.1
"""After which a preload that was put off is looked at again."""
LOOK = 8
"""Owners that are written at once, and of those looked at before, that are looked at anew in one call."""
DECIDED = "begun", "partial", "skipped", "held"
OUTCOMES = "hit", "late", "unused", "unfilled", "lost"
"""What is counted of preloads."""
PROBE_BLOCKS = 32
"""Brought at a time while the link's speed is not known: one order's."""


class Brought(NamedTuple):
    """What was decided about an owner's blocks that the device lacks: `num_brought` of `num_away` are,
    behind what takes the link `queued_s`, for a turn that is due in `left_s`."""

    num_brought: int
    num_away: int
    queued_s: float
    left_s: float


class Looked(NamedTuple):
    """An owner's blocks on the device and those that it lacks, together, as of a look at each of them, and
    until when that will do."""

    size: int
    until: float


@dataclass(slots=True)
class Preload:
    """A turn's KV that is to be brought.

    before    blocks that had been preloaded when that was decided first
    event     by which it is counted once blocks of it are ordered; "": it is put off
    is_begun  some were ordered
    is_lost   and nothing came of it, as of the last look before its turn: copies broke off
    """

    before: int
    event: str = ""
    is_begun: bool = False
    is_lost: bool = False


class NextUse:
    """Decides what leaves, what is written before it must, and what is brought before it is asked for.

    protects  share of the device's blocks that may be kept for people whose next turn is coming; what goes
              beyond it leaves like any other, and is not brought. The same share of the host's
    ahead     share of a tier that is kept free while the tier below has room; twice as much is written down
              while links are idle
    preload   bring what was offloaded when its person begins to speak; off: when the request reads it
    write     write down what will leave before it must; off: when it leaves

    Where nothing is known of anybody's next use, what was used longest ago leaves first (§6).
    """

    name = "next-use"
    prepares = True

    def __init__(
        self, protects: float = 0.5, ahead: float = 1 / 16, preload: bool = True, write: bool = True
    ) -> None:
        if not 0 <= protects <= 1:
            raise ConfigError(f"protects is {protects}; it is a share of the blocks, from 0 to 1")
        if not 0 <= ahead <= 0.5:
            raise ConfigError(f"ahead is {ahead}; it is a share of the blocks, from 0 to 0.5")
        self._protects, self._ahead, self._preload, self._write = protects, ahead, preload, write
        self.prepares = preload
        self._preloading: dict[str, Preload] = {}
        """By owner."""
        self._held: dict[str, None] = {}
        """Those that are held back by requests that wait."""
        self._brought: dict[str, Brought] = {}
        """What the last answer brings, or not."""
        self._looked: dict[str, Looked] = {}
        """Owners that were expected by the last answer."""
        preloads = (f"preload_{one}" for one in (*DECIDED, *OUTCOMES))
        counted = "next_use_unknown", "protected_taken", *preloads, "link_unknown", "step_unknown"
        self.events = dict.fromkeys(counted, 0)

    def decide_evict(self, view: KvView, now: float) -> Selection:
        """By next use (§5.1), the last blocks of each first; not those that are protected. From the host
        goes only what will be needed later than what is to come there."""
        if view.tier == "host":
            return self._evict_host(view)
        count = num_short(view, self._ahead)
        return Selection(self._leaving(view, now), count, "needed last") if count else NOTHING

    def _leaving(self, view: KvView, now: float) -> Iterator[str]:
        """None that is due sooner than what is to come (a preload). Where requests wait for room and there is
        nothing else, what is protected too, the last first."""
        protected: list[str] = []
        soonest_s = min((view.due_s(owner) for owner in view.incoming), default=nan)
        yield from self._unprotected(view, lambda: self._protected(view, now), protected, soonest_s)
        protected.sort(key=lambda owner: -_or_never(view.due_s(owner)))
        for owner in () if view.incoming else protected:
            if view.num_free >= view.num_wanted:
                return
            self.events["protected_taken"] += 1
            yield owner

    def _unprotected(
        self, view: KvView, keeps: Callable[[], Container[str]], protected: list[str], soonest_s: float = nan
    ) -> Iterator[str]:
        """The one that is needed last first, none that is due by `soonest_s`. Those whose turn is coming and
        that are kept are added to `protected`; those that were preempted stay for whatever is to come."""
        kept: Container[str] | None = None
        for at, owner in enumerate(view.farthest()):
            if not at:
                self.events["next_use_unknown"] += isnan(view.due_s(owner))
            if view.incoming and view.state(owner) is KvState.PAUSED:
                continue
            if view.due_s(owner) <= soonest_s:
                return
            if view.is_expected(owner):
                kept = keeps() if kept is None else kept
                if owner in kept:
                    protected.append(owner)
                    continue
            yield owner

    def _evict_host(self, view: KvView) -> Selection:
        """The room goes to what is needed soonest, and what leaves for it is needed later than that."""
        due = {owner: view.due_s(owner) for owner in view.incoming}
        due = {owner: -inf if isnan(due_s) else due_s for owner, due_s in due.items()}
        others = self._unprotected(view, lambda: self._kept_on_host(view), [])
        one = next(others, None)
        left = dict[str, int]()
        num_coming, count, latest_s = 0, 0, -inf
        for owner in sorted(due, key=due.__getitem__):
            num_coming = min(num_coming + view.incoming[owner], view.num_wanted)
            count_wanted = num_coming - view.num_free
            while count < count_wanted and one is not None and not view.due_s(one) <= due[owner]:
                has = left.setdefault(one, view.on_host(one))
                given = min(has, count_wanted - count)
                left[one] -= given
                count += given
                latest_s = due[owner]
                one = one if left[one] else next(others, None)
        further = chain([] if one is None or one in left else [one], others)
        further = takewhile(lambda owner: not view.due_s(owner) <= latest_s, further)
        return Selection(chain(left, further), count, "needed last") if count else NOTHING

    def _kept_on_host(self, view: KvView) -> set[str]:
        """Owners whose next turn is coming, the first first, as far as their copies may be kept together."""
        room = self._protects * view.num_blocks
        kept = set[str]()
        for owner in view.expected():
            count = view.on_host(owner)
            if count <= room:
                room -= count
                kept.add(owner)
        return kept

    def tell_evict(self, view: KvView, owner: str, now: float) -> Told:
        """Of one that gave up blocks of the view's tier."""
        due_s = view.due_s(owner)
        num_left = view.on_host(owner) if view.tier == "host" else view.device(owner)
        rest = f"; its first {num_left} stay" if num_left else ""
        if view.state(owner) is KvState.PAUSED:
            return Told("preempted", f"of a preempted request, used longest ago{rest}")
        if view.is_expected(owner):
            return Told("coming", f"its turn is coming or under way, and nothing else was left to go{rest}")
        if isnan(due_s):
            return Told("unknown", f"its next use is not known, and it was used longest ago{rest}")
        return Told("last", f"its next use is the last, in {due_s - now:.1f} s{rest}")

    def decide_write(self, view: KvView, now: float) -> Selection:
        """What will be needed last, as much as goes beside the step, also into the place of copies that are
        needed later."""
        if not self._write or view.num_free > 2 * self._ahead * view.num_blocks:
            return NOTHING
        resting = (one for one in view.farthest_dirty() if view.state(one) is KvState.RESTING)
        owners = list(islice(resting, LOOK))
        if displaces := not view.num_below:
            last_s = view.due_below_s
            owners = [owner for owner in owners if view.due_s(owner) < last_s]
        if not owners:
            return NOTHING
        self.events["next_use_unknown"] += isnan(view.due_s(owners[0]))
        return Selection(owners, num_beside_step(view, self.events), "will leave soon", displaces=displaces)

    def decide_fetch(self, view: KvView, now: float) -> Selection:
        """What requests wait for; unless a person's does that would fit, also what is about to be needed
        (§5.2), the first that is due first."""
        waiting = list(view.waiting())
        expected = self._protected(view, now) if self._preload else {}
        self._note_outcomes(view, waiting)
        need_link = view.is_pressed_beside or any(view.is_pressing(owner) for owner in waiting)
        lacking = [owner for owner, num_away in expected.items() if num_away and owner not in waiting]
        held = dict.fromkeys(lacking if need_link else ())
        self.events["preload_held"] += sum(owner not in self._held for owner in held)
        self._held, self._brought = held, {}
        expects_at = view.expects_at if self._preload else inf
        if need_link:
            wake_at = min(now + RETRY_S, expects_at) if expected else _finite(expects_at)
            return Selection(waiting, view.num_blocks, "a request waits for it", wake_at=wake_at)
        owners: list[str] = []
        reach: dict[str, int] = {}
        queued_s, is_put_off = view.back.queued_s, False
        left = {owner: view.due_s(owner) - now for owner in lacking}
        for owner in sorted(lacking, key=lambda one: _or_never(left[one])):
            num_away, left_s = expected[owner], left[owner]
            count = self._num_in_time(view, owner, num_away, left_s - queued_s, not owners)
            self._brought[owner] = Brought(count, num_away, queued_s, left_s)
            if count < num_away:
                is_put_off = True
                if not count:
                    self._decided(view, owner, "")
                    continue
                reach[owner] = view.device(owner) + count
            self._decided(view, owner, "preload_partial" if owner in reach else "preload_begun")
            owners.append(owner)
            queued_s += count * view.back.block_s
        wishes = [expects_at]
        if is_put_off or (waiting and expected):
            wishes.append(now + RETRY_S)
        if is_put_off:  # by what a look at the KV before theirs said
            wishes += (until for one in lacking if (until := self._looked[one].until) > now)
        wake_at = _finite(min(wishes))
        if not owners and not waiting:
            return Selection((), 0, "nobody is about to need any", wake_at=wake_at)
        reason = "its next turn is coming" if owners else "a request waits for it"
        return Selection([*waiting, *owners], view.num_blocks, reason, reach=reach or None, wake_at=wake_at)

    def tell_fetch(self, view: KvView, owner: str, now: float) -> Told:
        """Of one whose turn is coming, or announced, and whose KV is not all on the device: what was decided
        about it."""
        brought = self._brought.get(owner)
        if not self._preload:
            return Told("off", "it comes when a request waits for it (preload is off)")
        if owner in view.waiting():
            return Told("waits", "its own request waits for it")
        if owner in self._held:
            return Told("held", "put off: a request waits for the link")
        if brought is not None:
            return _told(brought, view.back.block_s)
        if not view.num_away(owner):
            return Told("coming", "all of it is on its way")
        if view.is_expected(owner):
            share = f"{self._protects:.0%} of the device's blocks"
            return Told("full", f"not brought: {share} are kept for coming turns at most")
        due_s = view.due_s(owner)
        when = "not near" if isnan(due_s) else f"due in {due_s - now:.1f} s"
        return Told("early", f"not yet: its turn is {when}")

    def _num_in_time(self, view: KvView, owner: str, num_away: int, left_s: float, is_first: bool) -> int:
        """Blocks that will be there in time. Over a link of unknown speed one order's at a time: its answer
        says more."""
        lane = view.back
        if isnan(lane.block_s + lane.queued_s):
            self.events["link_unknown"] += owner not in self._preloading
            return min(num_away, PROBE_BLOCKS) if is_first and not lane.num_blocks else 0
        if num_away * lane.block_s > left_s:
            return int(left_s / lane.block_s) if left_s > 0 else 0
        return num_away

    def _protected(self, view: KvView, now: float) -> dict[str, int]:
        """Owners whose next turn is coming, the first first, as far as they may be kept together, and what
        the device lacks of each."""
        room = int(self._protects * view.num_blocks)
        kept: dict[str, int] = {}
        before, self._looked = self._looked, {}
        num_anew = 0
        for owner in view.expected():
            if view.state(owner) is KvState.RUNNING:
                continue
            device, looked = view.device(owner), before.get(owner)
            is_old = looked is not None and (now >= looked.until or device > looked.size)
            if looked is None or (is_old and num_anew < LOOK):
                num_anew += is_old
                looked = Looked(device + view.num_away(owner), now + RETRY_S)
            self._looked[owner] = looked
            size = max(looked.size, device)
            if size <= room:
                room -= size
                kept[owner] = size - device
        return kept

    # -- outcomes ------------------------------------------------------------------------------------

    def _decided(self, view: KvView, owner: str, event: str) -> None:
        """A preload is to begin, as `event` says, or ("") is put off."""
        preload = self._preloading.setdefault(owner, Preload(view.num_preloaded(owner)))
        preload.event = event

    def _note_outcomes(self, view: KvView, waiting: list[str]) -> None:
        """Counts, once each, preloads of which blocks were ordered since they were decided (of a session that
        is gone since nothing else is known), and those whose turn runs, or waits for what is not there, or is
        expected no more. Those of which none was ordered are unfilled: there was no room, or the policy is
        only observed."""
        for owner, preload in [*self._preloading.items()]:
            is_gone = not view.has(owner)
            comes = view.num_preloaded(owner) > preload.before
            if preload.event and not preload.is_begun and (comes or is_gone):
                preload.is_begun = True
                self.events[preload.event] += 1
            state = view.state(owner)
            if state in (KvState.RESTING, None):
                preload.is_lost = preload.is_begun and (is_gone or not comes)
            if owner in waiting:
                outcome = "late"
            elif state not in (KvState.RESTING, None):
                outcome = "lost" if preload.is_lost else "hit"
            elif not view.is_expected(owner):
                outcome = "unused"
            else:
                continue
            del self._preloading[owner]
            if not preload.is_begun:
                outcome = "unfilled" if preload.event else "skipped"
            self.events[f"preload_{outcome}"] += 1


def _told(brought: Brought, block_s: float) -> Told:
    """Over a link that takes so long for a block."""
    count, num_away, queued_s, left_s = brought
    if isnan(block_s + queued_s):
        first = f"the first {count} of {num_away} blocks are brought" if count else "put off"
        return Told("part" if count else "unknown", f"{first}: the link's speed is not known yet")
    if isnan(left_s):
        return Told("brought", "brought: its turn is coming")
    behind = f", {queued_s:.2f} s of others go before them" if queued_s else ""
    why = f"{num_away} blocks take {num_away * block_s:.2f} s{behind}, its turn is due in {left_s:.2f} s"
    if count == num_away:
        return Told("brought", f"brought: {why}")
    if count:
        return Told("part", f"too late for all, {count} are brought: {why}")
    return Told("late", f"too late: {why}")


def _or_never(due_s: float) -> float:
    return inf if isnan(due_s) else due_s


def _finite(at: float) -> float | None:
    return at if at < inf else None
