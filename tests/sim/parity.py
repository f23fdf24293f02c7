"""The same script of facts through `runtime` on a fake clock and through `sim`, over the same toy model."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from antiphon.assembly.node import Node
from antiphon.core.config import NodeConfig, Unit
from antiphon.core.facts import Fact, StageFact
from antiphon.core.plans import ArStep, CodecStep, CopyBlocks, Decision, EncodeStep, MoveBlocks, Step
from antiphon.engine.load import Engine
from antiphon.runtime.codec import encode
from antiphon.runtime.driver import Driver
from antiphon.runtime.record import without_media
from antiphon.sim.devices import Devices
from antiphon.sim.driver import Machine, VirtualDriver
from antiphon.sim.events import Agenda, Rank
from fakes import toy
from fakes.fleet import Fleet
from sim.linear import LinearCosts

COSTS = LinearCosts(launch_s=0.003, token_s=0.0007, row_s=0.0011, frame_s=0.0013, media_s=0.002)
Script = list[tuple[float, Fact]]


class Entries:
    """What a node was told and what it decided, in bytes. Implements both drivers' Recorder."""

    def __init__(self) -> None:
        self.kept: list[tuple[float, bytes, bytes]] = []
        self.times: list[tuple[float, list[Fact]]] = []

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None:
        self.kept.append((now, encode(without_media(tuple(facts))), encode(without_media(decision))))
        self.times.append((now, list(facts)))


class ToyModel:
    """All stages of the toy model; a step is carried out when it is ordered."""

    def __init__(self, config: NodeConfig) -> None:
        self.payloads = Fleet(config, depth=0, lags=False)
        self.stages = self.payloads.executors

    def run(self, step: Step) -> StageFact:
        self.payloads.submit(step)
        self.payloads.report(dict.fromkeys(self.payloads.devices, 0))
        (fact,) = self.payloads.poll()
        return fact  # type: ignore[return-value]


@dataclass
class Clock:
    """A fake clock, and when each device is free and steps end."""

    now: float = 0.0
    free_s: dict[str, float] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now


class ClockedExecutor:
    """One stage on the fake clock: a step holds up the driver (depth 0), or ends later."""

    def __init__(self, model: ToyModel, unit: Unit, clock: Clock, depth: int) -> None:
        self.depth = depth
        self._model, self._unit, self._clock = model, unit, clock
        self._done: deque[tuple[float, Fact]] = deque()

    def submit(self, step: Step) -> None:
        clock, device = self._clock, self._unit.device
        end_s = max(clock.now, clock.free_s.get(device, 0.0)) + COSTS.step_s(step, self._unit.stage)
        self._done.append((end_s, self._model.run(step)))
        clock.free_s[device] = end_s
        if self.depth:
            insort(clock.ends, end_s)
        else:
            clock.now = end_s

    def poll(self) -> list[Fact]:
        facts: list[Fact] = []
        while self._done and self._done[0][0] <= self._clock.now:
            facts.append(self._done.popleft()[1])
        return facts


class NoCopies:
    """Implements KvMover."""

    num_in_flight = 0

    def copy(self, order: CopyBlocks) -> None:
        raise AssertionError("nobody orders copies")

    def move(self, order: MoveBlocks) -> None:
        raise AssertionError("nobody orders moves")

    def poll(self) -> list[Fact]:
        return []


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


def on_wall_time(config: NodeConfig, script: Script, depth: int, decide_s: float = 0.0) -> Entries:
    """Through runtime.Driver."""
    clock, model, entries = Clock(), ToyModel(config), Entries()
    executors: Any = {
        unit.name: ClockedExecutor(model, unit, clock, depth) for unit in model.payloads.units.values()
    }
    engine = Engine(
        executors=executors,
        payloads=model.payloads,
        mover=NoCopies(),
        prompter=toy.ToyPrompter(),
        node=config,
        info=None,  # type: ignore[arg-type]
        wakeup=NoBell() if depth else None,
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
        if not times:
            return entries
        clock.now = max(clock.now, min(times))


def on_virtual_time(config: NodeConfig, script: Script, depth: int, decide_s: float = 0.0) -> Entries:
    """Through sim.VirtualDriver."""
    agenda, model, entries = Agenda(), ToyModel(config), Entries()
    machine = Machine(
        dict.fromkeys(model.stages, model),
        Devices(COSTS, config.placed, {}),
        toy.ToyPrompter(),
        decide_s=decide_s,
        inline=frozenset() if depth else frozenset(model.stages),
        payloads=model.payloads,
    )
    driver = VirtualDriver(Node(config, depth), machine, agenda, lambda output: None, entries)
    for at_s, fact in script:
        agenda.at(at_s, Rank.LINK, lambda fact=fact: driver.tell(fact))
    agenda.run(1e9, lambda: False)
    return entries
