"""LiveServe's KV management (§5): what will be needed last leaves first, and what a person is about to need
is brought while they still speak."""

from __future__ import annotations

from itertools import islice
from math import inf, isnan, nan

from antiphon.core.errors import ConfigError
from antiphon.policy.base import Told
from antiphon.policy.memory import NOTHING, KvState, KvView, Selection

RETRY_S = 0.1
"""After which a preload that was put off is looked at again."""
LOOK = 8
"""Owners that are looked at for one to write."""


class NextUse:
    """Decides what leaves, what is written before it must, and what is brought before it is asked for.

    protects  share of the device's blocks that may be kept for people whose next turn is coming; what goes
              beyond it leaves like any other, and is not brought
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
        self._preloading: dict[str, bool] = {}
        """Owners whose KV was to be brought, and whether that was ordered."""
        self.events = {
            "next_use_unknown": 0,
            "preload_begun": 0,
            "preload_partial": 0,
            "preload_skipped": 0,
            "preload_held": 0,
            "preload_hit": 0,
            "preload_late": 0,
            "preload_unused": 0,
        }

    def decide_evict(self, view: KvView, now: float) -> Selection:
        """By next use (§5.1), the last blocks of each first; not those that are protected."""
        needed = max(view.num_wanted - view.num_free, 0)
        spare = max(view.num_free - view.num_wanted, 0)
        ahead = min(max(int(view.num_blocks * self._ahead) - spare, 0), view.num_below)
        if not needed + ahead:
            return NOTHING
        if needed:
            first = next(view.farthest(), None)
            held = None if first is None else view.find(first)
            self.events["next_use_unknown"] += held is not None and isnan(held.due_s)
        kept = {*self._protected(view)} if view.tier == "device" else {*view.expected()}
        owners = (owner for owner in view.farthest() if owner not in kept)
        return Selection(owners, needed + ahead, "needed last")

    def decide_write(self, view: KvView, now: float) -> Selection:
        """Of what was used longest ago, that which will be needed last, as much as goes beside the step."""
        if not self._write or view.num_free > 2 * self._ahead * view.num_blocks:
            return NOTHING
        due: list[tuple[float, str]] = []
        for owner in islice(view.dirty(), LOOK):
            held = view.find(owner)
            if held is not None and held.state is KvState.RESTING:
                due.append((-inf if isnan(held.due_s) else held.due_s, owner))
        if not due:
            return NOTHING
        room = view.step_s / view.out.block_s if view.out.block_s else inf
        count = view.num_blocks if not room < view.num_blocks else int(room)
        return Selection((owner for _, owner in sorted(due, reverse=True)), count, "will leave soon")

    def decide_fetch(self, view: KvView, now: float) -> Selection:
        """What requests wait for; if there is nothing of that, what is about to be needed (§5.2)."""
        waiting = list(view.waiting())
        expected = self._protected(view) if self._preload else []
        self._note_outcomes(view, waiting)
        if waiting:
            self.events["preload_held"] += sum(view.num_away(owner) > 0 for owner in expected)
            wake_at = now + RETRY_S if expected else None
            return Selection(waiting, view.num_blocks, "a request waits for it", wake_at=wake_at)
        owners: list[str] = []
        reach: dict[str, int] = {}
        queued_s, is_put_off = view.back.queued_s, False
        for owner in expected:
            num_away, held = view.num_away(owner), view.find(owner)
            if not num_away or held is None:
                continue
            took_s = num_away * view.back.block_s
            left_s = held.due_s - now - queued_s
            if not took_s <= left_s and not isnan(took_s + left_s):
                is_put_off = True
                part = int(left_s / view.back.block_s) if left_s > 0 else 0
                if not part:
                    self._begun(owner, "preload_skipped", is_ordered=False)
                    continue
                reach[owner] = held.device + part
                self._begun(owner, "preload_partial")
            else:
                self._begun(owner, "preload_begun")
            owners.append(owner)
            queued_s += 0.0 if isnan(took_s) else took_s
        wake_at = now + RETRY_S if is_put_off else None
        if not owners:
            return Selection((), 0, "nobody is about to need any", wake_at=wake_at)
        return Selection(owners, view.num_blocks, "its person speaks", reach=reach or None, wake_at=wake_at)

    def tell_fetch(self, view: KvView, owner: str, now: float) -> Told:
        """Of one whose turn is coming and whose KV is not all on the device."""
        held, num_away = view.find(owner), view.num_away(owner)
        took_s = num_away * view.back.block_s
        left_s = nan if held is None else held.due_s - now
        if not self._preload:
            why = "it comes when a request waits for it (preload is off)"
        elif next(view.waiting(), None) is not None:
            why = "put off: a request waits for the link"
        elif owner not in self._protected(view):
            why = f"not brought: what is kept for others fills {self._protects:.0%} of the device's blocks"
        elif isnan(took_s + left_s):
            why = "brought: its turn is coming"
        else:
            so = "too late for all" if took_s > left_s - view.back.queued_s else "brought"
            why = f"{so}: {num_away} blocks take {took_s:.2f} s, its turn is due in {left_s:.2f} s"
        return Told("", why)

    def _protected(self, view: KvView) -> list[str]:
        """Owners whose next turn is coming, the first first, as far as they may be kept together."""
        room = int(self._protects * view.num_blocks)
        kept: list[str] = []
        for owner in view.expected():
            held = view.find(owner)
            if held is None or held.state is KvState.RUNNING:
                continue
            size = held.device + view.num_away(owner)
            if size <= room:
                room -= size
                kept.append(owner)
        return kept

    # -- outcomes ------------------------------------------------------------------------------------

    def _begun(self, owner: str, event: str, is_ordered: bool = True) -> None:
        """Counted once for each preload."""
        if owner not in self._preloading:
            self.events[event] += 1
        self._preloading[owner] = self._preloading.get(owner, False) or is_ordered

    def _note_outcomes(self, view: KvView, waiting: list[str]) -> None:
        """Preloads whose turn runs, or waits for what is not there, or is expected no more."""
        coming = {*view.expected()} if self._preloading else ()
        for owner in [*self._preloading] if self._preloading else ():
            held = view.find(owner)
            if owner in waiting:
                outcome = "late"
            elif held is not None and held.state is not KvState.RESTING:
                outcome = "hit"
            elif owner not in coming:
                outcome = "unused"
            else:
                continue
            if self._preloading.pop(owner):
                self.events[f"preload_{outcome}"] += 1
