"""The driver: hands facts to a node, carries out what it decides, and keeps the clock."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from typing import Protocol

from antiphon.assembly.node import Node
from antiphon.core.facts import Fact, PromptFailed, PromptReady, StepDone, StepFailed
from antiphon.core.plans import (
    CopyBlocks,
    Decision,
    DropMedia,
    DropPayload,
    Handoff,
    MoveBlocks,
    Order,
    Output,
    RenderPrompt,
    SendMedia,
    Step,
)
from antiphon.core.ports import Wakeup
from antiphon.core.snapshot import Snapshot
from antiphon.engine.load import Engine
from antiphon.metrics.names import Metric

log = logging.getLogger(__name__)

STUCK_S = 5.0
"""A decision that takes longer may never return."""
COPY_WAIT_S = 0.001
"""Between two looks at copies and guides under way, where nothing else is to be waited for."""


class DecisionRecorder(Protocol):
    """Writes what a node was told and what it decided."""

    has_stopped: bool
    """It could not go on."""

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None: ...


class Driver:
    """One node over one engine. For one thread: `advance` is called again while it returns True, once a new
    fact is there, a step has ended or `idle_s` has passed, whichever is first."""

    def __init__(
        self,
        engine: Engine,
        emit: Callable[[tuple[Output, ...]], None],
        clock: Callable[[], float] = time.monotonic,
        recorder: DecisionRecorder | None = None,
    ) -> None:
        self.node = Node(engine.node, engine.depth, time.perf_counter)
        self.wake_at: float | None = None
        """When to advance again although nothing has happened; None: only on a new fact."""
        self._engine = engine
        self._emit = emit
        self._clock = clock
        self.recorder = recorder
        self._facts: list[Fact] = []
        self._guided: list[tuple[Fact, Callable[[], bool]]] = []
        """Prompts that wait for what their replies have to match, each with what says when that is there."""
        self._ordered = False
        self._deciding_since: float | None = None
        self._begun: dict[int, float] = {}
        self._places = {unit.name: (unit.process, unit.device) for unit in engine.node.placed}
        self._ended_at = dict.fromkeys(self._places.values(), 0.0)
        self._steps = dict.fromkeys(engine.executors, 0)
        self._seconds = dict.fromkeys(engine.executors, 0.0)
        self._emitted = dict.fromkeys(engine.executors, 0)

    def advance(self, facts: list[Fact]) -> bool:
        """Observe, decide, execute. Outputs leave before the next step runs, so nobody waits for it.

        The node is asked when there are facts, after orders, and when it wished to be. Each call is recorded,
        so that policies with a state of their own decide the same again.
        Returns True if there is more to do without a new fact from outside. Raises EngineLost.
        """
        self._engine.check()
        self._collect()
        facts = [*facts, *self._facts]
        self._facts = []
        now = self._clock()
        if facts or self._ordered or (self.wake_at is not None and self.wake_at <= now):
            self._decide(facts, now)
        in_flight = self.node.num_in_flight + self._engine.mover.num_in_flight + self._num_awaited
        in_flight += len(self._guided)
        return self._ordered or bool(self._facts) or in_flight > 0

    def _decide(self, facts: list[Fact], now: float) -> None:
        self._deciding_since = time.monotonic()
        decision = self.node.decide(facts, now)
        self._deciding_since = None
        self.wake_at = decision.wake_at
        self._facts += self.node.guard.overdue()
        for incident in self.node.guard.incidents():
            log.warning("%s", incident)
        if self.recorder is not None:
            self.recorder.write(now, facts, decision)
        if decision.outputs:
            self._emit(decision.outputs)
        for order in decision.orders:
            self._execute(order)
        self._ordered = bool(decision.orders)
        if self._engine.wakeup is None:
            self._collect()  # steps have run: their time ends here, not when the next fact comes

    def why_stuck(self) -> str:
        """In words, which decision does not return; "" where all is well. For another thread to ask."""
        since, asking = self._deciding_since, self.node.guard.asking
        if since is None or (taken_s := time.monotonic() - since) < STUCK_S:
            return ""
        who = "" if asking is None else f": {asking.described} does not answer"
        return f"The engine has been deciding for {taken_s:.0f} s{who}."

    @property
    def lost(self) -> dict[str, str]:
        """Units that are not there, and why."""
        return self._engine.processes.lost if self._engine.processes is not None else {}

    @property
    def _num_awaited(self) -> int:
        return self._engine.processes.num_awaited if self._engine.processes is not None else 0

    @property
    def wakeup(self) -> Wakeup | None:
        """Becomes readable when a step ends; None where none is ever in flight between two calls."""
        return self._engine.wakeup

    def wait(self, most: float) -> None:
        """Until a step ends or `idle_s` has passed."""
        wait_s = self.idle_s(most)
        if self.wakeup is not None:
            select.select([self.wakeup], [], [], wait_s)
        elif wait_s:
            time.sleep(wait_s)

    def idle_s(self, most: float) -> float:
        """Seconds until the node wants to be asked again, if nothing happens before; `most` at most.

        None at all after orders, since there may be more to order, or with facts at hand. While copies are
        under way, so long as a thread that asks does not keep those from their work that copy.
        """
        if self._ordered or self._facts:
            return 0.0
        if self._engine.mover.num_in_flight or self._guided:
            most = min(most, COPY_WAIT_S)
        return most if self.wake_at is None else min(max(self.wake_at - self._clock(), 0.0), most)

    def stats(self) -> dict[str, float]:
        """Metrics of the node and of the executors, by name."""
        stats = self.node.stats()
        for stage in self._steps:
            stats[Metric.STEPS.of(stage)] = self._steps[stage]
            stats[Metric.STEP_SECONDS.of(stage)] = self._seconds[stage]
            stats[Metric.EMITTED.of(stage)] = self._emitted[stage]
        if self.recorder is not None:
            stats[Metric.RECORD_STOPPED] = float(self.recorder.has_stopped)
        return stats if self._engine.processes is None else stats | self._engine.processes.stats()

    def snapshot(self) -> Snapshot:
        """The node's, while it is watched."""
        return self.node.snapshot(self._clock())

    def _execute(self, order: Order) -> None:
        match order:
            case RenderPrompt():
                self._render(order)
            case Handoff():
                self._engine.payloads.handoff(order)
            case DropPayload():
                self._engine.payloads.drop_payload(order)
            case DropMedia():
                self._engine.payloads.drop_media(order)
            case SendMedia():
                self._engine.payloads.send_media(order)
            case CopyBlocks():
                self._engine.mover.copy(order)
            case MoveBlocks():
                self._engine.mover.move(order)
            case _:
                self._run(order)

    def _render(self, order: RenderPrompt) -> None:
        """On this thread, which decides: the next decision has the answer, and facts keep their order. It
        takes some 2 ms for 1,000 tokens of text; 10,000 hold up the next step by some 0.1 s."""
        rendered, guides = self._rendered(order), self._engine.guides
        if order.guide is None or guides is None or isinstance(rendered, PromptFailed):
            self._facts.append(rendered)
        else:
            self._guided.append((rendered, guides.prepare(order.guide)))

    def _rendered(self, order: RenderPrompt) -> PromptReady | PromptFailed:
        """Whatever is wrong with a prompt or with what makes it ends one request, and never the engine."""
        try:
            return self._engine.prompter.render(order)
        except Exception as error:
            log.exception("the prompt of request %d could not be made", order.request)
            what = f"The server could not make a prompt of this conversation: {type(error).__name__}."
            return PromptFailed(order.request, what, "internal_error")

    def _run(self, step: Step) -> None:
        self._begun[step.step] = self._clock()
        self._engine.executors[step.stage].submit(step)
        self._steps[step.stage] += 1

    def _collect(self) -> None:
        """Take what the executors report."""
        if self._engine.wakeup is not None:
            self._engine.wakeup.clear()
        for name, executor in self._engine.executors.items():
            for fact in executor.poll():
                self._facts.append(fact)
                self._account(name, fact)
        self._facts += self._engine.mover.poll()
        if self._guided:
            looked = [(rendered, is_over, is_over()) for rendered, is_over in self._guided]
            self._facts += [rendered for rendered, _, is_there in looked if is_there]
            self._guided = [(rendered, is_over) for rendered, is_over, is_there in looked if not is_there]

    def _account(self, stage: str, fact: Fact) -> None:
        """Steps of one device run one after the other: one begins when it is ordered, or when the one before
        has ended."""
        assert isinstance(fact, StepDone | StepFailed)
        now, place = self._clock(), self._places[stage]
        self._seconds[stage] += now - max(self._begun.pop(fact.step), self._ended_at[place])
        self._ended_at[place] = now
        if isinstance(fact, StepDone):
            self._emitted[stage] += len(fact.tokens)
