"""An engine's units in several processes, put together so that its driver need not know."""

from __future__ import annotations

import select
from collections.abc import Callable, Hashable
from functools import partial

from antiphon.core.config import NodeConfig
from antiphon.core.facts import (
    CopyDone,
    CopyFailed,
    Fact,
    MediaArrived,
    PayloadArrived,
    StepDone,
    StepFailed,
    UnitLost,
)
from antiphon.core.plans import CopyBlocks, DropMedia, DropPayload, Handoff, MoveBlocks, SendMedia, Step
from antiphon.core.ports import Executor
from antiphon.core.sampling import Guide
from antiphon.metrics.names import Metric
from antiphon.runtime.ipc_messages import Broken, CompileGuide, RemoteOrder
from antiphon.runtime.local_units import LocalUnits
from antiphon.runtime.stage_processes import StageProcesses


class RemoteExecutor:
    """A unit of another process. Implements `core.ports.Executor`; a step for a process that is gone is never
    reported, since its unit is."""

    def __init__(self, fleet: Fleet, unit: str, depth: int) -> None:
        self.depth = depth
        self.done: list[Fact] = []
        self._fleet = fleet
        self._unit = unit

    def submit(self, step: Step) -> None:
        self._fleet.order(self._unit, step)

    def poll(self) -> list[Fact]:
        done, self.done = self.done, []
        return done


