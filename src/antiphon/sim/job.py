"""Plays a job: calls in a session of its own, each sent when the calls it waits for are over."""

from __future__ import annotations

from antiphon.core.conversation import TextPart
from antiphon.core.errors import ConfigError
from antiphon.metrics.log import TurnEnded, TurnStarted
from antiphon.sim.ear import GaveUp
from antiphon.sim.process import Doing, Process, Wait
from antiphon.sim.seat import Seat
from antiphon.sim.sessions import Asked
from antiphon.workload.script import JobCall, JobScript


class Job:
    """One job. A session answers one call at a time: calls that are ready together queue."""

    def __init__(self, script: JobScript, seat: Seat) -> None:
        self._script = script
        self._seat = seat
        self._ear = seat.ear
        self._log = seat.log
        self._ready: list[int] = []
        """Calls that could be sent, in the order in which they became so."""
        self._answered: set[int] = set()

    def play(self) -> Doing:
        """All calls. Raises GaveUp, or ConfigError for calls that wait for later ones."""
        for number, call in enumerate(self._script.calls):
            if any(not 0 <= index < number for index in call.after):
                raise ConfigError(f"job {self._script.name}: call {number} may only wait for calls before it")
        waiting: dict[int, Process] = {}
        for number, call in enumerate(self._script.calls):
            if not call.after:
                waiting[number] = self._seat.beside(self._tool(number, call))
        while len(self._answered) < len(self._script.calls):
            if not self._ready:
                yield Wait(listens=True)
                continue
            yield from self._call(self._ready.pop(0))
            self._begin_others(waiting)

    def _begin_others(self, waiting: dict[int, Process]) -> None:
        for number, call in enumerate(self._script.calls):
            if number not in waiting and self._answered.issuperset(call.after):
                waiting[number] = self._seat.beside(self._tool(number, call))

    def _tool(self, number: int, call: JobCall) -> Doing:
        """The time before a call, in which a tool runs."""
        yield Wait(self._log.now_s() + call.wait_s)
        self._ready.append(number)

    def _call(self, number: int) -> Doing:
        call, session = self._script.calls[number], self._script.name
        self._ear.begin(number, "text")
        self._log.write(TurnStarted(t_s=self._log.now_s(), session=session, turn=number, modality="text"))
        server, ask = self._seat.server, f"ask-{number}"
        self._seat.up.send(server.add, TextPart(call.prompt))
        asked = Asked(ask, False, call.max_output_tokens, self._script.tier)
        self._seat.up.send(server.create, asked)
        now = self._log.now_s()
        self._log.write(TurnEnded(t_s=now, session=session, turn=number, speech_end_s=now))
        yield from self._wait_for_answer(ask)
        self._answered.add(number)

    def _wait_for_answer(self, ask: str) -> Doing:
        ear, patience_s = self._ear, self._seat.patience_s
        asked_s = self._log.now_s()
        while not (ask in ear.refusals or any(reply.is_done for reply in ear.answers())):
            last_s = max(asked_s, ear.last_event_s)
            if self._log.now_s() >= last_s + patience_s:
                raise GaveUp(f"no sign of the answer for {patience_s:g} s")
            yield Wait(last_s + patience_s, listens=True)
