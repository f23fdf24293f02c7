"""What step policies see of a stage: `policy.base.StepView` over its ledgers, computed when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.core.config import ClassBounds
from antiphon.core.facts import Floats, Ints, Mask
from antiphon.core.plans import ints
from antiphon.interaction.frontier import Frontier
from antiphon.policy.base import Place, StepCost, Tier
from antiphon.stage.beside import Beside, WaitBounds, patience
from antiphon.stage.kv_ledger import KvLedger
from antiphon.stage.lanes import Lanes
from antiphon.stage.rows import RowLedger
from antiphon.stage.waiting import WaitingQueue

C = TypeVar("C", bound=NDArray[Any])


class column(Generic[C]):
    """Computed when it is first read, and read-only: the engine goes by what a policy was shown. Without the
    lock that `cached_property` takes."""

    def __init__(self, compute: Callable[[Any], C]) -> None:
        self.__doc__ = compute.__doc__
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: Any, owner: type) -> C:
        made = view.__dict__[self._name] = self._compute(view)
        made.flags.writeable = False
        return made


class RowsInUse:
    """What share of its rows each unit of a node has in use, for the stages before it."""

    def __init__(self) -> None:
        self._units: dict[str, tuple[int | None, Callable[[], float]]] = {}

    def tell(self, unit: str, stage: int | None, share: Callable[[], float]) -> None:
        """A unit begins, or begins anew. `stage`: its place among those that make a reply."""
        self._units[unit] = stage, share

    def behind(self, stage: int | None) -> float:
        """Where it is greatest, of the units of the stages behind this one; 0: there is none."""
        if stage is None:
            return 0.0
        shares = (share() for place, share in self._units.values() if place is not None and place > stage)
        return max(shares, default=0.0)


@dataclass(slots=True)
class Surroundings:
    """What the stages of a node share, and a view tells beside the stage's own: frontier, bounds, costs.

    stage  the unit's place among those that make a reply; None: it makes none (encoders)
    bounds  by class, of which `ttft_s` and `tpot_s` are columns by tier
    lanes  of the unit's device, and `beside`: the replies that are drawn there
    rows   of all units
    """

    frontier: Frontier = field(default_factory=lambda: Frontier(1, 0.0))
    stage: int | None = None
    bounds: Mapping[str, ClassBounds] = field(default_factory=dict[str, ClassBounds])
    cost: StepCost | None = None
    lanes: Lanes = field(default_factory=Lanes)
    rows: RowsInUse = field(default_factory=RowsInUse)
    beside: Beside = field(default_factory=Beside)
    ttft_s: Floats = field(init=False)
    tpot_s: Floats = field(init=False)

    def __post_init__(self) -> None:
        found = [self.bounds.get(tier.name.lower(), ClassBounds()) for tier in Tier]
        self.ttft_s = np.array([inf if one.ttft_s is None else one.ttft_s for one in found])
        self.tpot_s = np.array([inf if one.tpot_s is None else one.tpot_s for one in found])

    def patience(self, tier: Ints, slots: NDArray[np.intp], now: float) -> WaitBounds:
        """Of replies that this stage makes, each in its slot of the frontier."""
        lead_s = (
            np.full(len(slots), nan) if self.stage is None else self.frontier.leads_s(self.stage, slots, now)
        )
        return patience(tier, self.tpot_s[tier], lead_s, self.frontier.begun(slots))


class Candidates:
    """The candidates of a stage without KV: a codec's streams, an encoder's media. All columns [n]."""

    block_size = num_blocks = num_free = num_pending_free = num_evictable = num_promised = 0

    row: column[Ints]
    request: column[Ints]
    tier: column[Ints]
    slots: column[Ints]
    """Where the frontier knows their responses."""
    tokens: column[Ints]

    def __init__(
        self,
        unit: str,
        around: Surroundings,
        now: float,
        num_rows: int,
        size: int,
        num_free_rows: int = 0,
        num_pending_rows: int = 0,
    ) -> None:
        self.unit = unit
        self.num_rows, self.num_free_rows, self.num_pending_rows = num_rows, num_free_rows, num_pending_rows
        self._held_back: Mask | None = None
        self._ready: Mask | None = None
        self._around = around
        self._now = now
        self._size = size

    def __len__(self) -> int:
        return self._size

    @column
    def could_run(self) -> Mask:
        """Ready, but for what a pace policy holds."""
        return np.ones(self._size, np.bool_)

    @property
    def held_back(self) -> Mask | None:
        """What a pace policy holds."""
        return self._held_back

    def hold(self, held: Mask | None) -> None:
        """These are not ready, whatever they could do."""
        self._held_back, self._ready = held, None

    @property
    def ready(self) -> Mask:
        if self._held_back is None:
            return self.could_run
        if self._ready is None:
            self._ready = self.could_run & ~self._held_back
            self._ready.flags.writeable = False
        return self._ready

    context, held, needs, place = (column[Ints](lambda view: np.zeros(len(view), np.int64)) for _ in range(4))
    """None is before them, none is held or needed, and all that they begin with is on the device."""
    reload_s = column[Floats](lambda view: np.zeros(len(view)))
    reading = column[Mask](lambda view: np.zeros(len(view), np.bool_))

    @column
    def age_s(self) -> Floats:
        return self._around.frontier.ages_s(self.slots, self._now)

    @column
    def lead_s(self) -> Floats:
        if self._around.stage is None:
            return np.full(self._size, nan)
        return self._around.frontier.leads_s(self._around.stage, self.slots, self._now, self.ahead_s)

    @column
    def begun(self) -> Mask:
        return self._around.frontier.begun(self.slots)

    @column
    def ahead_s(self) -> Floats:
        if self._around.stage is None:
            return np.zeros(self._size)
        return self._around.frontier.ahead_s(self._around.stage, self.slots)

    @column
    def source(self) -> Ints:
        return self._around.frontier.sources(self.slots)

    @column
    def num_gaps(self) -> Ints:
        return self._around.frontier.num_gaps(self.slots)

    @column
    def rate(self) -> Floats:
        if self._around.stage is None:
            return np.full(self._size, nan)
        return self._around.frontier.rates(self._around.stage, self.slots)

    @column
    def ttft_s(self) -> Floats:
        return self._around.ttft_s[self.tier]

    @column
    def tpot_s(self) -> Floats:
        return self._around.tpot_s[self.tier]

    @property
    def cost(self) -> StepCost | None:
        return self._around.cost

    @property
    def rows_behind(self) -> float:
        return self._around.rows.behind(self._around.stage)


def _listed(at: int) -> column[Ints]:
    return column(lambda view: view.table[:, at])


class Listed(Candidates):
    """Columns that were worked out beforehand."""

    row, request, tier, slots, tokens = map(_listed, range(5))
    could_run = column[Mask](lambda view: view.table[:, 5] == 1)

    def __init__(
        self,
        unit: str,
        around: Surroundings,
        now: float,
        num_rows: int,
        columns: Sequence[tuple[int, int, int, int, int, bool]],
        num_free_rows: int = 0,
        num_pending_rows: int = 0,
    ) -> None:
        """columns: row, request, tier, slot, tokens, could it run; of each."""
        super().__init__(unit, around, now, num_rows, len(columns), num_free_rows, num_pending_rows)
        self.table = np.array(columns, np.int64).reshape(-1, 6)


class ArCandidates(Candidates):
    """The candidates of a decoder: rows in use, then waiting requests, each oldest first."""

    def __init__(
        self,
        unit: str,
        around: Surroundings,
        now: float,
        rows: RowLedger,
        ledger: KvLedger,
        queue: WaitingQueue,
    ) -> None:
        self._rows, self._ledger, self._queue = rows, ledger, queue
        self.rows_in_use = rows.running
        self.waiting, self._columns = list(queue), queue.columns
        num_rows = len(self.rows_in_use)
        size = num_rows + len(self.waiting)
        super().__init__(unit, around, now, num_rows, size, rows.num_free, rows.num_pending_free)
        kv = ledger.kv
        self.block_size, self.num_blocks = kv.block_size, kv.num_blocks
        self.num_free, self.num_pending_free = kv.blocks.num_free, kv.blocks.num_pending_free
        self.num_evictable = kv.blocks.num_idle

    @cached_property
    def num_promised(self) -> int:  # type: ignore[override]
        return self._ledger.kv.num_promised

    @column
    def row(self) -> Ints:
        return self._with(self.rows_in_use, np.full(len(self.waiting), -1, np.int64))

    @column
    def request(self) -> Ints:
        return self._with(self._rows.request[self.rows_in_use], self._columns.request)

    @column
    def tier(self) -> Ints:
        return self._with(self._rows.tier[self.rows_in_use], self._columns.tier)

    @column
    def slots(self) -> Ints:
        return self._with(self._rows.slot[self.rows_in_use], self._columns.slot)

    @column
    def context(self) -> Ints:
        return self._with(self._rows.planned[self.rows_in_use], self._columns.found)

    @column
    def tokens(self) -> Ints:
        return self._with(self._rows.wanted(self.rows_in_use), self._columns.tokens)

    @column
    def reading(self) -> Mask:
        reading = self.context[: self.num_rows] < self._rows.to_compute[self.rows_in_use]
        return self._with(reading, np.ones(len(self.waiting), np.bool_)) if self.waiting else reading

    @column
    def could_run(self) -> Mask:
        could_run = self._columns.could_run == 1
        waiting = self._queue.could_join(self.waiting, could_run) if self.waiting else could_run
        return self._with(self._rows.could_run[self.rows_in_use], waiting)

    @column
    def held(self) -> Ints:
        return self._with(self._rows.blocks[self.rows_in_use], np.zeros(len(self.waiting), np.int64))

    @column
    def needs(self) -> Ints:
        num_rows = self.num_rows
        ends = self.context[:num_rows] + self.tokens[:num_rows]
        own = np.maximum(-(-ends // self.block_size) - self.held[:num_rows], 0)
        return self._with(own, self._columns.needs)

    @column
    def place(self) -> Ints:
        places = ints([self._ledger.place(one) for one in self.waiting])
        return self._with(np.full(self.num_rows, Place.DEVICE, np.int64), places)

    @column
    def reload_s(self) -> Floats:
        reload_s = [self._ledger.reload_s(one) for one in self.waiting]
        return self._with(np.zeros(self.num_rows), np.array(reload_s, np.float64))

    def _with(self, rows: C, waiting: C) -> C:
        """The column of rows, followed by that of waiting requests."""
        return cast(C, np.concatenate([rows, waiting])) if self.waiting else rows
