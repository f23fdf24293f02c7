"""The log of a simulated run: the same events that a load generator writes, on virtual time."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from antiphon.metrics.log import Event
from antiphon.sim.events import Agenda


class Log:
    """Keeps events as they happen. `watch` sees each of them."""

    def __init__(self, agenda: Agenda, watch: Callable[[Event], None] | None = None) -> None:
        self.events: list[Event] = []
        self._agenda = agenda
        self._watch = watch

    def now_s(self) -> float:
        return self._agenda.now

    def write(self, event: Event) -> None:
        self.events.append(event)
        if self._watch is not None:
            self._watch(event)

    def encoded(self) -> bytes:
        """A JSON object a line, as `antiphon bench summarize` reads them."""
        encoder = msgspec.json.Encoder()
        return b"".join(encoder.encode(event) + b"\n" for event in self.events)
