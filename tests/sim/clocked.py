"""The toy model on a machine with a clock: steps, copies and hand-offs that take time, for both drivers."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from antiphon.core.config import NodeConfig, Unit
from antiphon.core.facts import CopyDone, Fact, MediaArrived, PayloadArrived, StageFact, timed
from antiphon.core.plans import CopyBlocks, DropMedia, DropPayload, Handoff, MoveBlocks, SendMedia, Step
from antiphon.core.ports import Prompter
from antiphon.graphs import find_graph
from antiphon.latency.features import SpeechFeatures
from antiphon.latency.profile import Reading, Served
from antiphon.sim.devices import BusySpan, Devices
from antiphon.sim.driver import MEDIUM_TOKENS
from antiphon.sim.model import SimEngine
from antiphon.sim.prompter import SimPrompter
from antiphon.sim.reading import ReadingVoice, RecordingEncoder
from antiphon.sim.run import stage_model
from fakes import toy
from fakes.fleet import Fleet
from sim.linear import LinearCosts

COSTS = LinearCosts(
    launch_s=0.003,
    token_s=0.0007,
    row_s=0.0011,
    frame_s=0.0013,
    media_s=0.002,
    bytes_per_s=1e6,
    delay_s=0.0004,
)
BLOCK_BYTES = {("thinker", "kv"): 1900, ("thinker", "hidden"): 500, ("talker", "kv"): 1100}
POSITION_BYTES = 30


class ToyModel:
    """All stages of the toy model; a step is carried out when it is ordered."""

    prompter: Prompter = toy.ToyPrompter()
    said: SpeechFeatures | None = None
    """Nothing in it reads text."""

    def __init__(self, config: NodeConfig) -> None:
        self.payloads = Fleet(config, depth=0, lags=False)
        self.stages = self.payloads.executors

    def run(self, step: Step) -> StageFact:
        self.payloads.submit(step)
        self.payloads.report(dict.fromkeys(self.payloads.devices, 0))
        (fact,) = self.stages[step.stage].poll()
        return fact  # type: ignore[return-value]

    def heard(self, facts: list[Fact]) -> None:
        """The node was told these: copies among them are over."""
        for fact in facts:
            if isinstance(fact, CopyDone):
                self.payloads.mover.finish(fact.stage, fact.ticket)


class CascadeModel:
    """All stages of a cascade, as they are simulated. Nothing lies in its KV."""

    def __init__(self, config: NodeConfig) -> None:
        graph = find_graph(config.graph)
        served = Served(config, reading=Reading(3, 6, 4800, 6000))
        ears, engine = RecordingEncoder(), SimEngine(served, {})
        self.stages = {
            unit.name: stage_model(engine, graph.stage(unit.stage), ears) for unit in config.placed
        }
        self.payloads = Unmoved({unit.name: unit for unit in config.placed})
        self.prompter: Prompter = SimPrompter(graph)
        self.said: SpeechFeatures | None = None
        """In the step that ran last."""

    def run(self, step: Step) -> StageFact:
        model = self.stages[step.stage]
        fact = model.run(step)
        self.said = model.said if isinstance(model, ReadingVoice) else None
        return fact

    def heard(self, facts: list[Fact]) -> None:
        pass


class Unmoved:
    """Where nothing has to be carried. Implements KvMover and PayloadMover, as far as they are asked."""

    def __init__(self, units: dict[str, Unit]) -> None:
        self.units = units
        self.mover = self

    def copy(self, order: CopyBlocks) -> None: ...

    def handoff(self, order: Handoff) -> None: ...

    def drop_payload(self, order: DropPayload) -> None: ...

    def drop_media(self, order: DropMedia) -> None: ...


Model = ToyModel | CascadeModel


class Hardware(Devices):
    """How long everything takes, and the toy model's KV that copies carry."""

    def __init__(self, config: NodeConfig, model: Model) -> None:
        super().__init__(COSTS, config.placed, BLOCK_BYTES, POSITION_BYTES)
        self._mover = model.payloads.mover

    def copy(self, order: CopyBlocks, now: float) -> BusySpan:
        self._mover.copy(order)
        return super().copy(order, now)

    def move(self, order: MoveBlocks, now: float) -> BusySpan:
        self._mover.move(order)
        return super().move(order, now)


