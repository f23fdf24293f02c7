"""A node: every deciding object of one engine, behind one call. Facts in, decision out."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.assembly.preset import Preset
from antiphon.assembly.watch import Watch
from antiphon.core.config import EncoderConfig, NodeConfig
from antiphon.core.facts import Fact
from antiphon.core.graph import StageGraph, StageKind
from antiphon.core.plans import Decision, Order, Step
from antiphon.core.snapshot import Snapshot
from antiphon.flow.orchestrator import Orchestrator
from antiphon.flow.stages import Stages
from antiphon.graphs import find_graph
from antiphon.interaction.monitor import Monitor
from antiphon.metrics.names import Metric
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import CodecScheduler
from antiphon.stage.encode import EncodeScheduler


class Node:
    """Turned by a driver: `decide(facts, now)` folds the facts and says what shall happen next.

    At most one step is ordered per call, and none while `depth` + 1 steps are in flight.
    """

    def __init__(self, config: NodeConfig, depth: int = 0) -> None:
        self.config = config
        self.graph = find_graph(config.graph)
        self._preset = Preset(config.preset)
        self.stages = _schedulers(self.graph, config, self._preset)
        self._orchestrator = Orchestrator(self.graph, self.stages, config.end_inputs, config.call_ids)
        self.monitor = Monitor(self.stages.speaker is not None)
        self._watch: Watch | None = None
        self._device = self._preset.device_policy()
        self._depth = depth
        self._last_stage: int | None = None
        self._next_step = 0

    def decide(self, facts: Iterable[Fact], now: float) -> Decision:
        """Fold `facts`, in order, then plan. `now` in seconds of the host's monotonic clock."""
        for fact in facts:
            self.monitor.observe(fact, now)
            self._orchestrator.observe(fact, now)
            if self._watch is not None:
                self._watch.observe(fact)
        orders, outputs = self._orchestrator.drain()
        for output in outputs:
            self.monitor.hear(output, now)
            if self._watch is not None:
                self._watch.hear(output)
        step = self._next(now)
        if self._watch is not None and step is not None:
            self._watch.note(step, now)
        steps: tuple[Order, ...] = (step,) if step is not None else ()
        return Decision((*orders, *steps), outputs)

    @property
    def num_in_flight(self) -> int:
        return sum(scheduler.num_in_flight for scheduler in self.stages.all)

    def watch(self, is_watched: bool) -> None:
        """Begin or end taking note of what `snapshot` shows; decisions are the same either way."""
        if is_watched != self.is_watched:
            self._watch = Watch(self.stages, self.monitor, self._orchestrator.turns) if is_watched else None

    @property
    def is_watched(self) -> bool:
        return self._watch is not None

    def snapshot(self, now: float) -> Snapshot:
        """What people see, while the node is watched."""
        assert self._watch is not None, "snapshot needs a node that is watched"
        return self._watch.snapshot(now)

    def stats(self) -> dict[str, float]:
        """Gauges and counters of the deciding half, by metric name."""
        stats: dict[str, float] = {
            Metric.SESSIONS: self._orchestrator.num_sessions,
            Metric.RESPONSES_OPEN: self._orchestrator.num_turns,
        }
        for name, ar in self.stages.ar.items():
            stats[Metric.KV_BLOCKS.of(name)] = ar.kv.num_blocks
            stats[Metric.KV_BLOCKS_FREE.of(name)] = ar.kv.num_free
            stats[Metric.KV_BLOCKS_IDLE.of(name)] = ar.kv.num_idle
            stats[Metric.REQUESTS_WAITING.of(name)] = ar.num_waiting
            stats[Metric.REQUESTS_RUNNING.of(name)] = ar.num_running
            stats[Metric.SURPLUS_TOKENS.of(name)] = ar.num_surplus_tokens
            stats[Metric.PREEMPTIONS.of(name)] = ar.num_preemptions
        return stats

    def check_integrity(self) -> None:
        """Every ledger agrees with every other; raises AssertionError otherwise."""
        self.stages.check_integrity()
        self._orchestrator.check_integrity()

    def _next(self, now: float) -> Step | None:
        """The stage that the device policy prefers, or the next one that can really run."""
        if self.num_in_flight > self._depth:
            return None
        schedulers = self.stages.all
        ready = [index for index, scheduler in enumerate(schedulers) if scheduler.has_work]
        while ready:
            index = self._device.decide(ready, self._last_stage, now)
            step = schedulers[index].plan(self._next_step, now)
            if step is not None:
                self._next_step += 1
                self._last_stage = index
                return step
            ready.remove(index)
        return None


def _schedulers(graph: StageGraph, config: NodeConfig, preset: Preset) -> Stages:
    """One scheduler per stage of the graph, except those that the checkpoint lacks (it has no voice)."""
    encode = EncodeScheduler("", EncoderConfig())  # of a graph without encoders: nobody wants media
    ar: dict[str, ArScheduler] = {}
    codec: dict[str, CodecScheduler] = {}
    for stage in graph.stages:
        if stage.kind is StageKind.ENCODER:
            encode = EncodeScheduler(stage.name, config.encoder[stage.name])
        elif stage.name in config.ar:
            ar[stage.name] = ArScheduler(stage, config.ar[stage.name], preset.step_policy())
        elif stage.name in config.codec:
            edge = next(edge for edge in graph.edges if edge.target == stage.name)
            codec[stage.name] = CodecScheduler(stage.name, config.codec[stage.name], edge)
    return Stages(encode, ar, codec)