class Fleet:
    """Every unit's executor, and the ports that concern several of them: implements
    `core.ports.PayloadMover`, `KvMover`, `GuideCompiler`, `Wakeup` and `Processes`. Orders go to the process
    where the unit lives, in the order given.
    """

    def __init__(
        self,
        node: NodeConfig,
        local: LocalUnits,
        processes: StageProcesses,
        depth: int,
        writers: tuple[str, ...] = (),
    ) -> None:
        """writers: units that write text."""
        self._writers = writers
        self.processes = processes
        self._local = local
        self._places = {unit.name: unit.process for unit in node.placed}
        self._remote = {
            unit: RemoteExecutor(self, unit, depth) for unit, process in self._places.items() if process
        }
        self.executors: dict[str, Executor] = {
            unit: self._remote.get(unit) or local.executors[unit] for unit in self._places
        }
        self._facts: list[Fact] = []
        self._awaited: dict[Hashable, tuple[str, str, int]] = {}
        """What is on its way, by the names that its arrival gives it: source, target, how often."""
        self._moving: dict[int, tuple[str, str]] = {}
        """KV that is, by ticket: source and target."""
        self._epoll = select.epoll()
        self._epoll.register(processes, select.EPOLLIN)
        if local.lane is not None:
            self._epoll.register(local.lane, select.EPOLLIN)

    def order(self, unit: str, order: RemoteOrder) -> None:
        """An order for the process of a unit, which may be this one."""
        number = self.processes.next_number()
        process = self._places[unit]
        if process:
            self.processes.order(process, number, order)
        else:
            self._local.carry_out(number, order)
            self._send_parcels()

    # -- core.ports.PayloadMover ---------------------------------------------------------------------

    def handoff(self, order: Handoff) -> None:
        if self._places[order.source] != self._places[order.target]:
            self._await((order.target, "request", order.request), order.source, order.target)
        self.order(order.source, order)

    def drop_payload(self, order: DropPayload) -> None:
        self._awaited.pop((order.target, "request", order.request), None)
        self.order(order.target, order)

    def drop_media(self, order: DropMedia) -> None:
        for key in order.keys:
            self._awaited.pop((order.unit, "medium", key), None)
        self.order(order.unit, order)

    def send_media(self, order: SendMedia) -> None:
        for key in order.keys:
            self._await((order.target, "medium", key), order.source, order.target)
        self.order(order.source, order)

    # -- core.ports.KvMover --------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """Of this process, whose copies ring no bell; others' are awaited."""
        return self._local.mover.num_in_flight

    def copy(self, order: CopyBlocks) -> None:
        if self._places[order.stage]:
            self._await((order.stage, "copy", order.ticket), order.stage, order.stage)
        self.order(order.stage, order)

    def move(self, order: MoveBlocks) -> None:
        """Both ends are told. It is answered by the target, for which the source may be gone already."""
        if self._places[order.target]:
            self._await((order.target, "copy", order.ticket), "", order.target)
            self._moving[order.ticket] = order.source, order.target
        if self._places[order.source] != self._places[order.target]:
            self.order(order.source, order)
        self.order(order.target, order)
        if order.source in self.processes.lost:
            self._break_off(order.source)

    def poll(self) -> list[Fact]:
        for fact in self._local.poll():
            self._sort(fact)
        facts, self._facts = self._facts, []
        return facts

    # -- core.ports.GuideCompiler --------------------------------------------------------------------

    def prepare(self, guide: Guide) -> Callable[[], bool]:
        """Where each unit lives that writes text; one that is lost is not waited for."""
        for unit in self._writers:
            if self._places[unit]:
                self._await((unit, "guide", guide), unit, unit)
                self.order(unit, CompileGuide(unit, guide))
        here = None if self._local.guides is None else self._local.guides.prepare(guide)
        return partial(self._is_compiled, guide, here)

    def _is_compiled(self, guide: Guide, here: Callable[[], bool] | None) -> bool:
        is_awaited = any((unit, "guide", guide) in self._awaited for unit in self._writers)
        return not is_awaited and (here is None or here())

    # -- core.ports.Wakeup ---------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._epoll.fileno()

    def clear(self) -> None:
        if self._local.lane is not None:
            self._local.lane.clear()
        self._send_parcels()
        self.processes.pump()
        for link, parcel in self.processes.take_parcels():
            self._local.take_in(parcel)
            link.release(parcel)
        for fact in self.processes.take_facts():
            self._sort(fact)
        for compiled in self.processes.take_compiled():
            self._came((compiled.unit, "guide", compiled.guide))

    # -- core.ports.Processes ------------------------------------------------------------------------

    @property
    def num_awaited(self) -> int:
        return sum(count for _, _, count in self._awaited.values())

    @property
    def lost(self) -> dict[str, str]:
        return self.processes.lost

    def stats(self) -> dict[str, float]:
        lost = self.processes.lost
        stats: dict[str, float] = {
            Metric.UNIT_UP.of_unit(unit): float(unit not in lost) for unit in self._remote
        }
        return stats | {Metric.UNIT_RESTARTS.of_unit(unit): n for unit, n in self.processes.restarts()}

    def close(self) -> None:
        self.processes.close()
        self._epoll.close()

    # -- what has come -------------------------------------------------------------------------------

    def _sort(self, fact: Fact) -> None:
        match fact:
            case StepDone() | StepFailed():
                self._remote[fact.stage].done.append(fact)
                return
            case PayloadArrived():
                self._came((fact.unit, "request", fact.request))
            case MediaArrived():
                for key in fact.keys:
                    self._came((fact.unit, "medium", key))
            case CopyDone() | CopyFailed():
                self._came((fact.stage, "copy", fact.ticket))
                self._moving.pop(fact.ticket, None)
            case UnitLost():
                self._lose(fact.unit)
            case _:
                pass
        self._facts.append(fact)

    def _await(self, name: Hashable, source: str, target: str) -> None:
        """It will come, or one of the two is lost; if one is already, nothing comes."""
        if not self.processes.lost.keys() & {source, target}:
            *_, count = self._awaited.get(name, (0,))
            self._awaited[name] = source, target, count + 1

    def _came(self, name: Hashable) -> None:
        """Nothing, for what was dropped meanwhile."""
        if name in self._awaited:
            source, target, count = self._awaited.pop(name)
            if count > 1:
                self._awaited[name] = source, target, count - 1

    def _break_off(self, source: str) -> None:
        """What was to come from this unit does not."""
        for ticket, (sender, target) in self._moving.items():
            if sender == source:
                self.processes.tell(self._places[target], Broken(target, ticket))

    def _lose(self, unit: str) -> None:
        """What is on its way from or to it never comes, and no report of a step is of any use."""
        self._awaited = {name: way for name, way in self._awaited.items() if unit not in way[:2]}
        self._remote[unit].done.clear()
        self._moving = {ticket: way for ticket, way in self._moving.items() if unit != way[1]}
        self._break_off(unit)

    def _send_parcels(self) -> None:
        while self._local.outgoing:
            unit, parcel = self._local.outgoing.popleft()
            self.processes.deliver(self._places[unit], parcel)
