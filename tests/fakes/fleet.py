"""Executors of every unit of a node, on their devices and in their processes, and what moves between them."""

from __future__ import annotations

from antiphon.core.config import NodeConfig, Unit
from antiphon.core.facts import Fact, MediaArrived, PayloadArrived
from antiphon.core.plans import DropMedia, DropPayload, Handoff, MoveBlocks, SendMedia, Step
from fakes.copies import FakeMover
from fakes.executors import Device, FakeCodec, FakeEncoder, FakeExecutor, FakeTalker, FakeThinker


class Fleet:
    """Implements `core.ports.PayloadMover`; what crosses processes has come at the next poll."""

    def __init__(self, config: NodeConfig, depth: int, lags: bool) -> None:
        self._config = config
        self.units = {unit.name: unit for unit in config.placed}
        self.devices: dict[tuple[str, str], Device] = {}
        self.features: dict[str, set[int]] = {unit.process: set() for unit in config.placed}
        self.executors: dict[str, FakeExecutor] = {}
        self.dead = ""
        """A process that is gone: what it is ordered is lost."""
        self._facts: list[Fact] = []
        for unit in config.placed:
            self.devices.setdefault((unit.process, unit.device), Device(depth, lags))
            self.executors[unit.name] = self._make(unit)
        self.mover = FakeMover(self.executors)

    def _make(self, unit: Unit) -> FakeExecutor:
        device, features = self.devices[unit.process, unit.device], self.features[unit.process]
        match unit.stage:
            case "encoders":
                return FakeEncoder(device, features)
            case "thinker":
                return FakeThinker(device, self._config.ar["thinker"], features)
            case "talker":
                return FakeTalker(device, self._config.ar["talker"])
            case _:
                return FakeCodec(device, self._config.codec["code2wav"].max_rows)

    def _is_dead(self, *units: str) -> bool:
        return any(self.units[unit].process == self.dead for unit in units) and bool(self.dead)

    def submit(self, step: Step) -> None:
        assert not self._is_dead(step.stage), "a step for a unit that is known to be lost"
        self.executors[step.stage].submit(step)

    @property
    def num_in_flight(self) -> int:
        return sum(device.num_in_flight for device in self.devices.values())

    def report(self, before: dict[tuple[str, str], int]) -> None:
        for place, device in self.devices.items():
            device.report(before[place])

    def poll(self) -> list[Fact]:
        facts, self._facts = self._facts, []
        for executor in self.executors.values():
            facts += executor.poll()
        return facts + self.mover.poll()

    def kill(self, process: str) -> list[str]:
        """The process dies; once `dead` is no more, it is there again, bare. Returns its units; what they had
        to report is lost."""
        self.dead = process
        lost = [unit for unit in self.units.values() if unit.process == process]
        for unit in lost:
            old = self.devices[unit.process, unit.device]
            new = self.devices[unit.process, unit.device] = Device(old.depth, old.lags)
            new.failing, new.is_vague = old.failing, old.is_vague
        self.features[process].clear()
        for unit in lost:
            self.executors[unit.name] = self._make(unit)
        names = [unit.name for unit in lost]
        self.mover.forget(names)
        self._facts = [fact for fact in self._facts if getattr(fact, "unit", "") not in names]
        return names

    def handoff(self, order: Handoff) -> None:
        if self._is_dead(order.source, order.target):
            return
        thinker, talker = self.executors[order.source], self.executors[order.target]
        assert isinstance(thinker, FakeThinker)
        assert isinstance(talker, FakeTalker)
        assert order.group == "hidden"
        assert thinker.rows[order.row].join.request == order.request, "the row is another's"
        talker.payloads[order.request] = thinker.payload(order.row, order.positions)
        if self.units[order.source].process != self.units[order.target].process:
            self._facts.append(PayloadArrived(order.target, order.request))

    def move(self, order: MoveBlocks) -> None:
        if not self._is_dead(order.target):
            self.mover.move(order, self._is_dead(order.source))

    def drop_payload(self, order: DropPayload) -> None:
        if self._is_dead(order.target):
            return
        talker = self.executors[order.target]
        assert isinstance(talker, FakeTalker)
        del talker.payloads[order.request]

    def drop_media(self, order: DropMedia) -> None:
        if self._is_dead(order.unit):
            return
        for key in order.keys:
            self.features[self.units[order.unit].process].discard(key)

    def send_media(self, order: SendMedia) -> None:
        if self._is_dead(order.source, order.target):
            return
        source, target = self.units[order.source].process, self.units[order.target].process
        assert source != target, "within one process nothing has to be sent"
        assert set(order.keys) <= self.features[source], "sent before it was encoded"
        self.features[target].update(order.keys)
        self._facts.append(MediaArrived(order.target, order.keys))
