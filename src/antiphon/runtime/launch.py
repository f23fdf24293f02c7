"""Starts the engine's process, waits until it is ready, notices if it dies or hangs, and starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from antiphon.core.errors import AntiphonError
from antiphon.core.facts import PersonFact, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import Output, ResponseEnded, Usage
from antiphon.core.snapshot import Snapshot
from antiphon.engine.signals import held_back
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.engine_client import COMING_BACK, GONE
from antiphon.runtime.messages import (
    Failed,
    FromEngine,
    Hello,
    LoadProgress,
    Lost,
    Outputs,
    Start,
    Stats,
    Stop,
    Stuck,
    ToEngine,
    WatchOrder,
)
from antiphon.runtime.record import unused
from antiphon.runtime.stage_child import MOST_PATIENCE, Restarts, cpu_s

log = logging.getLogger(__name__)

STOP_WAIT_S = 5.0
DEATH_CHECK_MS = 200
LEAST_SILENCE_S = 5.0
"""A shorter limit counts as this: what a process says once a second may be late on a busy machine."""
SNAPSHOT_EVERY_S = 0.25
FORGOTTEN = "The engine was started again and does not know this conversation: begin a new one"


def nothing() -> None:
    """For callers that need not be told of a death."""


class Silence:
    """How long a process has said nothing, by the looks of this one. What passes while this one is stopped or
    busy is no silence: the other may have been stopped as well."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid = pid
        self._limit_s = max(limit_s, LEAST_SILENCE_S)
        self._silent_s = 0.0
        self._used_s = 0.0
        """CPU time that it had used after the first look."""

    def broken(self) -> None:
        self._silent_s = 0.0

    def hangs(self) -> bool:
        """One more look of DEATH_CHECK_MS was in vain: has it been silent for too long? It has MOST_PATIENCE
        times the limit while it uses its cores."""
        if not self._silent_s:
            self._used_s = cpu_s(self._pid)
        self._silent_s += DEATH_CHECK_MS / 1000
        if self._silent_s <= self._limit_s:
            return False
        works = cpu_s(self._pid) - self._used_s > self._silent_s / 2
        return not works or self._silent_s > MOST_PATIENCE * self._limit_s


