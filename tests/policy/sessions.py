"""KV of sessions between their turns, as a test writes it down for `NextUse`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf, nan
from typing import NamedTuple, cast

from antiphon.policy.memory import KvState, KvView, LaneState

NOW = 100.0
LANE = LaneState(0, 0.0, 0.01)


class Held(NamedTuple):
    """What the view tells of one owner."""

    device: int = 10
    due_s: float = nan
    state: KvState = KvState.RESTING
    host: int = 0


@dataclass
class Kv:
    """A device of 160 blocks, of which 10 are to be kept free; a block takes 10 ms over the link."""

    owners: dict[str, Held] = field(default_factory=dict[str, Held])
    order: tuple[str, ...] = ()
    coming: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    away: dict[str, int] = field(default_factory=dict[str, int])
    tier: str = "device"
    num_wanted: int = 0
    num_free: int = 160
    num_below: int = 1000
    num_blocks: int = 160
    back: LaneState = LANE
    out: LaneState = LANE
    step_s: float = nan
    expects_at: float = inf
    incoming: dict[str, int] = field(default_factory=dict[str, int])
    preloaded: Counter[str] = field(default_factory=Counter[str])
    patient: tuple[str, ...] = ()
    is_pressed_beside: bool = False
    due_below_s: float = nan

    @property
    def view(self) -> KvView:
        return cast("KvView", self)

    def farthest(self) -> object:
        return iter((*self.order, *self.coming))

    def farthest_dirty(self) -> object:
        return iter(self.order)

    def is_expected(self, owner: str) -> bool:
        return owner in self.coming

    def has(self, owner: str) -> bool:
        return owner in self.owners

    def state(self, owner: str) -> KvState | None:
        return self.owners[owner].state if owner in self.owners else None

    def device(self, owner: str) -> int:
        return self.owners[owner].device

    def on_host(self, owner: str) -> int:
        return self.owners[owner].host

    def due_s(self, owner: str) -> float:
        return self.owners[owner].due_s

    def expected(self) -> object:
        return iter(self.coming)

    def waiting(self) -> object:
        return iter(self.wanted)

    def is_pressing(self, owner: str) -> bool:
        return owner not in self.patient

    def num_away(self, owner: str) -> int:
        return self.away.get(owner, 0)

    def num_preloaded(self, owner: str) -> int:
        return self.preloaded[owner]


def known(*owners: str, **told: object) -> dict[str, Held]:
    return {owner: Held(**told) for owner in owners}  # type: ignore[arg-type]
