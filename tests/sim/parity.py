"""The same script of facts through `runtime` on a fake clock and through `sim`, over the same toy model."""

from __future__ import annotations

from collections import deque
from typing import Any

from antiphon.assembly.node import Node
from antiphon.core.config import NodeConfig
from antiphon.core.facts import Fact
from antiphon.core.plans import ArStep, CodecStep, Decision, EncodeStep, Order
from antiphon.engine.load import Engine
from antiphon.runtime.codec import encode
from antiphon.runtime.driver import Driver
from antiphon.runtime.record import without_media
from antiphon.sim.driver import SimulatedMachine, VirtualDriver
from antiphon.sim.events import Agenda, Rank
from sim.clocked import CascadeModel, Clock, ClockedExecutor, ClockedMover, Hardware, Model, ToyModel

Script = list[tuple[float, Fact]]


class Entries:
    """What a node was told and what it decided, in bytes. Implements both drivers' Recorder."""

    has_stopped = False

    def __init__(self, model: Model) -> None:
        self._model = model
        self.kept: list[tuple[float, bytes, bytes]] = []
        self.facts: list[Fact] = []
        self.orders: list[Order] = []

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        self.kept.append((now, encode(without_media(tuple(facts))), encode(without_media(decision))))
        self.facts += facts
        self.orders += decision.orders
        self._model.heard(facts)


class NoBell:
    """Implements Wakeup; nobody waits for it here."""

    def fileno(self) -> int:
        return -1

    def clear(self) -> None:
        pass


def slowly(driver: Driver, clock: Clock, decide_s: float) -> None:
    """Each of its node's decisions takes so long for every step that it orders, if it decides anything."""
    decide = driver.node.decide

    def decided(facts: list[Fact], now: float) -> Decision:
        decision = decide(facts, now)
        if decision.orders or decision.outputs:
            steps = [order for order in decision.orders if isinstance(order, ArStep | CodecStep | EncodeStep)]
            clock.now += decide_s * max(len(steps), 1)
        return decision

    driver.node.decide = decided  # type: ignore[method-assign]


def model_of(config: NodeConfig) -> Model:
    return CascadeModel(config) if config.graph == "cascade" else ToyModel(config)


def inline(config: NodeConfig, depth: int) -> frozenset[str]:
    """Units whose steps hold up the driver."""
    return frozenset(unit.name for unit in config.placed if not (depth or unit.process))


def on_wall_time(config: NodeConfig, script: Script, depth: int, decide_s: float = 0.0) -> Entries:
    """Through runtime.Driver."""
    clock, model = Clock(), model_of(config)
    entries, hardware = Entries(model), Hardware(config, model)
    executors: Any = {
        unit.name: ClockedExecutor(model, unit, hardware, clock, depth)
        for unit in model.payloads.units.values()
    }
    mover = ClockedMover(model, hardware, clock)
    engine = Engine(
        executors=executors,
        payloads=mover,
        mover=mover,
        prompter=model.prompter,
        node=config,
        info=None,  # type: ignore[arg-type]
        wakeup=None if inline(config, depth) == executors.keys() else NoBell(),
    )
    driver = Driver(engine, lambda output: None, clock, entries)
    slowly(driver, clock, decide_s)
    to_tell = deque(script)
    while True:
        due: list[Fact] = []
        while to_tell and to_tell[0][0] <= clock.now:
            due.append(to_tell.popleft()[1])
        while clock.ends and clock.ends[0] <= clock.now:
            del clock.ends[0]  # heard of in this advance; those that end while it decides, in the next
        driver.advance(due)
        if driver.idle_s(1e9) == 0.0:
            continue
        times = [*clock.ends[:1], *[at_s for at_s, _ in list(to_tell)[:1]]]
        times += [] if driver.wake_at is None else [driver.wake_at]
        if not times:
            return entries
        clock.now = max(clock.now, min(times))


def on_virtual_time(config: NodeConfig, script: Script, depth: int, decide_s: float = 0.0) -> Entries:
    """Through sim.VirtualDriver."""
    agenda, model = Agenda(), model_of(config)
    entries = Entries(model)
    machine = SimulatedMachine(
        model.stages if isinstance(model, CascadeModel) else dict.fromkeys(model.stages, model),
        Hardware(config, model),
        model.prompter,
        decide_s=decide_s,
        inline=inline(config, depth),
        payloads=model.payloads,
    )
    driver = VirtualDriver(Node(config, depth), machine, agenda, lambda output: None, entries)
    for at_s, fact in script:
        agenda.at(at_s, Rank.LINK, lambda fact=fact: driver.tell(fact))
    agenda.run(1e9, lambda: False)
    return entries
