"""Why a request does not run: what its unit lacks, or what the policies said when they were asked last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from antiphon.assembly.story import Cause
from antiphon.core.facts import Fact, StepDone, StepFailed, UnitLost
from antiphon.core.plans import ArStep, CodecStep, Order
from antiphon.flow.response import Phase, ResponseState
from antiphon.flow.stages import Scheduler, Stages
from antiphon.policy.base import DeviceChoice, Hold, StepChoice
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import CodecScheduler
from antiphon.stage.kv_asks import KvMove
from antiphon.stage.requests import ArRequest

Turn = tuple[Cause | None, str]
"""What a request does: it waits for something, for the reason that a policy gave; or it does not wait."""
RUNS: Turn = None, "in a step"
OVER: Turn = None, "the unit owes it nothing"

BEYOND = "what the policy gave up was not enough for a waiting request"
DECIDED_BY = {
    KvMove.EVICTED: ("evict", "device"),
    KvMove.WRITTEN: ("write", "device"),
    KvMove.DROPPED: ("evict", "host"),
    KvMove.FETCHED: ("fetch", "device"),
    KvMove.PRELOADED: ("fetch", "device"),
}
"""Decision and tier of the policy that a move of KV goes back to."""


@dataclass(slots=True)
class _Asked:
    """What the step policy of a unit said when it was asked last, of which requests.

    ready      they could run, but for what is held
    preempted  and whether their KV is kept
    ran        they are in the step that came of it
    is_tried   it was the unit's turn on its device
    """

    reason: str
    ready: frozenset[int]
    chosen: frozenset[int]
    preempted: dict[int, bool]
    ran: frozenset[int] = frozenset()
    is_tried: bool = False


class Waits:
    """Owner of what policies said last, and of which requests are in steps."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}
        self._held: dict[str, tuple[str, frozenset[int]]] = {}
        self._spared: dict[str, tuple[str, frozenset[int]]] = {}
        self._before: dict[str, str] = {}
        """By unit: which other one its device preferred to it, and why."""
        self._tried: set[str] = set()
        """Units whose turn it was on their devices in this call."""
        self._answered: set[str] = set()
        """Units whose step policies were asked in this call."""
        self._of_kv: dict[tuple[str, str, str], str] = {}
        """Reasons by decision, tier and unit."""
        self._flights: dict[tuple[str, int], frozenset[int]] = {}

    def observe(self, fact: Fact) -> None:
        """Before the node hears of it."""
        match fact:
            case StepDone() | StepFailed():
                self._flights.pop((fact.stage, fact.step), None)
            case UnitLost():
                self._flights = {key: one for key, one in self._flights.items() if key[0] != fact.unit}
            case _:
                pass

    def said(self, decision: str, unit: str, view: Any, answer: Any) -> None:
        """A policy has answered."""
        match answer:
            case StepChoice():
                preempted: list[int] = view.request[answer.preempt].tolist()
                kept: list[bool] = [False] * len(preempted) if answer.keeps is None else answer.keeps.tolist()
                keeps = dict(zip(preempted, kept, strict=True))
                ready, chosen = _requests(view, view.could_run), _requests(view, answer.order)
                self._asked[unit] = _Asked(answer.reason, ready, chosen, keeps)
                self._answered.add(unit)
            case Hold():
                self._held[unit] = answer.reason, _requests(view, answer.held)
                self._spared[unit] = answer.reason, _requests(view, answer.spared)
            case DeviceChoice():
                first = view[answer.index].unit
                self._tried.add(first)
                before = f"{first} goes first: {answer.reason}" if answer.reason else ""
                self._before.update({head.unit: before for head in view if head.unit != first})
                if any(head.unit in self._answered for head in view):
                    for head in view:
                        self._unasked(head.unit)
            case _ if decision in ("evict", "write", "fetch"):
                self._of_kv[decision, view.tier, unit] = answer.reason
            case _:
                pass  # among replicas, or who is admitted: its end tells that

    def _unasked(self, unit: str) -> None:
        """It has work, and its device asked others how urgent theirs is and chose: what its policies said in
        another call is not why a request waits now."""
        if unit in self._answered:
            return
        self._held.pop(unit, None)
        self._spared.pop(unit, None)
        if unit in self._asked:
            self._asked[unit].is_tried = False

    def planned(self, orders: Iterable[Order], stages: Stages) -> None:
        """The call is over, and ordered this."""
        for unit in self._tried & self._asked.keys():
            self._asked[unit].is_tried = True
        self._tried.clear()
        self._answered.clear()
        for step in orders:
            match step:
                case ArStep():
                    named = stages.ar[step.stage].named_by(step.step)
                case CodecStep():
                    named = step.requests.tolist()
                case _:
                    continue
            self._asked[step.stage].ran = self._flights[step.stage, step.step] = frozenset(named)

    def preempted(self, unit: str, request: int) -> tuple[bool, str] | None:
        """Is its KV kept, and why was it preempted? None: no policy did it."""
        asked = self._asked.get(unit)
        if asked is None or request not in asked.preempted:
            return None
        return asked.preempted[request], asked.reason

    def reason(self, unit: str) -> str:
        """What the step policy of a unit said last."""
        asked = self._asked.get(unit)
        return "" if asked is None else asked.reason

    def spared(self, unit: str, request: int) -> str:
        """Why the pace policy of a unit does not hold a request that is far enough ahead; "": it is not."""
        reason, spared = self._spared.get(unit, ("", frozenset[int]()))
        return reason if request in spared else ""

    def because(self, move: KvMove, unit: str) -> str:
        """Why KV moved; "": as its eviction says, which it follows from."""
        if move is KvMove.COPIED:
            return ""
        return self._of_kv.get((*DECIDED_BY[move], unit), "") if move in DECIDED_BY else BEYOND

    def turn(self, scheduler: Scheduler, response: ResponseState, is_entry: bool) -> Turn:
        """What a request does in a unit until the next call. `is_entry`: the unit reads the prompt."""
        unit, request = scheduler.name, response.request
        if any(request in named for (other, _), named in self._flights.items() if other == unit):
            return RUNS
        if isinstance(scheduler, CodecScheduler):
            if request in scheduler.requests and scheduler.could_run(request):
                return self._passed_over(unit, request, Cause.ROW)
            return Cause.UPSTREAM, ""
        assert isinstance(scheduler, ArScheduler)
        active = scheduler.find(request)
        if active is None or response.phase is Phase.ENCODING:
            return (Cause.MEDIA if is_entry else Cause.UPSTREAM), ""
        return self._queued(scheduler, active) if active.row is None else self._seated(scheduler, active.row)

    def _queued(self, scheduler: ArScheduler, active: ArRequest) -> Turn:
        if not scheduler.waiting.could_run(active):
            return (Cause.UPSTREAM if active.has_credit else Cause.DOWNSTREAM), ""
        if active.owner in scheduler.tiers.fetches.coming:
            return Cause.KV_COMING, self.because(KvMove.FETCHED, scheduler.name)
        short = Cause.BLOCKS if scheduler.is_short_of_blocks(active) else Cause.ORDER
        short = short if scheduler.rows.num_free else Cause.ROW
        return self._passed_over(scheduler.name, active.request, short)

    def _seated(self, scheduler: ArScheduler, row: int) -> Turn:
        rows = scheduler.rows
        if not rows.could_run[row]:
            has_credit = rows.sampled[row] < rows.granted[row]
            return (Cause.UPSTREAM if has_credit else Cause.DOWNSTREAM), ""
        is_full = rows.planned[row] >= rows.blocks[row] * scheduler.config.block_size
        short = Cause.BLOCKS if is_full and not scheduler.kv.blocks.num_free else Cause.ORDER
        return self._passed_over(scheduler.name, int(rows.request[row]), short)

    def _passed_over(self, unit: str, request: int, short: Cause) -> Turn:
        """It could run, and does not. `short`: what it lacks where the policy chose it."""
        asked, (reason, held) = self._asked.get(unit), self._held.get(unit, ("", frozenset[int]()))
        if request in held:
            return Cause.HELD, reason
        if asked is None or not asked.is_tried or request in asked.ran or request not in asked.ready:
            return Cause.DEVICE, self._before.get(unit, "")
        return short if request in asked.chosen else Cause.ORDER, asked.reason


def _requests(view: Any, chosen: NDArray[Any] | None) -> frozenset[int]:
    """Of the candidates that a mask or their indices name; None: of none."""
    return frozenset[int](() if chosen is None else view.request[chosen].tolist())
