"""Protocols of the decisions about KV: what leaves a tier, what is written before it has to leave, and what
is brought back.

KV goes by its owner's name: a session whose past rests, a request that was preempted and keeps its KV, or one
that runs. It lies on the device from its first block on, and full blocks of it may lie on the host as well.
The three decisions are asked for, devices busy or idle, once something has changed that they go by (requests
and KV of the unit, its links, what people do), and say whose KV moves; how far is up to the room and the
links there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import isnan, nan
from typing import Literal, NamedTuple, Protocol

KvTier = Literal["device", "host"]


class KvState(IntEnum):
    """What KV is to its owner."""

    RESTING = 0
    """The past of a session without a request here."""
    PAUSED = 1
    """A preempted request goes on from it."""
    WAITING = 2
    """A request that has no row yet begins with it."""
    RUNNING = 3
    """A request holds it in a row; it is neither evicted nor fetched."""


class LaneState(NamedTuple):
    """A link in one direction. Seconds are nan while nothing is known of its speed.

    num_blocks  of this stage on their way
    queued_s    until all that is on its way over the link is there, of other stages too
    block_s     of one block, in all its KV groups
    """

    num_blocks: int = 0
    queued_s: float = nan
    block_s: float = nan


class KvView(Protocol):
    """What may be read of a stage's KV and of one tier of it. Nothing is computed before it is read.
    Iterators cost what is taken of them.
    """

    tier: KvTier
    """The tier that something is to leave (evict); the device otherwise."""
    groups: Sequence[str]
    """KV groups of the stage."""
    num_blocks: int
    """Per KV group."""
    num_free: int
    """Blocks that are free, or will be once steps and copies under way are done."""
    num_wanted: int
    """Blocks that are waited for; 0 where the tier is only looked after."""
    num_below: int
    """Free blocks of the tier below, where what leaves this one may go; 0 where there is none."""
    size_below: int
    """Blocks of the tier below, free or not; 0 where there is none."""
    due_below_s: float
    """When that will be needed which is needed last of what is in the tier below; nan: unknown."""
    out: LaneState
    """From the device to the host."""
    back: LaneState
    """From the host to the device."""
    step_s: float
    """Seconds that the step on this device will still take; inf: none runs; nan: unknown."""

    def oldest(self) -> Iterator[str]:
        """Owners of what is in the tier and can leave it, least recently used first."""
        ...

    def farthest(self) -> Iterator[str]:
        """The owners of `oldest` by when they will be needed, the last first. Then those of which nothing is
        known, in the order of `oldest`, and then those that are `expected`."""
        ...

    def expected(self) -> Iterator[str]:
        """Owners whose next turn is coming: their person speaks, or it was announced; the first first."""
        ...

    def has(self, owner: str) -> bool:
        """Has this owner any KV here?"""
        ...

    def num_away(self, owner: str) -> int:
        """Its next blocks that the device lacks and the host has."""
        ...

    def num_preloaded(self, owner: str) -> int:
        """Its blocks that were ordered from the host though no request waited, since a request last began
        with it, without those whose copy broke off. A fetch that is selected may bring nothing: there is no
        room, or evict and fetch disagree."""
        ...

    def waiting(self) -> Iterator[str]:
        """Owners that requests without a row begin with and that are not wholly on the device, in the order
        of the queue, as far as there are rows for them."""
        ...

    def is_pressing(self, owner: str) -> bool:
        """Of one that is `waiting`: is its request a person's, and was there room for it when that was seen
        last?"""
        ...

    is_pressed_beside: bool
    """Does a person's request wait for copies at another unit of the device, over the same link?"""
    expects_at: float
    """When the next announced turn begins to count as coming; inf: none is announced."""
    incoming: Mapping[str, int]
    """Blocks that are to come to the tier that something leaves, by owner. On the device: only blocks that no
    request waits for."""

    def is_expected(self, owner: str) -> bool:
        """Is this owner's next turn coming?"""
        ...

    requests: Mapping[str, int]
    """The request whose KV it is, of each owner that runs or was preempted."""

    def state(self, owner: str) -> KvState | None:
        """None: it has no KV here."""
        ...

    def device(self, owner: str) -> int:
        """Its blocks on the device, those that are being brought included."""
        ...

    def on_host(self, owner: str) -> int:
        """Its blocks on the host, those that others hold too included."""
        ...

    def due_s(self, owner: str) -> float:
        """When it will be needed again: at once, if it is that of a request that was preempted; nan:
        unknown."""
        ...

    def farthest_dirty(self) -> Iterator[str]:
        """Owners of `dirty`, the one that will be needed last first; then, by `dirty`, those of which nothing
        is known, and those that are `expected`."""
        ...

    def dirty(self) -> Iterator[str]:
        """Owners with full blocks that have no copy on the host, least recently used first, running ones
        last."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Whose KV moves, in order.

    count    blocks at most, of all owners together: more than are there is as many as are there
    groups   KV groups that are evicted; None: all. The others stay where they are. For policies of one's own:
             those that ship evict all
    reach    of owners that are fetched: how many leading blocks shall be on the device; all of those that are
             not named
    wake_at  when to be asked again although nothing changes; None: once it does
    is_first what is fetched comes before all else that waits: the KV of older requests reserves no room
    displaces  what is written may take the place of copies that leave the host for it, as the evict policy
             chooses; otherwise only room that is free there
    """

    owners: Iterable[str]
    count: int
    reason: str
    groups: tuple[str, ...] | None = None
    reach: Mapping[str, int] | None = None
    wake_at: float | None = None
    is_first: bool = False
    displaces: bool = False


