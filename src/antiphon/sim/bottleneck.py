"""Where a run was short: how busy its devices were, who waited, and how full the KV was, from its samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon.core.config import Unit
from antiphon.metrics.log import Event, ServerSampled
from antiphon.metrics.names import Metric, parse_key
from antiphon.metrics.samples import increases, utilisation


@dataclass(frozen=True, slots=True)
class StageLoad:
    """One stage, all replicas together.

    busy_share     device seconds per second and replica
    waiting        requests without a row: the mean over the run's samples
    kv_full_share  the highest share of KV blocks that active requests held; 0 for a stage without KV
    preemptions    times that a request lost its row
    """

    stage: str
    busy_share: float
    waiting: float
    kv_full_share: float
    preemptions: float


def stage_loads(events: Sequence[Event], units: Sequence[Unit]) -> tuple[StageLoad, ...]:
    """In pipeline order."""
    samples = [event for event in events if isinstance(event, ServerSampled)]
    busy, lost = utilisation(samples), increases(samples, Metric.PREEMPTIONS)
    loads: list[StageLoad] = []
    for stage in dict.fromkeys(unit.stage for unit in units):
        names = [unit.name for unit in units if unit.stage == stage]
        waiting = [_total(sample.values, Metric.REQUESTS_WAITING, names) for sample in samples]
        full = [_kv_full_share(sample.values, name) for sample in samples for name in names]
        share = sum(busy.get(name, 0.0) for name in names) / len(names)
        mean_waiting = sum(waiting) / max(len(waiting), 1)
        num_lost = sum(lost.get(name, 0.0) for name in names)
        loads.append(StageLoad(stage, share, mean_waiting, max(full, default=0.0), num_lost))
    return tuple(loads)


def device_loads(events: Sequence[Event], units: Sequence[Unit]) -> dict[str, float]:
    """Share of the time that each device was in steps of its units."""
    busy = utilisation([event for event in events if isinstance(event, ServerSampled)])
    loads: dict[str, float] = {}
    for unit in units:
        device = device_name(unit)
        loads[device] = loads.get(device, 0.0) + busy.get(unit.name, 0.0)
    return loads


def device_name(unit: Unit) -> str:
    """Unique among the processes; "device" where all is on one."""
    return unit.device or unit.process or "device"


def bottleneck(loads: Sequence[StageLoad], devices: Mapping[str, float], units: Sequence[Unit]) -> str:
    """In words: memory, if requests lost their rows to it; else the device that was busiest, or rows."""
    short = max(loads, key=lambda load: load.preemptions)
    if short.preemptions:
        return f"KV of the {short.stage}: {short.preemptions:.0f} requests lost their rows to others"
    queued = max(loads, key=lambda load: load.waiting)
    serving = [devices[device_name(unit)] for unit in units if unit.stage == queued.stage]
    if devices.get(DECIDING, 0.0) >= SATURATED_SHARE:
        return (
            f"time to decide: one process does it for all devices, and is busy {devices[DECIDING]:.0%} of it"
        )
    if queued.waiting >= 1 and max(serving) < SATURATED_SHARE:
        return f"rows of the {queued.stage}: {queued.waiting:.1f} requests wait for one on average"
    device = max(devices, key=lambda name: devices[name])
    names = ", ".join(unit.name for unit in units if device_name(unit) == device)
    return f"time on device {device} ({names}): busy {devices[device]:.0%} of it"


DECIDING = "deciding"
"""The process that decides, among the devices."""
SATURATED_SHARE = 0.9
"""A device that is busy for so much of the time makes requests wait whatever rows there are."""


def _total(values: Mapping[str, float], metric: Metric, units: Sequence[str]) -> float:
    total = 0.0
    for key, value in values.items():
        name, labels = parse_key(key)
        if name == metric and labels.get("stage") in units:
            total += value
    return total


def _kv_full_share(values: Mapping[str, float], unit: str) -> float:
    blocks = _total(values, Metric.KV_BLOCKS, [unit])
    free = _total(values, Metric.KV_BLOCKS_FREE, [unit]) + _total(values, Metric.KV_BLOCKS_IDLE, [unit])
    return (blocks - free) / blocks if blocks else 0.0
