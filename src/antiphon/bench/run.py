"""One run: people and jobs against a server, each in their time, until all are done or time is up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from itertools import islice

from antiphon.bench import server_metrics
from antiphon.bench.conversation import Conversation, end
from antiphon.bench.cost import LoopLag
from antiphon.bench.logfile import LogUnwritable, LogWriter
from antiphon.bench.progress import RunProgress
from antiphon.bench.target import DrivenServer, Pace
from antiphon.bench.voice import Voices
from antiphon.bench.watch import ServerWatch
from antiphon.bench.wire_client import ConnectionLost, Refused, Unreachable, WireClient
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.metrics.log import (
    ClientSampled,
    ErrorSeen,
    RunEnded,
    ServerSampled,
    SessionEnded,
    SessionQueued,
    SessionRefused,
)
from antiphon.people.downlink import GaveUp
from antiphon.people.seat import PLACE_S, RETRY_S, session_started
from antiphon.workload.script import PersonScript, Script

logger = logging.getLogger("antiphon.bench")

SAMPLE_S = 1.0
BUSY_STATUSES = frozenset((429, 503))


async def run(
    target: DrivenServer,
    scripts: Iterator[Script],
    pace: Pace,
    log: LogWriter,
    progress: RunProgress | None = None,
) -> str:
    """Play the scripts; everything that happens goes to `log`. Returns the reason that RunEnded gives.

    The first SIGINT or SIGTERM ends the run in order. Raises ConfigError if the server will not have such
    sessions at all, for unreadable voices, and if the log cannot be written.
    """
    voices = await asyncio.to_thread(Voices.recorded, pace.voices) if pace.voices else Voices.synthetic()
    return await _Run(target, pace, voices, log, progress).go(islice(scripts, pace.num_sessions))


class _Run:
    def __init__(
        self, target: DrivenServer, pace: Pace, voices: Voices, log: LogWriter, progress: RunProgress | None
    ) -> None:
        self._target = target
        self._pace = pace
        self._voices = voices
        self._log = log
        self._progress = progress
        self._watch = ServerWatch(target.root, pace.lost_after_s)
        self._lag = LoopLag()

    async def go(self, scripts: Iterator[Script]) -> str:
        try:
            await self._try_out()
        except Unreachable as error:
            return self._over("server_lost", str(error))
        except AntiphonError as error:
            self._over("failed", str(error))
            raise ConfigError(str(error)) from error
        return await self._play_all(scripts)

    async def _try_out(self) -> None:
        """A session of no turns: what is wrong with the address, key, model or settings shows at once."""
        try:
            client = await WireClient.open(self._target, self._log.now_s)
        except Refused as error:
            if error.status in BUSY_STATUSES:
                return
            raise
        try:
            nobody = PersonScript("try-out", 0.0, 0, ())
            await self._conversation(nobody, client).play(self._target, _nothing)
        finally:
            await client.close()

    async def _play_all(self, scripts: Iterator[Script]) -> str:
        is_interrupted = asyncio.Event()
        helpers = [asyncio.create_task(task) for task in (self._lag.run(), self._poll_server())]
        play = self._closed(scripts) if self._pace.concurrency else self._open(scripts)
        ends = {
            asyncio.create_task(play): "finished",
            asyncio.create_task(self._watch.lost()): "server_lost",
            asyncio.create_task(is_interrupted.wait()): "interrupted",
            asyncio.create_task(self._sample()): "failed",
        }
        with _signals(is_interrupted):
            done, _ = await asyncio.wait(
                ends, timeout=self._pace.duration_s, return_when=asyncio.FIRST_COMPLETED
            )
            reason = next((why for task, why in ends.items() if task in done), "duration")
            await end([*ends, *helpers])
        failures = [error for task in done if (error := task.exception()) is not None]
        self._sample_client()
        self._over("failed" if failures else reason, self._watch.message)
        if failures:
            raise _cause(failures[0])
        return reason

    def _over(self, reason: str, message: str) -> str:
        self._log.write(RunEnded(t_s=self._log.now_s(), reason=reason, message=message))
        self._log.flush()
        return reason

    async def _closed(self, scripts: Iterator[Script]) -> None:
        """So many sessions hold a place at any time; who leaves it makes room for the next."""

        async def one_after_another(place: int) -> None:
            await asyncio.sleep(place * PLACE_S)
            for script in scripts:
                await self._watch.calm()
                if not await self._hold_place(script, None, places):
                    await asyncio.sleep(RETRY_S)

        async with asyncio.TaskGroup() as places:
            for place in range(self._pace.concurrency or 0):
                places.create_task(one_after_another(place))

    async def _hold_place(
        self,
        script: Script,
        arrival_s: float | None,
        sessions: asyncio.TaskGroup,
        waited_s: float | None = None,
    ) -> bool:
        """Until the session's end or, where that frees places, until its last reply has come. False if it
        ended before all was played."""
        if not self._pace.frees_early:
            return await self._attend(script, arrival_s, waited_s)
        left = asyncio.Event()
        attending = sessions.create_task(self._attend(script, arrival_s, waited_s, left))
        attending.add_done_callback(lambda _: left.set())
        await left.wait()
        return not attending.done() or attending.result()

    async def _open(self, scripts: Iterator[Script]) -> None:
        """Everybody comes at their time, whatever happened to those before; in order, if there are no more
        than so many places."""
        most, start_s = self._pace.max_concurrency, self._log.now_s()
        places = None if most is None else asyncio.Semaphore(most)
        async with asyncio.TaskGroup() as sessions:
            for script in scripts:
                arrival_s = start_s + script.arrival_s
                await asyncio.sleep(max(0.0, arrival_s - self._log.now_s()))
                sessions.create_task(self._take_place(script, arrival_s, places, sessions))

    async def _take_place(
        self,
        script: Script,
        arrival_s: float,
        places: asyncio.Semaphore | None,
        sessions: asyncio.TaskGroup,
    ) -> None:
        if places is None:
            await self._attend(script, arrival_s)
            return
        came_s, has_to_wait = self._log.now_s(), places.locked()
        if has_to_wait:
            self._log.write(SessionQueued(t_s=came_s, session=script.name))
        async with places:
            waited_s = self._log.now_s() - came_s if has_to_wait else 0.0
            await self._hold_place(script, arrival_s, sessions, waited_s)

    async def _attend(
        self,
        script: Script,
        arrival_s: float | None,
        waited_s: float | None = None,
        received: asyncio.Event | None = None,
    ) -> bool:
        """One session from its start to its end, whatever kind of end. True if all of it was played."""
        self._log.write(session_started(script, self._log.now_s(), arrival_s, waited_s))
        try:
            client = await self._connect(script.name, may_retry=arrival_s is None)
            reason, message = await self._play(script, client, received) if client else ("", "")
        except Unreachable as error:
            reason, message = "lost", str(error)
        except asyncio.CancelledError:
            self._ended(script.name, "stopped", "")
            raise
        if reason:
            self._ended(script.name, reason, message)
        return reason == "done"

    async def _connect(self, session: str, *, may_retry: bool) -> WireClient | None:
        """None if the server refused. In a closed loop the person comes again. Raises Unreachable."""
        while True:
            try:
                client = await WireClient.open(self._target, self._log.now_s)
            except Refused as error:
                self._refused(session, error)
                pause_s = error.retry_after_s or RETRY_S
                if not may_retry:
                    return None
                if error.status not in BUSY_STATUSES:
                    await asyncio.sleep(RETRY_S)
                    return None
                await asyncio.sleep(pause_s)
            except Unreachable:
                self._watch.suspect()
                if not may_retry:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return client

    async def _play(
        self, script: Script, client: WireClient, received: asyncio.Event | None
    ) -> tuple[str, str]:
        """Why it ended, and in which words."""
        try:
            leave = _nothing if received is None else received.set
            await self._conversation(script, client).play(self._target, leave)
        except ConnectionLost as error:
            self._watch.suspect()
            return "lost", str(error)
        except LogUnwritable:
            raise
        except (GaveUp, ConfigError) as error:
            self._log.write(
                ErrorSeen(t_s=self._log.now_s(), session=script.name, code="gave_up", message=str(error))
            )
            return "failed", str(error)
        finally:
            await client.close()
        return "done", ""

    def _conversation(self, script: Script, client: WireClient) -> Conversation:
        return Conversation(script, client, self._pace, self._voices, self._log)

    def _ended(self, session: str, reason: str, message: str) -> None:
        self._log.write(SessionEnded(t_s=self._log.now_s(), session=session, reason=reason, message=message))

    def _refused(self, session: str, error: Refused) -> None:
        self._log.write(
            SessionRefused(
                t_s=self._log.now_s(),
                session=session,
                code=str(error.status),
                message=str(error),
                retry_after_s=error.retry_after_s,
            )
        )

    async def _sample(self) -> None:
        """Ends only by an error: where the log cannot be written."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._sample_client()
            self._log.flush()
            if self._progress is not None:
                self._progress.show(self._log.now_s())

    def _sample_client(self) -> None:
        lag_s = max(self._lag.take(), default=0.0)
        self._log.write(ClientSampled(t_s=self._log.now_s(), cpu_s=time.process_time(), lag_s=lag_s))

    async def _poll_server(self) -> None:
        """Ends if the server has no counters to show when the run begins."""
        has_answered = False
        while True:
            try:
                values = await asyncio.to_thread(server_metrics.sample, self._target)
            except (OSError, ValueError) as error:
                if not has_answered:
                    logger.info("the server has no metrics page: %s", error)
                    return
            else:
                has_answered = True
                self._log.write(ServerSampled(t_s=self._log.now_s(), values=values))
            await asyncio.sleep(SAMPLE_S)


def _cause(error: BaseException) -> BaseException:
    """The first error of a group of tasks, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _nothing() -> None:
    """Of a place that is free only when its session ends."""


@contextlib.contextmanager
def _signals(is_interrupted: asyncio.Event) -> Iterator[None]:
    """The first signal to stop ends the run; a second does what it always does."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        is_interrupted.set()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
