"""The network between a client and the server: messages arrive later, in the order they were sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antiphon.core.rng import stream
from antiphon.sim.events import Agenda, Rank


@dataclass(frozen=True, slots=True)
class Network:
    """One way, either way: `delay_s`, and exponential jitter of this mean on top."""

    delay_s: float = 0.02
    jitter_s: float = 0.0


class Link:
    """One direction of one client's connection. Nothing arrives any more once it is cut."""

    def __init__(self, agenda: Agenda, network: Network, seed: int, *names: str) -> None:
        self._agenda = agenda
        self._network = network
        self._rng = stream(seed, "link", *names) if network.jitter_s else None
        self._last_s = 0.0
        self._is_cut = False

    def send(self, action: Callable[..., Any], *told: Any) -> None:
        """Have this done at the other end."""
        delay_s = self._network.delay_s
        if self._rng is not None:
            delay_s += float(self._rng.exponential(self._network.jitter_s))
        self._last_s = max(self._last_s, self._agenda.now + delay_s)
        self._agenda.at(self._last_s, Rank.LINK, lambda: self._arrive(action, told))

    def cut(self) -> None:
        self._is_cut = True

    def _arrive(self, action: Callable[..., Any], told: tuple[Any, ...]) -> None:
        if not self._is_cut:
            action(*told)
