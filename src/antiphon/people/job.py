"""A job: calls in a session of its own, each sent when the calls it waits for are over."""

from __future__ import annotations

from antiphon.core.errors import ConfigError
from antiphon.metrics.log import TurnEnded, TurnStarted
from antiphon.people.acts import Doing, Helper, Wait
from antiphon.people.downlink import GaveUp
from antiphon.people.seat import Seat
from antiphon.people.uplink import ask, ask_id, user_item
from antiphon.workload.script import JobCall, JobScript


class Job:
    """One job. A session answers one call at a time: calls that are ready together queue."""

    def __init__(self, script: JobScript, seat: Seat) -> None:
        self._script = script
        self._seat = seat
        self._downlink = seat.downlink
        self._log = seat.log
        self._ready: list[int] = []
        """Calls that could be sent, in the order in which they became so."""
        self._answered: set[int] = set()
        self._tools: dict[int, Helper] = {}
        """By call: the tool that runs before it."""

    def play(self) -> Doing:
        """All calls. Raises GaveUp, or ConfigError for calls that wait for later ones."""
        for number, call in enumerate(self._script.calls):
            if any(not 0 <= index < number for index in call.after):
                raise ConfigError(f"job {self._script.name}: call {number} may only wait for calls before it")
        self._begin_tools()
        while len(self._answered) < len(self._script.calls):
            if not self._ready:
                yield Wait(listens=True)
                continue
            yield from self._call(self._ready.pop(0))
            self._begin_tools()

    def _begin_tools(self) -> None:
        for number, call in enumerate(self._script.calls):
            if number not in self._tools and self._answered.issuperset(call.after):
                self._tools[number] = self._seat.beside(self._tool(number, call))

    def _tool(self, number: int, call: JobCall) -> Doing:
        """The time before a call, in which a tool runs."""
        yield Wait(self._log.now_s() + call.wait_s)
        self._ready.append(number)

    def _call(self, number: int) -> Doing:
        call, session = self._script.calls[number], self._script.name
        self._downlink.begin(number, "text")
        self._log.write(TurnStarted(t_s=self._log.now_s(), session=session, turn=number, modality="text"))
        yield user_item([{"type": "input_text", "text": call.prompt}])
        yield ask(number, {"output_modalities": ["text"], "max_output_tokens": call.max_output_tokens})
        now = self._log.now_s()
        self._log.write(TurnEnded(t_s=now, session=session, turn=number, speech_end_s=now))
        yield from self._wait_for_answer(ask_id(number))
        self._answered.add(number)

    def _wait_for_answer(self, ask_id: str) -> Doing:
        downlink, patience_s = self._downlink, self._seat.patience_s
        asked_s = self._log.now_s()
        while not (ask_id in downlink.refused or any(reply.is_done for reply in downlink.answers())):
            until_s = max(asked_s, downlink.last_event_s) + patience_s
            if self._log.now_s() >= until_s:
                raise GaveUp(f"no sign of the answer for {patience_s:g} s")
            yield Wait(until_s, listens=True)
