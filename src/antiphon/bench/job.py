"""Plays a job: calls in a session of its own, each sent when the calls it waits for are over."""

from __future__ import annotations

import asyncio

from antiphon.bench.ear import Ear, GaveUp
from antiphon.bench.logfile import LogWriter
from antiphon.bench.mouth import CONFIGURE_S, ask_id
from antiphon.bench.person import end
from antiphon.bench.target import Pace
from antiphon.bench.wire_client import WireClient
from antiphon.core.errors import ConfigError
from antiphon.metrics.log import TurnEnded, TurnStarted
from antiphon.workload.script import JobCall, JobScript


class Job:
    """One job. A realtime session answers one call at a time: calls that are ready together queue."""

    def __init__(self, script: JobScript, pace: Pace, log: LogWriter) -> None:
        self._script = script
        self._patience_s = pace.patience_s
        self._log = log
        self._ear = Ear(script.name, log, None)
        self._is_free = asyncio.Lock()

    async def play(self, client: WireClient) -> None:
        """All calls. Raises ConnectionLost, GaveUp or ConfigError."""
        _check(self._script)
        listening = asyncio.create_task(self._ear.listen(client))
        calls: list[asyncio.Task[None]] = []
        try:
            await self._introduce(client)
            for number, call in enumerate(self._script.calls):
                before = [calls[index] for index in call.after]
                calls.append(asyncio.create_task(self._call(client, number, call, before)))
            await asyncio.gather(*calls)
        finally:
            await end([listening, *calls])

    async def _introduce(self, client: WireClient) -> None:
        session = {"type": "realtime", "output_modalities": ["text"]}
        if self._script.instructions:
            session["instructions"] = self._script.instructions
        await client.send({"type": "session.update", "session": session})
        deadline_s = self._log.now_s() + CONFIGURE_S
        if not await self._ear.until(lambda: self._ear.num_configs > 1, deadline_s):
            raise GaveUp(f"no session.updated within {CONFIGURE_S:g} s. {self._ear.last_error}".strip())

    async def _call(
        self, client: WireClient, number: int, call: JobCall, before: list[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before)
        await asyncio.sleep(call.wait_s)
        async with self._is_free:
            await self._ask(client, number, call)
            await self._wait_for_answer(number)

    async def _ask(self, client: WireClient, number: int, call: JobCall) -> None:
        session = self._script.name
        self._ear.begin(number, "text")
        self._log.write(TurnStarted(t_s=self._log.now_s(), session=session, turn=number, modality="text"))
        content = [{"type": "input_text", "text": call.prompt}]
        item = {"type": "message", "role": "user", "content": content}
        await client.send({"type": "conversation.item.create", "item": item})
        options = {"output_modalities": ["text"], "max_output_tokens": call.max_output_tokens}
        await client.send({"type": "response.create", "event_id": ask_id(number), "response": options})
        now = self._log.now_s()
        self._log.write(TurnEnded(t_s=now, session=session, turn=number, speech_end_s=now))

    async def _wait_for_answer(self, number: int) -> None:
        ear = self._ear

        def is_answered() -> bool:
            return ask_id(number) in ear.refused or any(reply.is_done for reply in ear.answers())

        while True:
            last_s = max(ear.last_event_s, self._log.now_s())
            rings = ear.num_events
            if await ear.until(lambda: is_answered() or ear.num_events > rings, last_s + self._patience_s):  # noqa: B023
                if is_answered():
                    return
            else:
                raise GaveUp(f"no sign of the answer for {self._patience_s:g} s")


def _check(script: JobScript) -> None:
    for number, call in enumerate(script.calls):
        if any(not 0 <= index < number for index in call.after):
            raise ConfigError(f"job {script.name}: call {number} may only wait for calls before it")
