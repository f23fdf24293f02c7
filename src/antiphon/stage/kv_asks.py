"""Asks the KV policies of a decoder stage, by what is known now, and tells a watch what became of KV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from math import inf, nan
from typing import cast

from antiphon.interaction.next_use import NextUseTimes, Order
from antiphon.kv.host import HostTier
from antiphon.kv.stage_kv import StageKv
from antiphon.kv.transfers import Transfers
from antiphon.policy.base import Told, soonest
from antiphon.policy.memory import KvPolicies, KvTier, KvView, LaneState, Selection
from antiphon.stage.lanes import Lanes
from antiphon.stage.tier_views import Owners, View


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


@dataclass(frozen=True, slots=True)
class KvMoved:
    """So many blocks of an owner, and the session that it is of.

    tickets  of the copies that were ordered for it
    told     what the policy says that chose it, of what left; None: nothing
    """

    unit: str
    move: KvMove
    owner: str
    session: str
    num_blocks: int
    tickets: Set[int] = frozenset()
    told: Told | None = None

    @property
    def is_past(self) -> bool:
        """It is the session's past, and not the KV of one request."""
        return self.owner == self.session

    @property
    def is_evicted(self) -> bool:
        """The blocks left the device."""
        return self.move in (KvMove.EVICTED, KvMove.TAKEN)


KvWatch = Callable[[KvMoved], None]
"""Is told of every move of KV, in order."""


def unknown() -> float:
    """How long something takes of which nothing is known."""
    return nan


def idle() -> float:
    """How long what does not run leaves others alone."""
    return inf


class KvAsks:
    """Owner of what policies are told beside the KV itself, and of when they wish to be asked again."""

    def __init__(
        self,
        unit: str,
        kv: StageKv,
        host: HostTier,
        known: Owners,
        policies: KvPolicies,
        transfers: Transfers,
        lanes: Lanes,
    ) -> None:
        self.policies = policies
        self.watch: KvWatch | None = None
        self.now = 0.0
        """As it was told last."""
        self.wake_at: float | None = None
        """When a policy that was asked since `tell_time` or `wished` wishes to be asked again."""
        self._unit = unit
        self._kv, self._host, self._known = kv, host, known
        self._transfers, self._lanes = transfers, lanes
        self.next_use: NextUseTimes | None = None
        """What says when people will need their KV."""
        self._orders: dict[str, Order] = {}
        """By tier, and of what may lack a copy on the host."""

    def meet(self, next_use: NextUseTimes) -> None:
        """What says when people will need their KV."""
        self.next_use = next_use
        orders = ("device", "host", "dirty") if self._host.num_blocks else ("device",)
        self._orders = {order: next_use.order() for order in orders}

    def tell_time(self, now: float) -> None:
        """Before facts of `now` are folded in."""
        self.now, self.wake_at = now, None

    def wished(self) -> float | None:
        """What those that were asked wish, told once."""
        wake_at, self.wake_at = self.wake_at, None
        return wake_at

    # -- questions -----------------------------------------------------------------------------------

    def evict(self, view: View) -> Selection:
        return self._noted(self.policies.evict.decide(cast(KvView, view), self.now))

    def write(self, step_s: Callable[[], float]) -> Selection:
        return self._noted(self.policies.write.decide(cast(KvView, self.view("device", 0, step_s)), self.now))

    def fetch(self) -> Selection:
        return self._noted(self.policies.fetch.decide(cast(KvView, self.view("device", 0)), self.now))

    def press(self, does: bool) -> None:
        """Does a person's request wait here for what has to come from the host?"""
        self._lanes.press(self._unit, does)

    def told(self, owner: str) -> str:
        """What the policy says that has just decided what is fetched of this owner; "" if nothing."""
        told = self._told(self.policies.fetch, self.view("device", 0), owner)
        return told.why if told else ""

    def _told(self, policy: object, view: View, owner: str) -> Told | None:
        tell = getattr(policy, "tell", None)
        return tell(view, owner, self.now) if tell else None

    def _noted(self, selection: Selection) -> Selection:
        """Note when the policy wishes to be asked again."""
        self.wake_at = soonest(self.wake_at, selection.wake_at)
        return selection

    def view(self, tier: KvTier, num_wanted: int, step_s: Callable[[], float] = unknown) -> View:
        return View(
            tier,
            num_wanted,
            self._kv,
            self._host,
            self._known,
            self.now,
            self.next_use,
            self._orders,
            self.lane,
            step_s,
            self._lanes.is_pressed(self._unit),
        )

    def lane(self, to: KvTier) -> LaneState:
        """The link to the host, or back."""
        queued_s = self._lanes.queued_s(to)
        block_s = self._lanes.block_s(self._unit, self._kv.groups, to)
        return LaneState(self._transfers.num_blocks[to], queued_s, block_s)

    # -- what is told --------------------------------------------------------------------------------

    def lacks_copies(self, owner: str) -> None:
        """Full blocks of it may have no copy on the host."""
        if self._host.num_blocks:
            self._known.unwritten.setdefault(owner)
            self.rests(owner, "dirty")

    def rests(self, owner: str, order: str) -> None:
        """There is KV of it in the tier, to be found by when it is due."""
        if self.next_use is not None:
            self.next_use.rests(owner, self._orders[order])

    def tell(
        self,
        move: KvMove,
        owners: Mapping[str, int],
        tickets: Set[int] = frozenset(),
        left: View | None = None,
    ) -> None:
        """So many blocks of each owner. left: the view by which the evict policy gave them up."""
        assert self.watch is not None
        for owner, num_blocks in owners.items():
            if num_blocks:
                session = self._known.session.get(owner, owner)
                told = None if left is None else self._told(self.policies.evict, left, owner)
                self.watch(KvMoved(self._unit, move, owner, session, num_blocks, tickets, told))