NOTHING = Selection((), 0, "nothing to do")


def num_short(view: KvView, ahead: float) -> int:
    """Blocks that should leave the tier: what is wanted and not free, and beyond that as many as keep a share
    `ahead` of the tier free, as far as the tier below has room for them."""
    spare = view.num_free - view.num_wanted
    needed = max(-spare, 0)
    return needed + min(max(int(view.num_blocks * ahead) - max(spare, 0), 0), view.num_below)


def num_beside_step(view: KvView, events: dict[str, int]) -> int:
    """Blocks that can be written while the step runs, after what is on its way, and one if nothing is: also
    where it is not known how long either takes, which `events` counts. All, where no step runs."""
    lane = view.out
    if isnan(view.step_s):
        events["step_unknown"] += 1
    elif isnan(lane.block_s + lane.queued_s):
        events["link_unknown"] += 1
    room = (view.step_s - lane.queued_s) / lane.block_s if lane.block_s else view.step_s
    least = 0 if lane.num_blocks else 1
    return least if isnan(room) else max(int(min(room, view.num_blocks)), least)


class EvictPolicy(Protocol):
    """Decides what leaves a tier: the device when blocks are short, the host when it is to take what leaves
    the device, and, where there is a host, both when nothing is short but free blocks may be wanted soon.
    Each owner gives up its last blocks first; what the host has room for is copied there.

    What it leaves short on the device goes all the same, least recently used first: no request waits for
    ever. What it leaves short on the host stays, and what was to come there is lost.
    """

    name: str

    def decide(self, view: KvView, now: float) -> Selection: ...


class WritePolicy(Protocol):
    """Decides what is copied to the host before it has to leave the device: each owner's first blocks first,
    in chunks. Asked once the call's step is chosen."""

    name: str

    def decide(self, view: KvView, now: float) -> Selection: ...


class FetchPolicy(Protocol):
    """Decides whose KV is brought back from the host, the first blocks first.

    What a request waits for (`view.waiting`) is brought at once; what of it is not selected, the request
    computes. What no request waits for is brought in chunks: the next one follows as
    long as it is selected. It is not asked while no request could join and nothing is on the host.

    A policy that brings KV for turns that are announced (`TurnAdvised`) has an attribute `prepares`, True:
    clients are told.
    """

    name: str

    def decide(self, view: KvView, now: float) -> Selection: ...


@dataclass(frozen=True, slots=True)
class KvPolicies:
    """One policy for each decision about KV."""

    evict: EvictPolicy
    write: WritePolicy
    fetch: FetchPolicy
