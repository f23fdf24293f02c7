"""One session against a server: the generators of a person or a job, run with asyncio over its connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from antiphon.bench.logfile import LogWriter
from antiphon.bench.microphone import Microphone
from antiphon.bench.pictures import data_url, frame_urls
from antiphon.bench.target import DrivenServer, Pace
from antiphon.bench.voice import Voices, silence
from antiphon.bench.wire_client import WireClient
from antiphon.people.acks import EXTENSION, acknowledge
from antiphon.people.acts import Act, Doing, Say, Send, Wait
from antiphon.people.downlink import Downlink
from antiphon.people.job import Job
from antiphon.people.person import Person
from antiphon.people.seat import Seat
from antiphon.people.uplink import introduce, settings
from antiphon.workload.script import PersonScript, Script


@dataclass(frozen=True, slots=True)
class TaskHelper:
    """Implements people.acts.Helper."""

    task: asyncio.Task[None]

    @property
    def is_over(self) -> bool:
        return self.task.done()

    def stop(self) -> None:
        self.task.cancel()


class Conversation:
    """Carries out what one script's generators ask for, until they end or the connection breaks."""

    def __init__(
        self, script: Script, client: WireClient, pace: Pace, voices: Voices, log: LogWriter
    ) -> None:
        self._script = script
        self._client = client
        self._pace = pace
        self._voices = voices
        self._log = log
        self._has_vad = isinstance(script, PersonScript) and pace.turn_detection == "server_vad"
        reading = script.reading_tokens_per_s if isinstance(script, PersonScript) else None
        self._downlink = Downlink(script.name, log, reading)
        self._microphone = Microphone(client, is_open=self._has_vad)
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        """Of what runs beside the script: whatever waits raises it."""
        self._has_failed = asyncio.Event()

    async def play(self, target: DrivenServer, received: Callable[[], None]) -> None:
        """The whole script. `received` is called when all its replies have come. Raises ConnectionLost,
        GaveUp or ConfigError."""
        script = self._script
        self._begin(self._listen())
        rung = asyncio.Event()
        seat = Seat(
            self._downlink,
            self._log,
            self._has_vad,
            self._pace.patience_s,
            data_url,
            frame_urls,
            lambda doing: self._beside(doing, rung),
            received,
        )
        try:
            await self._run(
                introduce(settings(script, has_vad=self._has_vad), self._downlink, self._log), rung
            )
            if isinstance(script, PersonScript):
                self._begin(self._microphone.run())
                if script.acks and wants_acks(target, self._downlink):
                    self._begin(self._run(acknowledge(script, seat), asyncio.Event()))
                await self._run(Person(script, seat).play(), rung)
            else:
                await self._run(Job(script, seat).play(), rung)
        finally:
            await end(self._tasks)

    async def _listen(self) -> None:
        async for event, now in self._client.events():
            self._downlink.receive(event, now)

    def _begin(self, work: Any) -> asyncio.Task[None]:
        """Until the script is over. What it raises, the script raises."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._has_failed.set()
            self._downlink.ring()

    def _beside(self, doing: Doing, owner: asyncio.Event) -> TaskHelper:
        task = self._begin(self._run(doing, asyncio.Event()))
        task.add_done_callback(lambda _: owner.set())
        return TaskHelper(task)

    async def _run(self, doing: Doing, rung: asyncio.Event) -> None:
        """`rung` wakes it where it listens."""
        self._downlink.listeners.append(rung.set)
        try:
            with contextlib.closing(doing):
                for act in doing:
                    await self._carry_out(act, rung)
        finally:
            self._downlink.listeners.remove(rung.set)

    async def _carry_out(self, act: Act, rung: asyncio.Event) -> None:
        match act:
            case Send():
                await self._client.send(act.event)
            case Say():
                await self._microphone.say(self._rendered(act))
            case Wait():
                # nothing has happened since the generator looked: this loop has not been left
                rung.clear()
                await self._wait(act.until_s, rung if act.listens else self._has_failed)

    async def _wait(self, until_s: float, woken: asyncio.Event) -> None:
        left_s = until_s - self._log.now_s()
        if self._failure is None and left_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left_s == inf else left_s):
                    await woken.wait()
        if self._failure is not None:
            raise self._failure

    def _rendered(self, said: Say) -> bytes:
        """PCM16 at 24 kHz."""
        assert isinstance(self._script, PersonScript), "a job says nothing"
        return b"".join(
            self._voices.speak(stretch.speech_s, self._script.seed, *stretch.names) + silence(stretch.pause_s)
            for stretch in said.stretches
        )


def wants_acks(target: DrivenServer, downlink: Downlink) -> bool:
    """Does this server get acks? Where it is not forced, only if it says that it knows them."""
    if target.acks == "auto":
        return EXTENSION in (downlink.config.get("x_extensions") or ())
    return target.acks == "always"


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
