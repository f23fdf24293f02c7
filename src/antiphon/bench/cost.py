"""What the load generator itself costs: CPU time, and how late its event loop runs."""

from __future__ import annotations

import asyncio
import time

TICK_S = 0.02


class LoopLag:
    """Wakes every 20 ms and notes by how much too late."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lags_s.append(max(0.0, time.monotonic() - due_s))

    def take(self) -> list[float]:
        """Every lag since the last call, in seconds."""
        lags_s, self._lags_s = self._lags_s, []
        return lags_s
