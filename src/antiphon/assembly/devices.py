"""Devices of a node, as one process has them: each runs one step at a time, of one of its units there."""

from __future__ import annotations

from antiphon.core.plans import Step
from antiphon.flow.stages import Stages
from antiphon.policy.base import DevicePolicy


class Device:
    """Owner of whose turn it is among a process's units on one device. `depth` + 1 of their steps may be in
    flight."""

    def __init__(self, stages: Stages, units: tuple[str, ...], policy: DevicePolicy, depth: int) -> None:
        """units: names, in pipeline order."""
        self._stages = stages
        self._units = units
        self._policy = policy
        self._depth = depth
        self._last: int | None = None

    def plan(self, step: int, now: float) -> Step | None:
        """The next step, numbered so: of the unit that the policy prefers, or of the next that can really
        run. None if the device is busy, or nothing can run."""
        schedulers = self._stages.these(self._units)
        num_in_flight = 0
        for scheduler in schedulers:
            num_in_flight += scheduler.num_in_flight
        if num_in_flight > self._depth:
            return None
        ready = [index for index, scheduler in enumerate(schedulers) if scheduler.has_work]
        while ready:
            index = self._policy.decide(ready, self._last, now)
            planned = schedulers[index].plan(step, now)
            if planned is not None:
                self._last = index
                return planned
            ready.remove(index)
        return None
