"""The driver: hands facts to a node, carries out what it decides, and keeps the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from antiphon.assembly.node import Node
from antiphon.core.facts import Fact
from antiphon.core.plans import Decision, DropMedia, Handoff, Order, Output, RenderPrompt
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
        self.node = Node(engine.node, max(executor.depth for executor in engine.executors.values()))
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
        if self._recorder is not None and (facts or decision.orders or decision.outputs):
            self._recorder.write(now, facts, decision)
        for output in decision.outputs:
            self._emit(output)
        for order in decision.orders:
            self._execute(order)
        for name, executor in self._engine.executors.items():
            done = executor.poll()
            self._facts += done
            self._emitted[name] += sum(len(fact.requests) for fact in done if hasattr(fact, "requests"))
        return bool(self._facts) or bool(decision.orders)

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
            case DropMedia():
                self._engine.payloads.drop_media(order)
            case _:
                before = self._clock()
                self._engine.executors[order.stage].submit(order)
                self._steps[order.stage] += 1
                self._seconds[order.stage] += self._clock() - before
