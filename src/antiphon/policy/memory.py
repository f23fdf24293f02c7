"""Protocols of the decisions about resting KV: what leaves a tier, is written down early, and comes back.

A session's KV rests when no request of it runs. It lies on the device from its first block on and may go on
on the host; what lies on the host may lie on the device as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import Ints

Tier = Literal["device", "host"]
Floats = NDArray[np.float64]


class TierView(Protocol):
    """What may be read of one tier of a stage. Columns are computed when read, aligned with `sessions`."""

    @property
    def tier(self) -> Tier: ...

    @property
    def num_blocks(self) -> int:
        """Per KV group."""
        ...

    @property
    def num_free(self) -> int:
        """Blocks that are free, or will be once steps and copies under way are done."""
        ...

    @property
    def num_wanted(self) -> int:
        """Blocks that somebody waits for; 0 where the tier is only looked after."""
        ...

    @property
    def num_below(self) -> int:
        """Free blocks of the tier below, where what leaves this one may go; 0 where there is none."""
        ...

    @property
    def sessions(self) -> Sequence[str]:
        """Whose KV rests here, least recently used first."""
        ...

    @property
    def used_s(self) -> Floats:
        """When each was used last, in seconds of the node's clock."""
        ...

    @property
    def blocks(self) -> Ints:
        """Blocks of each that no running request holds. What several sessions share counts for each."""
        ...

    @property
    def dirty(self) -> Ints:
        """Those of its full blocks that the tier below has no copy of."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Blocks of resting sessions: each session's last ones first, session after session, until there are
    `count`."""

    sessions: Sequence[str]
    count: int
    reason: str


NOTHING = Selection((), 0, "nothing to do")


@dataclass(frozen=True, slots=True)
class FetchView:
    """A request that is about to join, and where the beginning of its prompt lies, in blocks."""

    session: str
    num_device: int
    num_host: int
    block_size: int


class EvictPolicy(Protocol):
    """Decides what leaves a tier: the device when blocks are short, the host when it is to take what leaves
    the device, and both when nothing is short but free blocks may be wanted soon.

    What it leaves short goes all the same, least recently used first: nobody waits for ever.
    """

    name: str

    def decide(self, view: TierView, now: float) -> Selection: ...


class WritePolicy(Protocol):
    """Decides what is copied to the host before it has to leave the device. Asked at every step planned."""

    name: str

    def decide(self, view: TierView, now: float) -> Selection: ...


class FetchPolicy(Protocol):
    """Decides how much of what lies on the host comes back for a request that joins; the rest is computed.

    Asked again while nothing has changed, it says the same.
    """

    name: str

    def decide(self, view: FetchView, now: float) -> int:
        """Blocks to copy, of `view.num_host`."""
        ...


@dataclass(frozen=True, slots=True)
class KvPolicies:
    """One policy for each decision about resting KV."""

    evict: EvictPolicy
    write: WritePolicy
    fetch: FetchPolicy
