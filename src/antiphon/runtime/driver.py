"""The driver: hands facts to a node, carries out what it decides, and keeps the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from antiphon.assembly.node import Node
from antiphon.core.facts import Fact, StepDone
from antiphon.core.plans import (
    CopyBlocks,
    Decision,
    DropMedia,
    DropPayload,
    Handoff,
    Order,
    Output,
    RenderPrompt,
    Step,
)
from antiphon.engine.load import Engine
from antiphon.metrics.names import Metric


class Recorder(Protocol):
    """Writes what a node was told and what it decided."""

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None: ...


class Driver:
    """One node over one engine. Single-threaded: `advance` is called again while it returns True."""

    def __init__(
        self,
        engine: Engine,
        emit: Callable[[Output], None],
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
    ) -> None:
        self.node = Node(engine.node, engine.depth)
        self.wake_at: float | None = None
        """When to advance again although nothing has happened; None: only on a new fact."""
        self._engine = engine
        self._emit = emit
        self._clock = clock
        self._recorder = recorder
        self._facts: list[Fact] = []
        self._steps = dict.fromkeys(engine.executors, 0)
        self._seconds = dict.fromkeys(engine.executors, 0.0)
        self._emitted = dict.fromkeys(engine.executors, 0)

    def advance(self, facts: list[Fact]) -> bool:
        """Observe, decide, execute. Outputs leave before the next step runs, so nobody waits for it.

        Returns True if there is more to do without a new fact from outside.
        """
        facts = [*facts, *self._facts]
        self._facts = []
        now = self._clock()
        decision = self.node.decide(facts, now)
        self.wake_at = decision.wake_at
        if self._recorder is not None and (facts or decision.orders or decision.outputs):
            self._recorder.write(now, facts, decision)
        for output in decision.outputs:
            self._emit(output)
        for order in decision.orders:
            self._execute(order)
        for name, executor in self._engine.executors.items():
            done = executor.poll()
            self._facts += done
            self._emitted[name] += sum(len(fact.tokens) for fact in done if isinstance(fact, StepDone))
        self._facts += self._engine.mover.poll()
        in_flight = self.node.num_in_flight + self._engine.mover.num_in_flight
        return bool(self._facts) or bool(decision.orders) or in_flight > 0

    def idle_s(self, most: float) -> float:
        """Seconds until the node wants to be asked again, if nothing happens before; `most` at most."""
        return most if self.wake_at is None else min(max(self.wake_at - self._clock(), 0.0), most)

    def stats(self) -> dict[str, float]:
        """Metrics of the node and of the executors, by name."""
        stats = self.node.stats()
        for stage in self._steps:
            stats[Metric.STEPS.of(stage)] = self._steps[stage]
            stats[Metric.STEP_SECONDS.of(stage)] = self._seconds[stage]
            stats[Metric.EMITTED.of(stage)] = self._emitted[stage]
        return stats

    def _execute(self, order: Order) -> None:
        match order:
            case RenderPrompt():
                self._facts.append(self._engine.prompter.render(order))
            case Handoff():
                self._engine.payloads.handoff(order)
            case DropPayload():
                self._engine.payloads.drop_payload(order)
            case DropMedia():
                self._engine.payloads.drop_media(order)
            case CopyBlocks():
                self._engine.mover.copy(order)
            case _:
                self._run(order)

    def _run(self, step: Step) -> None:
        before = self._clock()
        self._engine.executors[step.stage].submit(step)
        self._steps[step.stage] += 1
        self._seconds[step.stage] += self._clock() - before