@dataclass
class Clock:
    """A fake clock, and when something ends that nobody waits for."""

    now: float = 0.0
    ends: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now


class ClockedExecutor:
    """One unit on the fake clock: a step ends later, or holds up the driver (depth 0, in its process)."""

    def __init__(self, model: Model, unit: Unit, hardware: Hardware, clock: Clock, depth: int) -> None:
        self.depth = depth
        self._model, self._hardware, self._clock = model, hardware, clock
        self._is_inline = not (depth or unit.process)
        self._done: deque[tuple[float, Fact]] = deque()

    def submit(self, step: Step) -> None:
        fact = self._model.run(step)
        end_s, seconds = self._hardware.run(step, self._clock.now, self._model.said)
        self._done.append((end_s, timed(fact, seconds)))
        if self._is_inline:
            self._clock.now = end_s
        else:
            insort(self._clock.ends, end_s)

    def poll(self) -> list[Fact]:
        facts: list[Fact] = []
        while self._done and self._done[0][0] <= self._clock.now:
            facts.append(self._done.popleft()[1])
        return facts


class ClockedMover:
    """What goes beside the steps, on the fake clock. Implements KvMover and PayloadMover."""

    def __init__(self, model: Model, hardware: Hardware, clock: Clock) -> None:
        self._payloads, self._hardware, self._clock = model.payloads, hardware, clock
        self._copies: list[tuple[float, int, Fact]] = []
        self._arrivals: list[tuple[float, int, Fact]] = []
        self._seq = 0

    @property
    def num_in_flight(self) -> int:
        return len(self._copies)

    def copy(self, order: CopyBlocks) -> None:
        end_s, seconds = self._hardware.copy(order, self._clock.now)
        self._will_end(self._copies, end_s, CopyDone(order.stage, order.ticket, seconds))

    def move(self, order: MoveBlocks) -> None:
        end_s, seconds = self._hardware.move(order, self._clock.now)
        self._will_end(self._copies, end_s, CopyDone(order.target, order.ticket, seconds))

    def handoff(self, order: Handoff) -> None:
        self._payloads.handoff(order)
        there_s = self._hardware.hand_over(order, self._clock.now)
        if self._hardware.are_apart(order.source, order.target):
            self._will_end(self._arrivals, there_s, PayloadArrived(order.target, order.request))

    def send_media(self, order: SendMedia) -> None:
        self._payloads.send_media(order)
        there_s = self._hardware.send(MEDIUM_TOKENS * len(order.keys), self._clock.now)
        self._will_end(self._arrivals, there_s, MediaArrived(order.target, order.keys))

    def drop_payload(self, order: DropPayload) -> None:
        self._payloads.drop_payload(order)
        self._hardware.forget(order.target, order.request)

    def drop_media(self, order: DropMedia) -> None:
        self._payloads.drop_media(order)

    def poll(self) -> list[Fact]:
        """What has arrived, then the copies that are done."""
        return [fact for under_way in (self._arrivals, self._copies) for fact in self._due(under_way)]

    def _will_end(self, under_way: list[tuple[float, int, Fact]], end_s: float, fact: Fact) -> None:
        self._seq += 1
        insort(under_way, (end_s, self._seq, fact))
        insort(self._clock.ends, end_s)

    def _due(self, under_way: list[tuple[float, int, Fact]]) -> list[Fact]:
        due = [fact for end_s, _, fact in under_way if end_s <= self._clock.now]
        del under_way[: len(due)]
        return due
