"""What somebody does on virtual time, as a generator: it yields each time it waits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import inf

from antiphon.people.acts import Wait
from antiphon.sim.events import Agenda, Rank

Waiting = Generator[Wait, None, None]


class Process:
    """Runs a generator on virtual time, from `start` on; `on_end` is called once it is done."""

    def __init__(self, agenda: Agenda, on_end: Callable[[], None] | None = None) -> None:
        self.is_over = False
        self._agenda = agenda
        self._on_end = on_end
        self._doing: Waiting | None = None
        self._wait = Wait()
        self._num_waits = 0

    def start(self, doing: Waiting) -> None:
        self._doing = doing
        self._go_on()

    def ring(self) -> None:
        """Something happened that it may wait for."""
        if self._wait.listens and not self.is_over:
            self._go_on()

    def stop(self) -> None:
        """It does nothing more; what it holds is given up."""
        self.is_over = True
        if self._doing is not None:
            self._doing.close()

    def _go_on(self) -> None:
        assert self._doing is not None
        self._num_waits += 1
        self._wait = Wait()
        try:
            wait = next(self._doing)
        except StopIteration:
            self._end()
            return
        self._wait = wait
        if wait.until_s < inf:
            number = self._num_waits
            self._agenda.at(
                max(wait.until_s, self._agenda.now), Rank.PERSON, lambda: self._time_is_up(number)
            )

    def _time_is_up(self, number: int) -> None:
        if number == self._num_waits and not self.is_over:
            self._go_on()

    def _end(self) -> None:
        self.is_over = True
        if self._on_end is not None:
            self._on_end()