class EngineProcess:
    """An engine in a process of its own. Implements `runtime.engine_client.EngineClient`.

    One asyncio task reads what the engine sends, and starts the process again when it has died or hangs,
    unless that happens again and again (`Restarts`); `send` never blocks. Started once, stopped once. A
    record of a later life has a number behind its name.
    """

    info: ModelInfo

    def __init__(self, died: Callable[[], None] = nothing) -> None:
        """died: called before it is started again, once open responses have failed; conversations of before
        are not known any more."""
        self._died = died
        self._decoder = decoder(FromEngine)
        self._sinks: dict[str, Callable[[Output], None]] = {}
        self._open: dict[tuple[str, str], None] = {}
        self._known: set[str] = set()
        """Sessions that the process was told of."""
        self.gone = asyncio.Event()
        """It has died, and stays away."""
        self._stats: dict[str, float] = {}
        self._lost: dict[str, str] = {}
        self._stuck = ""
        self._viewer: Callable[[Snapshot], None] | None = None
        self._link: _Link | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._living: asyncio.Task[None] | None = None
        self._silence: Silence | None = None
        """Of the process, once it is ready: a load says nothing for as long as it takes."""
        self._alive = False
        self._num_lives = 0

    # -- runtime.engine_client.EngineClient -------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def comes_back(self) -> bool:
        return self._living is not None and not self._alive and not self.gone.is_set()

    @property
    def stats(self) -> dict[str, float]:
        return self._stats

    @property
    def lost(self) -> dict[str, str]:
        return self._lost

    @property
    def stuck(self) -> str:
        return self._stuck

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def attach(self, session: str, sink: Callable[[Output], None]) -> None:
        self._sinks[session] = sink

    def detach(self, session: str) -> None:
        self._sinks.pop(session, None)
        self._open = {key: None for key in self._open if key[0] != session}

    def send(self, fact: PersonFact) -> None:
        if isinstance(fact, SessionOpened) and self._alive:
            self._known.add(fact.session)
        is_known = fact.session in self._known
        if isinstance(fact, ResponseRequested):
            self._open[fact.session, fact.response] = None
            if not is_known:
                # not at once: whoever asks has not finished asking yet
                asyncio.get_running_loop().call_soon(self._fail, fact.session, fact.response)
        if is_known:
            self._post(fact)
        if isinstance(fact, SessionClosed):
            self._known.discard(fact.session)

    def watch(self, viewer: Callable[[Snapshot], None] | None) -> None:
        self._viewer = viewer
        if self._alive:
            self._post(WatchOrder(None if viewer is None else SNAPSHOT_EVERY_S))

    # -- life ----------------------------------------------------------------------------------------

    async def start(self, order: Start, progress: Callable[[str, int, int], None]) -> None:
        """Spawn, load, return when ready.

        Raises AntiphonError with the engine's own words if it can't; nothing is left behind then.
        """
        await self._begin(order, progress)
        self._living = asyncio.create_task(self._live(order))

    async def _begin(self, order: Start, progress: Callable[[str, int, int], None]) -> None:
        """A life."""
        self._num_lives += 1
        if order.record is not None and self._num_lives > 1:
            order = msgspec.structs.replace(order, record=str(unused(Path(order.record))))
        try:
            self._link = _Link()
            with held_back():
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "antiphon.runtime",
                    "worker",
                    str(self._link.folder),
                    stdin=self._link.lifeline,
                )
            await self._hello()
            self._post(order)
            await self._wait_ready(progress)
        except BaseException:
            await self._clear_away()
            raise
        self._silence = Silence(self._process.pid, order.options.silence_limit_s)
        self._alive = True
        if self._viewer is not None:
            self.watch(self._viewer)

    async def _live(self, order: Start) -> None:
        """One life after the other."""
        restarts = Restarts()
        while True:
            restarts.ready(time.monotonic())
            await self._read()
            self._alive, self._stuck, self._lost, self._stats = False, "", {}, {}
            self._known.clear()
            log.error("the engine's process died: open replies fail")
            wait_s = self._next_wait_s(restarts)
            self._fail_open()
            if wait_s is not None:
                self._died()
            await self._clear_away()
            while not self._alive and wait_s is not None:
                await asyncio.sleep(wait_s)
                try:
                    await self._begin(order, logged_progress())
                    log.info("the engine runs again")
                except Exception as error:  # whatever it is, it is tried again
                    log.error("the engine does not start: %s", error)
                    order = msgspec.structs.replace(order, record=None)  # which may be why
                    wait_s = self._next_wait_s(restarts)
            if wait_s is None:
                self._fail_open()
                return

    def _next_wait_s(self, restarts: Restarts) -> float | None:
        """It has died, or does not start: seconds until it is started again. None: it stays away."""
        wait_s = restarts.wait_s(time.monotonic())
        if wait_s is None:
            log.error("the engine's process died again and again: the server has to be restarted")
            self.gone.set()
        else:
            log.error("the engine's process is started again in %.1f s", wait_s)
        return wait_s

    async def stop(self) -> None:
        """Ask it to finish; kill it if it takes too long. Leaves no process, socket or folder behind."""
        if self._alive and self._process is not None:
            self._post(Stop())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_WAIT_S)
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
            self._living = None
        self._alive = False
        self._known.clear()
        await self._clear_away()
        self._fail_open()

    async def _clear_away(self) -> None:
        self._silence = None
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _hello(self) -> None:
        """The first message says that both sockets are joined: a message sent sooner would have no queue."""
        if not isinstance(await self._next(), Hello):
            raise AntiphonError("the engine's process could not be started; its log says why")

    async def _wait_ready(self, progress: Callable[[str, int, int], None]) -> None:
        while True:
            message = await self._next()
            match message:
                case LoadProgress():
                    progress(message.what, message.done, message.total)
                case ModelInfo():
                    self.info = message
                    return
                case Failed():
                    raise AntiphonError(message.message)
                case None:
                    raise AntiphonError("the engine's process died while it was loading; its log says why")
                case _:
                    pass

    async def _read(self) -> None:
        """Deliver what comes until the process is gone."""
        try:
            while (message := await self._next()) is not None:
                self._take(message)
        except Exception:
            log.exception("what the engine says cannot be read")

    def _take(self, message: FromEngine) -> None:
        match message:
            case Stats():
                self._stats = message.values
            case Outputs():
                for output in message.outputs:
                    self._deliver(output)
            case Lost():
                self._lost = message.units
            case Stuck():
                if message.why and not self._stuck:
                    log.error("%s", message.why)
                self._stuck = message.why
            case Snapshot():
                if self._viewer is not None:
                    self._viewer(message)
            case Failed():
                log.error("%s", message.message)
            case _:
                log.warning("unexpected message from the engine: %r", message)

    async def _next(self) -> FromEngine | None:
        """The next message, or None once the process has exited and its messages are read, or hangs."""
        assert self._process is not None
        assert self._link is not None
        events = self._link.events
        # exited first, empty then: what it said last is read before its death is noticed
        exited = self._process.returncode is not None
        while not await events.poll(DEATH_CHECK_MS):
            if exited:
                return None
            exited = self._process.returncode is not None
            if self._silence is not None and not exited and self._silence.hangs():
                log.error("the engine's process hangs: it says nothing any more, and is killed")
                return None
        if self._silence is not None:
            self._silence.broken()
        return self._decoder.decode(await events.recv())

    def _post(self, message: ToEngine) -> None:
        """The queue has no limit, so this never blocks; what is sent to a dead engine is dropped."""
        if self._link is not None:
            with contextlib.suppress(zmq.Again):
                self._link.orders.send(encode(message), zmq.NOBLOCK)

    def _deliver(self, output: Output) -> None:
        """One session's broken sink must not silence the others."""
        if isinstance(output, ResponseEnded):
            self._open.pop((output.session, output.response), None)
        sink = self._sinks.get(output.session)
        try:
            if sink is not None:
                sink(output)
        except Exception:
            log.exception("session %s could not take its output", output.session)

    def _fail_open(self) -> None:
        for session, response in list(self._open):
            self._fail(session, response)

    def _fail(self, session: str, response: str) -> None:
        """It is not answered, unless it has been."""
        if (session, response) in self._open:
            why = FORGOTTEN if self._alive else COMING_BACK if self.comes_back else GONE
            self._deliver(ResponseEnded(session, response, "failed", "engine_gone", why, Usage()))


def logged_progress() -> Callable[[str, int, int], None]:
    """For one start: logs each thing that is loaded once, however often it is reported."""
    logged: set[str] = set()

    def show(what: str, done: int, total: int) -> None:
        if what not in logged:
            logged.add(what)
            log.info("%s", what)

    return show


class _Link:
    """The server's ends of the two sockets, in a folder of their own, and of the pipe whose end is the
    server's."""

    def __init__(self) -> None:
        self.lifeline, self._life = os.pipe()
        self.folder = Path(tempfile.mkdtemp(prefix="antiphon-"))
        self._context = zmq.Context()
        self.orders = self._context.socket(zmq.PUSH)
        self.events = zmq.asyncio.Context(shadow=self._context).socket(zmq.PULL)
        for socket, name in ((self.orders, "orders"), (self.events, "events")):
            socket.set_hwm(0)
            socket.bind(f"ipc://{self.folder}/{name}")

    def close(self) -> None:
        self.events.close(linger=0)
        self._context.destroy(linger=0)
        os.close(self.lifeline)
        os.close(self._life)
        shutil.rmtree(self.folder, ignore_errors=True)
