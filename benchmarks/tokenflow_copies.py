"""For benchmarks/tokenflow.py: devices that carry out less at once than `Devices` do (TokenFlow §5.3)."""

from __future__ import annotations

from antiphon.sim.devices import Devices


class InTurn(Devices):
    """What leaves for the host and what comes back go one after the other, as they were ordered."""

    def _cross(self, lane: tuple[str, str], taken_s: float, now: float) -> float:
        device, _ = lane
        return super()._cross((device, "both ways"), taken_s, now)


class Alone(Devices):
    """So do the steps: each waits for the copies that were ordered before it, and a copy for the steps."""

    def _cross(self, lane: tuple[str, str], taken_s: float, now: float) -> float:
        device, _ = lane
        (place,) = {(unit.process, unit.device) for unit in self._units.values() if unit.device == device}
        self._free_at[place] = max(now, self._free_at.get(place, 0.0)) + taken_s
        return self._free_at[place]
