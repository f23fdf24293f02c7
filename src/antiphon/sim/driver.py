"""The driver on virtual time: observe, decide, carry out, as `runtime.driver` does on wall time.

Facts from outside come first, then the prompts that were ordered, then what the stages report, in the
pipeline's order, what arrived from other processes, and copies last. After orders the node is asked again at
once; else at the next fact or when it wished, whichever is first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from antiphon.assembly.node import Node
from antiphon.core.facts import CopyDone, Fact, MediaArrived, PayloadArrived, StageFact, timed
from antiphon.core.plans import (
    ArStep,
    CodecStep,
    CopyBlocks,
    Decision,
    DropMedia,
    DropPayload,
    EncodeStep,
    Handoff,
    MoveBlocks,
    Order,
    Output,
    RenderPrompt,
    SendMedia,
    Step,
)
from antiphon.core.ports import PayloadMover, Prompter
from antiphon.metrics.names import Metric
from antiphon.sim.devices import Devices
from antiphon.sim.events import Agenda, Rank
from antiphon.sim.reading import ReadingVoice

MEDIUM_TOKENS = 100
"""Of an encoded medium that is sent on: eight seconds of speech."""


class StageModel(Protocol):
    """What the steps of a stage bring, whatever they cost."""

    def run(self, step: Step) -> StageFact:
        """Steps come in order; the fact is reported when the step ends."""
        ...


class Recorder(Protocol):
    """Writes what a node was told and what it decided."""

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None: ...


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """What carries orders out.

    models    by unit, in pipeline order
    decide_s  how long a decision takes, for each step that it orders (for one, if it orders none): its orders
              and outputs leave so much later
    clock     of the host, in seconds: every decision takes as long as it does by it, instead of decide_s. A
              run is not the same twice then
    render_s  how long the driver is busy rendering a prompt, and handoff_s handing hidden states over
    inline    units whose steps hold up the driver, as without a lane of their own (depth 0)
    payloads  carries what is handed over, where the models have anything to carry
    """

    models: Mapping[str, StageModel]
    devices: Devices
    prompter: Prompter
    decide_s: float = 0.0
    clock: Callable[[], float] | None = None
    render_s: float = 0.0
    handoff_s: float = 0.0
    inline: frozenset[str] = frozenset()
    payloads: PayloadMover | None = None


class VirtualDriver:
    """One node over one simulated machine."""

    def __init__(
        self,
        node: Node,
        machine: SimulatedMachine,
        agenda: Agenda,
        emit: Callable[[Output], None],
        recorder: Recorder | None = None,
    ) -> None:
        self.node = node
        self.num_decisions = 0
        self.decided_s = 0.0
        """Seconds in decisions."""
        self._machine = machine
        self._agenda = agenda
        self._emit = emit
        self._recorder = recorder
        self._outside: list[Fact] = []
        self._prompts: list[Fact] = []
        self._done: dict[str, list[Fact]] = {stage: [] for stage in machine.models}
        self._arrived: list[Fact] = []
        self._copied: list[Fact] = []
        self._busy_until = 0.0
        self._due_s: float | None = None
        self._steps = dict.fromkeys(machine.models, 0)
        self._emitted = dict.fromkeys(machine.models, 0)

    def tell(self, fact: Fact) -> None:
        """A fact from outside, now."""
        self._outside.append(fact)
        self._ask(self._agenda.now)

    def stats(self) -> dict[str, float]:
        """Metrics of the node and of the stages, by name."""
        stats = self.node.stats()
        for stage, steps in self._steps.items():
            stats[Metric.STEPS.of(stage)] = steps
            stats[Metric.STEP_SECONDS.of(stage)] = self._machine.devices.busy_s.get(stage, 0.0)
            stats[Metric.EMITTED.of(stage)] = self._emitted[stage]
        return stats

    # -- asking --------------------------------------------------------------------------------------

    def _ask(self, time_s: float) -> None:
        """Have the node asked then, or as soon as it is done with what it decided last."""
        due_s = max(time_s, self._busy_until)
        if self._due_s is None or due_s < self._due_s:
            self._due_s = due_s
            self._agenda.at(due_s, Rank.DECIDE, lambda: self._advance(due_s))

    def _advance(self, due_s: float) -> None:
        if self._due_s != due_s:
            return
        self._due_s = None
        if self._busy_until > due_s:
            self._ask(due_s)  # what was decided meanwhile runs in the driver's own time
            return
        now, facts = self._agenda.now, self._facts()
        decision, taken_s = self._decide(facts, now)
        self.num_decisions += 1
        if self._recorder is not None:
            self._recorder.write(now, facts, decision)
        if taken_s:
            self.decided_s += taken_s
            self._busy_until = now + taken_s
        if not (decision.orders or decision.outputs):
            self._wake(decision)
        elif taken_s:
            self._agenda.at(self._busy_until, Rank.ORDER, lambda: self._carry_out(decision))
        else:
            self._carry_out(decision)

    def _decide(self, facts: list[Fact], now: float) -> tuple[Decision, float]:
        """The node's decision, and how long it takes."""
        clock = self._machine.clock
        if clock is not None:
            began_s = clock()
            decision = self.node.decide(facts, now)
            return decision, clock() - began_s
        decision = self.node.decide(facts, now)
        if not (decision.orders or decision.outputs):
            return decision, 0.0
        return decision, self._machine.decide_s * max(_num_steps(decision), 1)

    def _facts(self) -> list[Fact]:
        facts = [*self._outside, *self._prompts]
        self._outside, self._prompts = [], []
        for stage, done in self._done.items():
            if done:
                facts += done
                self._done[stage] = []
        facts += [*self._arrived, *self._copied]
        self._arrived, self._copied = [], []
        return facts

    def _wake(self, decision: Decision) -> None:
        if decision.wake_at is not None:
            self._ask(max(decision.wake_at, self._agenda.now))

    # -- carrying out --------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:
        for output in decision.outputs:
            self._emit(output)
        for order in decision.orders:
            self._execute(order)
        if decision.orders:
            self._ask(self._agenda.now)
        else:
            self._wake(decision)

    def _execute(self, order: Order) -> None:
        devices, now = self._machine.devices, max(self._agenda.now, self._busy_until)
        match order:
            case RenderPrompt():
                self._prompts.append(self._machine.prompter.render(order))
                self._busy_until = now + self._machine.render_s
            case Handoff() | DropPayload() | DropMedia() | SendMedia():
                self._carry(order, now)
            case CopyBlocks():
                span = devices.copy(order, now)
                self._copies(CopyDone(order.stage, order.ticket, span.seconds), span.end_s)
            case MoveBlocks():
                span = devices.move(order, now)
                self._copies(CopyDone(order.target, order.ticket, span.seconds), span.end_s)
            case _:
                self._run(order, now)

    def _carry(self, order: Handoff | DropPayload | DropMedia | SendMedia, now: float) -> None:
        devices, payloads = self._machine.devices, self._machine.payloads
        match order:
            case Handoff():
                self._busy_until = now + self._machine.handoff_s
                there_s = devices.hand_over(order, self._busy_until)
                if payloads is not None:
                    payloads.handoff(order)
                if devices.are_apart(order.source, order.target):
                    self._arrives(there_s, PayloadArrived(order.target, order.request))
            case SendMedia():
                there_s = devices.send(MEDIUM_TOKENS * len(order.keys), now)
                if payloads is not None:
                    payloads.send_media(order)
                self._arrives(there_s, MediaArrived(order.target, order.keys))
            case DropPayload():
                devices.forget(order.target, order.request)
                if payloads is not None:
                    payloads.drop_payload(order)
            case DropMedia():
                if payloads is not None:
                    payloads.drop_media(order)

    def _arrives(self, there_s: float, fact: PayloadArrived | MediaArrived) -> None:
        def arrive() -> None:
            self._arrived.append(fact)
            self._ask(self._agenda.now)

        self._agenda.at(there_s, Rank.DEVICE, arrive)

    def _run(self, step: Step, now: float) -> None:
        model = self._machine.models[step.stage]
        done = model.run(step)
        speech = model.said if isinstance(model, ReadingVoice) else None
        end_s, seconds = self._machine.devices.run(step, now, speech)
        fact = timed(done, seconds)
        self._steps[step.stage] += 1
        if step.stage in self._machine.inline:
            self._busy_until = end_s
        self._agenda.at(end_s, Rank.DEVICE, lambda: self._step_done(step.stage, fact))

    def _step_done(self, stage: str, fact: Fact) -> None:
        self._done[stage].append(fact)
        self._emitted[stage] += len(getattr(fact, "tokens", ()))
        self._ask(self._agenda.now)

    def _copies(self, fact: CopyDone, end_s: float) -> None:
        def copied() -> None:
            self._copied.append(fact)
            self._machine.devices.forget_copy(fact.stage, fact.ticket)
            self._ask(self._agenda.now)

        self._agenda.at(end_s, Rank.DEVICE, copied)


def _num_steps(decision: Decision) -> int:
    return sum(isinstance(order, ArStep | CodecStep | EncodeStep) for order in decision.orders)
