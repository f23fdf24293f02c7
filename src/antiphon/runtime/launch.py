"""Starts the engine's process, waits until it is ready, and notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, Usage
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.messages import Failed, FromEngine, Hello, Progress, Start, Stats, Stop, ToEngine

log = logging.getLogger(__name__)

STOP_WAIT_S = 5.0
DEATH_CHECK_MS = 200


class EngineProcess:
    """An engine in a process of its own. Implements `core.engine_client.EngineClient`.

    One asyncio task reads what the engine sends; `send` never blocks.
    """

    info: ModelInfo

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="antiphon-"))
        self._orders = zmq.Context.instance().socket(zmq.PUSH)
        self._events = zmq.asyncio.Context.instance().socket(zmq.PULL)
        self._orders.set_hwm(0)
        self._events.set_hwm(0)
        self._decoder = decoder(FromEngine)
        self._sinks: dict[str, Callable[[Output], None]] = {}
        self._open: dict[tuple[str, str], None] = {}
        self._stats: dict[str, float] = {}
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

    def attach(self, session: str, sink: Callable[[Output], None]) -> None:
        self._sinks[session] = sink

    def detach(self, session: str) -> None:
        self._sinks.pop(session, None)
        self._open = {key: None for key in self._open if key[0] != session}

    def send(self, fact: PersonFact) -> None:
        if isinstance(fact, ResponseRequested):
            self._open[fact.session, fact.response] = None
            if not self._alive:
                self._fail_open()
                return
        self._post(fact)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self, order: Start, progress: Callable[[str, int, int], None]) -> None:
        """Spawn, load, return when ready. Raises AntiphonError with the engine's own words if it can't."""
        self._orders.bind(f"ipc://{self._folder}/orders")
        self._events.bind(f"ipc://{self._folder}/events")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon.runtime.worker", str(self._folder)
        )
        await self._hello()
        self._post(order)
        await self._wait_ready(progress)
        self._alive = True
        self._reader = asyncio.create_task(self._read())

    async def stop(self) -> None:
        """Ask it to finish; kill it if it takes too long. Leaves no process and no socket behind."""
        self._alive = False
        if self._process is not None and self._process.returncode is None:
            self._post(Stop())
            try:
                await asyncio.wait_for(self._process.wait(), STOP_WAIT_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        self._orders.close(linger=0)
        self._events.close(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

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
        while (message := await self._next()) is not None:
            match message:
                case Stats():
                    self._stats = message.values
                case TokensOut() | AudioOut() | ResponseEnded():
                    self._deliver(message)
                case _:
                    log.warning("unexpected message from the engine: %r", message)
        if self._alive:
            self._alive = False
            log.error("the engine's process died")
            self._fail_open()

    async def _next(self) -> FromEngine | None:
        """The next message, or None once the process has exited and its messages are read."""
        assert self._process is not None
        while not await self._events.poll(DEATH_CHECK_MS):
            if self._process.returncode is not None:
                return None
        return self._decoder.decode(await self._events.recv())

    def _post(self, message: ToEngine) -> None:
        """The queue has no limit, so this never blocks; what is sent to a dead engine is dropped."""
        with contextlib.suppress(zmq.Again):
            self._orders.send(encode(message), zmq.NOBLOCK)

    def _deliver(self, output: Output) -> None:
        if isinstance(output, ResponseEnded):
            self._open.pop((output.session, output.response), None)
        sink = self._sinks.get(output.session)
        if sink is not None:
            sink(output)

    def _fail_open(self) -> None:
        for session, response in list(self._open):
            message = "The engine stopped working; the server has to be restarted"
            self._deliver(ResponseEnded(session, response, 0, "failed", "engine_gone", message, Usage()))
