"""Starts the engine's process, waits until it is ready, and notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.asyncio

from antiphon.core.errors import AntiphonError
from antiphon.core.facts import PersonFact, ResponseRequested
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import Output, ResponseEnded, Usage
from antiphon.core.snapshot import Snapshot
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.messages import (
    Failed,
    FromEngine,
    Hello,
    Lost,
    Outputs,
    Progress,
    Start,
    Stats,
    Stop,
    Stuck,
    ToEngine,
    Watch,
)

log = logging.getLogger(__name__)

STOP_WAIT_S = 5.0
DEATH_CHECK_MS = 200
SNAPSHOT_EVERY_S = 0.25
GONE = "The engine stopped working; the server has to be restarted"


class EngineProcess:
    """An engine in a process of its own. Implements `core.engine_client.EngineClient`.

    One asyncio task reads what the engine sends; `send` never blocks. Started once, stopped once.
    """

    info: ModelInfo

    def __init__(self) -> None:
        self._decoder = decoder(FromEngine)
        self._sinks: dict[str, Callable[[Output], None]] = {}
        self._open: dict[tuple[str, str], None] = {}
        self._stats: dict[str, float] = {}
        self._lost: dict[str, str] = {}
        self._stuck = ""
        self._viewer: Callable[[Snapshot], None] | None = None
        self._link: _Link | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._alive = False

    # -- core.engine_client.EngineClient -------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._alive

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
        if isinstance(fact, ResponseRequested):
            self._open[fact.session, fact.response] = None
            if not self._alive:
                # not at once: whoever asks has not finished asking yet
                asyncio.get_running_loop().call_soon(self._fail_open)
        if self._alive:
            self._post(fact)

    def watch(self, viewer: Callable[[Snapshot], None] | None) -> None:
        self._viewer = viewer
        if self._alive:
            self._post(Watch(None if viewer is None else SNAPSHOT_EVERY_S))

    # -- life ----------------------------------------------------------------------------------------

    async def start(self, order: Start, progress: Callable[[str, int, int], None]) -> None:
        """Spawn, load, return when ready.

        Raises AntiphonError with the engine's own words if it can't; nothing is left behind then.
        """
        try:
            self._link = _Link()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "antiphon.runtime.worker",
                str(self._link.folder),
                stdin=self._link.lifeline,
            )
            await self._hello()
            self._post(order)
            await self._wait_ready(progress)
        except BaseException:
            await self._clear_away()
            raise
        self._alive = True
        self._reader = asyncio.create_task(self._read())

    async def stop(self) -> None:
        """Ask it to finish; kill it if it takes too long. Leaves no process, socket or folder behind."""
        if self._alive and self._process is not None:
            self._post(Stop())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_WAIT_S)
        self._alive = False
        await self._clear_away()
        self._fail_open()

    async def _clear_away(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
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
                case Progress():
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
        """Deliver what comes until the process is gone; then end what is open."""
        try:
            while (message := await self._next()) is not None:
                self._take(message)
        except Exception:
            log.exception("what the engine says cannot be read")
        finally:
            if self._alive:
                self._alive = False
                log.error("the engine's process died: open replies fail, and the server has to be restarted")
                self._fail_open()

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
        """The next message, or None once the process has exited and its messages are read."""
        assert self._process is not None
        assert self._link is not None
        events = self._link.events
        # exited first, empty then: what it said last is read before its death is noticed
        exited = self._process.returncode is not None
        while not await events.poll(DEATH_CHECK_MS):
            if exited:
                return None
            exited = self._process.returncode is not None
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
            self._deliver(ResponseEnded(session, response, "failed", "engine_gone", GONE, Usage()))


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
