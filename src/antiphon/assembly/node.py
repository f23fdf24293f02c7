"""A node: every deciding object of one engine, behind one call. Facts in, decision out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, get_args

import msgspec

from antiphon.assembly.devices import Device
from antiphon.assembly.guard import Guard
from antiphon.assembly.idle import Patience
from antiphon.assembly.preset import Preset, resolved
from antiphon.assembly.times import NodeTimes
from antiphon.assembly.units import graph_of, maker, units_of
from antiphon.assembly.watch import Watch
from antiphon.assembly.watched import AnswerListener
from antiphon.core.config import NodeConfig
from antiphon.core.facts import Fact, PersonFact, PolicySuspended, TurnAdvised
from antiphon.core.plans import AdvisoryAnswered, Decision, Order, ResponseOutput, Step, TurnAnswer
from antiphon.core.snapshot import Snapshot
from antiphon.flow.orchestrator import Orchestrator
from antiphon.flow.reply_route import CallIds
from antiphon.flow.response import ResponseState
from antiphon.flow.stages import Scheduler, Stages
from antiphon.flow.words import Words
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import NextUseTimes
from antiphon.kv.transfers import Purpose
from antiphon.metrics.names import Metric
from antiphon.policy.base import soonest
from antiphon.stage.ar import ArScheduler
from antiphon.stage.kv_asks import KvMoved

HOST_COPIES: tuple[Purpose, ...] = ("store", "load", "preload")
PERSON_FACTS = frozenset(get_args(PersonFact))


class Observer(AnswerListener, Protocol):
    """Hears what policies say and where KV goes, call by call. It changes nothing."""

    def moved(self, moved: KvMoved) -> None: ...


class Node:
    """Turned by a driver: `decide(facts, now)` folds the facts and says what shall happen next.

    At most one step per device is ordered per call, and none while `depth` + 1 of its steps are in flight.
    """

    def __init__(
        self,
        config: NodeConfig,
        depth: int = 0,
        stopwatch: Callable[[], float] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """stopwatch: a clock by which policies that are slow are told; None: none is. Raises ConfigError."""
        self.config = resolved(config)
        self.graph = graph_of(config)
        self.guard = Guard(stopwatch, observer)
        preset = Preset(self.config.policies, self.guard)
        units = units_of(self.graph, config)
        makes_reply = [name for name in self.graph.reply_stages if name in (*config.ar, *config.codec)]
        self.frontier = Frontier(len(makes_reply), self.graph.frame_s)
        speaks = any(self.graph.stage(name).speaks for name in (*config.ar, *config.codec))
        self.monitor = Monitor(self.frontier, speaks)
        people = self.monitor, self.frontier
        self.next_use = NextUseTimes(*people)
        self._times = NodeTimes(self.config, units)
        make = maker(self.graph, config, preset, self.frontier, self.next_use, self._times)
        self._observer = observer
        self.stages = Stages(
            units, lambda unit: self._told(make(unit)), preset.replica_policy(), self.graph.transcriber
        )
        call_ids = CallIds(config.call_ids, config.json_call_ids, config.blank_ids)
        self._orchestrator = Orchestrator(
            self.graph, self.stages, people, config.end_inputs, call_ids, config.transcript_prompt
        )
        self._places = {unit.name: (unit.process, unit.device) for unit in units}
        self._watch: Watch | None = None
        self._devices = _devices(self.stages, preset, depth, self._orchestrator.words)
        self._patience = Patience(self.guard)
        self._next_step = 0
        self._latest: dict[tuple[str, str], tuple[Step, float]] = {}
        """The step that was ordered last on each device, and when it begins there; while there is a host."""
        self._has_host = any(one.host_blocks for one in self.config.ar.values())

    def decide(self, facts: Iterable[Fact], now: float) -> Decision:
        """Fold `facts`, in order, then plan. `now` in seconds of the host's monotonic clock."""
        self._times.tell_time(now)
        for scheduler in self.stages.all:
            scheduler.tell_time(now)
        advised: list[tuple[TurnAdvised, TurnAnswer]] = []
        for fact in facts:
            if isinstance(fact, PolicySuspended):
                self.guard.suspend(fact)
                self.stages.reopen()
                continue
            if type(fact) in PERSON_FACTS:
                self.monitor.observe(fact, now)
                self.next_use.observe(fact, now)
            self._orchestrator.observe(fact, now)
            self._times.observe(fact)
            if isinstance(fact, TurnAdvised):
                advised.append((fact, self._orchestrator.advise(fact, now) if fact.is_likely else ""))
            if self._watch is not None:
                self._watch.observe(fact, now)
        for name, ar in self.stages.ar.items():
            if ar.is_churning:
                self.guard.churns(name)
                self.stages.reopen()
        self._patience.begin(now)
        orders, outputs, steps = self._planned(now)
        self.guard.go_on()
        self._write(steps, now)
        if self._watch is not None:
            self._watch.planned(steps, now)
        copies = [copy for ar in self.stages.ar.values() for copy in ar.drain()]
        wake_at = self._patience.wake_at(self._wake_at)
        told = (*outputs, *self._orchestrator.heard(), *self._answers(advised))
        return Decision((*orders, *copies, *steps), told, wake_at)

    @property
    def _wake_at(self) -> float | None:
        """When a policy wishes to be asked again."""
        kv = (ar.kv_wakes_at for ar in self.stages.ar.values())
        return soonest(*kv, *(one.wake_at for one in self._devices))

    @property
    def responses(self) -> Mapping[int, ResponseState]:
        """Open responses by request, to be read only."""
        return self._orchestrator.responses

    @property
    def num_in_flight(self) -> int:
        return sum(scheduler.num_in_flight for scheduler in self.stages.all)

    def watch(self, is_watched: bool) -> None:
        """Begin or end taking note of what `snapshot` shows; decisions are the same either way. A node that
        was made with an observer cannot be watched."""
        if is_watched == self.is_watched:
            return
        assert self.is_watched or self._observer is None, "a node that has an observer is not watched as well"
        people = self.monitor, self.frontier, self.next_use
        flow = self._orchestrator
        self._watch = Watch(self.stages, people, flow.responses, flow.requests) if is_watched else None
        self._observer = self.guard.listener = None if self._watch is None else self._watch.reasons
        for ar in self.stages.ar.values():
            self._told(ar)

    @property
    def is_watched(self) -> bool:
        return self._watch is not None

    def snapshot(self, now: float) -> Snapshot:
        """What people see, while the node is watched."""
        assert self._watch is not None, "snapshot needs a node that is watched"
        return msgspec.structs.replace(self._watch.snapshot(now), policies=self.guard.shown())

    def stats(self) -> dict[str, float]:
        """Gauges and counters of the deciding half, by metric name."""
        stats: dict[str, float] = {
            Metric.SESSIONS: self._orchestrator.num_sessions,
            Metric.RESPONSES_OPEN: len(self._orchestrator.responses),
        }
        for name, ar in self.stages.ar.items():
            stats[Metric.KV_BLOCKS.of(name)] = ar.kv.num_blocks
            stats[Metric.KV_BLOCKS_FREE.of(name)] = ar.kv.blocks.num_free
            stats[Metric.KV_BLOCKS_CACHED.of(name)] = ar.kv.blocks.num_cache
            stats[Metric.KV_BLOCKS_IDLE.of(name)] = ar.kv.blocks.num_idle
            stats[Metric.REQUESTS_WAITING.of(name)] = ar.num_waiting
            stats[Metric.REQUESTS_RUNNING.of(name)] = ar.num_running
            stats[Metric.SURPLUS_TOKENS.of(name)] = ar.num_surplus_tokens
            stats[Metric.PREEMPTIONS.of(name)] = ar.num_preemptions
            stats[Metric.STEPS_CUT.of(name)] = ar.steps.num_cut
            stats[Metric.STEPS_UNTIMED.of(name)] = ar.steps.num_untimed
            stats[Metric.KV_BLOCKS_EVICTED.of(name)] = ar.kv.resting.num_evicted_blocks
            if self.stages.units[name].role == "decode":
                stats[Metric.KV_BLOCKS_MOVED.of(name)] = ar.tiers.leases.num_moved_blocks
                stats[Metric.KV_COPIES_FAILED.of_copy(name, "move")] = ar.tiers.num_failed_blocks["move"]
            if ar.tiers.host.num_blocks:
                stats[Metric.KV_BLOCKS_HOST.of(name)] = ar.tiers.host.num_used
                stats[Metric.KV_BLOCKS_WRITTEN.of(name)] = ar.tiers.writes.num_written_blocks
                stats[Metric.KV_BLOCKS_RELOADED.of(name)] = ar.tiers.fetches.num_fetched_blocks
                stats[Metric.KV_BLOCKS_SWAPPED.of(name)] = ar.tiers.room.num_swapped_blocks
                for purpose in HOST_COPIES:
                    stats[Metric.KV_COPIES_FAILED.of_copy(name, purpose)] = ar.tiers.num_failed_blocks[
                        purpose
                    ]
                stats[Metric.RELOAD_SECONDS.of(name)] = ar.tiers.reload_s
                stats[Metric.RESUME_SECONDS.of(name)] = ar.tiers.resume_s
        for name, prepared in self._orchestrator.prepared.items():
            stats[Metric.PREPARED_TOKENS.of(name)] = prepared.tokens
            stats[Metric.PREPARED_USED.of(name)] = prepared.used
            stats[Metric.PREPARED_WASTED.of(name)] = prepared.wasted
        for key, count in self.guard.events.items():
            stats[Metric.POLICY.of_policy(*key)] = count
        for one in self.guard.shown():
            for decision in one.decisions:
                labels = {"unit": one.unit, "decision": decision, "policy": one.policy}
                stats[Metric.POLICY_INFO.labelled(labels)] = float(
                    decision not in (*one.suspended, *one.observed)
                )
        return stats

    def check_integrity(self) -> None:
        """Every ledger agrees with every other; raises AssertionError otherwise."""
        self.stages.check_integrity()
        self._orchestrator.check_integrity()
        self.next_use.check_integrity()

    def _planned(self, now: float) -> tuple[list[Order], list[ResponseOutput], tuple[Step, ...]]:
        """What follows from the facts, and the next steps.

        Evicting for one request can evict its own cached prefix, and then it needs more: room, or media; and
        where a row was given up, KV may be fetched into its place. Plan again while a pass evicted blocks,
        preempted, or found media missing, and produced no step: each pass shrinks the cache, frees a row or
        asks for the media, so this ends.
        """
        orders: list[Order] = []
        outputs: list[ResponseOutput] = []
        while True:
            ordered, said = self._orchestrator.drain(now)
            orders += ordered
            outputs += said
            if said:
                self._hear(said, now)
            given_up = self._num_given_up
            steps = self._next(now)
            if steps or (self._num_given_up == given_up and not self._is_lacking):
                late = self._patience.steps(self._devices, steps, self._next_step, now)
                self._next_step += len(late)
                steps = (*steps, *late)
                return orders, outputs, steps or self._unstalled(now)

    def _unstalled(self, now: float) -> tuple[Step, ...]:
        """Steps as the baseline chooses them, where something could run and nothing that is under way, nor a
        policy's wish, would ever have it asked again."""
        if any(one.num_in_flight for one in self.stages.all) or self._wake_at is not None:
            return ()
        is_copying = any(ar.tiers.num_in_flight for ar in self.stages.ar.values())
        if is_copying or self._orchestrator.is_sending_media:
            return ()
        stalled = [one for one in self.stages.all if one.has_work and one.choose(now)[0].could_run.any()]
        at_fault = [one for one in stalled if self.guard.stalled(one.name)]
        if not at_fault:
            return ()
        for scheduler in at_fault:
            scheduler.tell_time(now)
        self.stages.reopen()
        steps = self._next(now)
        self.guard.go_on()
        return steps

    def _told(self, scheduler: Scheduler) -> Scheduler:
        """Connects the unit's KV moves to the observer."""
        if isinstance(scheduler, ArScheduler):
            scheduler.tiers.asks.watch = None if self._observer is None else self._observer.moved
        return scheduler

    def _write(self, steps: tuple[Step, ...], now: float) -> None:
        """Write what will have to leave the devices, beside the steps that run there."""
        for step in steps:
            self._times.ordered(step)
        if not self._has_host:
            return
        ordered_on = {self._places[step.stage] for step in steps}
        in_flight = Counter[tuple[str, str]]()
        for one in self.stages.all:
            in_flight[self._places[one.name]] += one.num_in_flight
        for step in steps:
            place = self._places[step.stage]
            is_behind = in_flight[place] > 1 and place in self._latest
            ahead_s = self._left_s(*self._latest[place], now) if is_behind else 0.0
            self._latest[place] = step, now + ahead_s
        for name, ar in self.stages.ar.items():
            place = self._places[name]
            left_s = partial(self._left_s, *self._latest[place], now) if in_flight[place] else None
            ar.write(left_s, is_new=place in ordered_on)

    def _left_s(self, step: Step, begins_at: float, now: float) -> float:
        """Seconds until the step is done, which others may be before; nan: not known."""
        return max(self._times.step_s(step) - (now - begins_at), 0.0)

    def _hear(self, outputs: Sequence[ResponseOutput], now: float) -> None:
        self.monitor.hear(outputs, now)
        self.next_use.hear(outputs, now)
        if self._watch is not None:
            for output in outputs:
                self._watch.hear(output)

    def _answers(self, advised: Iterable[tuple[TurnAdvised, TurnAnswer]]) -> Iterator[AdvisoryAnswered]:
        """What is there and what is brought, once this call's copies are ordered. Sessions that are not open
        get no answer."""
        for fact, turn in advised:
            if fact.session in self.monitor.sessions:
                stages = self.stages.prepared(fact.session)
                yield AdvisoryAnswered(fact.session, fact.prepare, stages, turn, fact.is_likely)

    @property
    def _is_lacking(self) -> bool:
        """Was media found missing that was not asked for yet?"""
        return any(ar.waiting.is_lacking for ar in self.stages.ar.values())

    @property
    def _num_given_up(self) -> int:
        """Blocks and rows."""
        return sum(ar.kv.resting.num_evicted_blocks + ar.num_preemptions for ar in self.stages.ar.values())

    def _next(self, now: float) -> tuple[Step, ...]:
        """A step of every device that can take one. KV is looked after first, whether a device is busy or
        not."""
        for ar in self.stages.ar.values():
            ar.tend(now)
        steps: list[Step] = []
        for device in self._devices:
            step = device.plan(self._next_step, now)
            if step is not None:
                self._next_step += 1
                steps.append(step)
        return tuple(steps)


def _devices(stages: Stages, preset: Preset, depth: int, words: Words) -> tuple[Device, ...]:
    """In the order in which the pipeline meets them."""
    units: dict[tuple[str, str], list[str]] = {}
    for name in (*stages.encoders, *stages.ar, *stages.codec):
        unit = stages.units[name]
        units.setdefault((unit.process, unit.device), []).append(name)
    return tuple(
        Device(stages, tuple(names), preset.device_policy("+".join(names)), depth, words)
        for names in units.values()
    )
