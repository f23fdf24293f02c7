"""A node: every deciding object of one engine, behind one call. Facts in, decision out."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.assembly.devices import Device
from antiphon.assembly.preset import Preset
from antiphon.assembly.units import graph_of, maker, units_of
from antiphon.assembly.watch import Watch
from antiphon.core.config import NodeConfig
from antiphon.core.facts import Fact
from antiphon.core.plans import Decision, Order, Output, Step
from antiphon.core.snapshot import Snapshot
from antiphon.flow.orchestrator import Orchestrator
from antiphon.flow.stages import Stages
from antiphon.interaction.monitor import Monitor
from antiphon.metrics.names import Metric


class Node:
    """Turned by a driver: `decide(facts, now)` folds the facts and says what shall happen next.

    At most one step per device is ordered per call, and none while `depth` + 1 of its steps are in flight.
    """

    def __init__(self, config: NodeConfig, depth: int = 0) -> None:
        self.config = config
        self.graph = graph_of(config)
        preset = Preset(config.preset)
        units = units_of(self.graph, config)
        self.stages = Stages(units, maker(self.graph, config, preset), preset.replica_policy())
        self._orchestrator = Orchestrator(self.graph, self.stages, config.end_inputs, config.call_ids)
        self.monitor = Monitor(self.stages.talker_stage is not None)
        self._watch: Watch | None = None
        self._devices = _devices(self.stages, preset, depth)
        self._next_step = 0

    def decide(self, facts: Iterable[Fact], now: float) -> Decision:
        """Fold `facts`, in order, then plan. `now` in seconds of the host's monotonic clock."""
        for ar in self.stages.ar.values():
            ar.tiers.tell_time(now)
        for fact in facts:
            self.monitor.observe(fact, now)
            self._orchestrator.observe(fact, now)
            if self._watch is not None:
                self._watch.observe(fact)
        orders, outputs, steps = self._planned(now)
        if self._watch is not None:
            for step in steps:
                self._watch.note(step, now)
        copies = [copy for ar in self.stages.ar.values() for copy in ar.drain()]
        return Decision((*orders, *copies, *steps), tuple(outputs))

    @property
    def num_in_flight(self) -> int:
        return sum(scheduler.num_in_flight for scheduler in self.stages.all)

    def watch(self, is_watched: bool) -> None:
        """Begin or end taking note of what `snapshot` shows; decisions are the same either way."""
        if is_watched != self.is_watched:
            self._watch = (
                Watch(self.stages, self.monitor, self._orchestrator.responses) if is_watched else None
            )

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
            Metric.RESPONSES_OPEN: len(self._orchestrator.responses),
        }
        for name, ar in self.stages.ar.items():
            stats[Metric.KV_BLOCKS.of(name)] = ar.kv.num_blocks
            stats[Metric.KV_BLOCKS_FREE.of(name)] = ar.kv.num_free
            stats[Metric.KV_BLOCKS_IDLE.of(name)] = ar.kv.num_idle
            stats[Metric.REQUESTS_WAITING.of(name)] = ar.num_waiting
            stats[Metric.REQUESTS_RUNNING.of(name)] = ar.num_running
            stats[Metric.SURPLUS_TOKENS.of(name)] = ar.num_surplus_tokens
            stats[Metric.PREEMPTIONS.of(name)] = ar.num_preemptions
            stats[Metric.KV_BLOCKS_EVICTED.of(name)] = ar.kv.num_evicted_blocks
            if self.stages.units[name].role == "decode":
                stats[Metric.KV_BLOCKS_MOVED.of(name)] = ar.tiers.num_moved_blocks
            if ar.tiers.host.num_blocks:
                stats[Metric.KV_BLOCKS_HOST.of(name)] = ar.tiers.host.num_used
                stats[Metric.KV_BLOCKS_WRITTEN.of(name)] = ar.tiers.num_written_blocks
                stats[Metric.KV_BLOCKS_RELOADED.of(name)] = ar.tiers.num_fetched_blocks
                stats[Metric.RELOAD_SECONDS.of(name)] = ar.tiers.reload_s
        return stats

    def check_integrity(self) -> None:
        """Every ledger agrees with every other; raises AssertionError otherwise."""
        self.stages.check_integrity()
        self._orchestrator.check_integrity()

    def _planned(self, now: float) -> tuple[list[Order], list[Output], tuple[Step, ...]]:
        """What follows from the facts, and the next steps.

        Evicting for one request can evict its own cached prefix, and then it needs more: room, or media. Plan
        again while a pass evicted blocks, or found media missing, and produced no step: each pass shrinks the
        cache or asks for the media, so this ends.
        """
        orders: list[Order] = []
        outputs: list[Output] = []
        while True:
            ordered, said = self._orchestrator.drain()
            orders += ordered
            outputs += said
            self._hear(said, now)
            evicted = self._num_evicted
            steps = self._next(now)
            is_lacking = any(ar.is_lacking for ar in self.stages.ar.values())
            if steps or (self._num_evicted == evicted and not is_lacking):
                return orders, outputs, steps

    def _hear(self, outputs: Iterable[Output], now: float) -> None:
        for output in outputs:
            self.monitor.hear(output, now)
            if self._watch is not None:
                self._watch.hear(output)

    @property
    def _num_evicted(self) -> int:
        return sum(ar.kv.num_evicted_blocks for ar in self.stages.ar.values())

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


def _devices(stages: Stages, preset: Preset, depth: int) -> tuple[Device, ...]:
    """In the order in which the pipeline meets them."""
    units: dict[tuple[str, str], list[str]] = {}
    for name in (*stages.encoders, *stages.ar, *stages.codec):
        unit = stages.units[name]
        units.setdefault((unit.process, unit.device), []).append(name)
    return tuple(Device(stages, tuple(names), preset.device_policy(), depth) for names in units.values())
