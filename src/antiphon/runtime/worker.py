"""The engine's process: loads, then turns the driver between messages until it is told to stop.

Started as `python -m antiphon.runtime worker FOLDER` by `runtime.launch`, which has bound two sockets in that
folder; the folder is removed as soon as both are joined. The end of standard input is the end of the parent,
and of this process.
"""

from __future__ import annotations

import gc
import logging
import math
import shutil
import threading
import time
from pathlib import Path

import msgspec
import zmq

from antiphon.core.errors import AntiphonError
from antiphon.core.facts import Fact
from antiphon.core.ports import Wakeup
from antiphon.engine.heap import give_back
from antiphon.engine.signals import leave_to_parent
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.driver import Driver
from antiphon.runtime.loading import load_engine
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
from antiphon.runtime.record import RecordWriter
from antiphon.runtime.stuck import StuckWatch

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.5
START_WAIT_S = 60.0
STATS_EVERY_S = 1.0
LINGER_MS = 1000
GRACE_S = 3.0
"""From the end of the parent to this process's, whatever it does; for a load mostly, which can't be left."""

Message = Fact | Start | Stop | WatchOrder


class Orphaned(Exception):
    """The parent is gone: nobody is left to work for."""


class Link:
    """This process's ends of the two sockets, and whether anybody is at the other end."""

    def __init__(self, folder: str, orphaned: threading.Event) -> None:
        self._folder = folder
        self._orphaned = orphaned
        self._context = zmq.Context()
        self._orders = self._context.socket(zmq.PULL)
        self._events = self._context.socket(zmq.PUSH)
        for socket, name in ((self._orders, "orders"), (self._events, "events")):
            socket.set_hwm(0)
            socket.connect(f"ipc://{folder}/{name}")
        self._decoder = decoder(ToEngine)
        self._sending = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """From any thread."""
        with self._sending:
            self._events.send(encode(message))

    def begin(self) -> list[Message]:
        """Say hello, and what is said to that. Raises Orphaned."""
        self.send(Hello())
        for _ in range(math.ceil(START_WAIT_S / IDLE_WAIT_S)):
            self.check_parent()
            if early := self.receive(IDLE_WAIT_S):
                self._forget_folder()  # both are joined: the server was given the hello
                return early
        return []

    def receive(self, wait_s: float, wakeup: Wakeup | None = None) -> list[Message]:
        """Everything that has arrived; waits up to `wait_s` for the first, and no longer than until `wakeup`
        is readable. What can't be read is dropped."""
        messages: list[Message] = []
        # rounded up: a wait cut short would be asked for again and again
        self._poller_of(wakeup).poll(math.ceil(1000 * wait_s))
        while self._orders.poll(0):
            try:
                messages.append(self._decoder.decode(self._orders.recv()))
            except (msgspec.MsgspecError, UnicodeDecodeError, AntiphonError) as error:
                log.error("dropped a message that cannot be read: %s", error)
        return messages

    def _poller_of(self, wakeup: Wakeup | None) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._orders, zmq.POLLIN)
        if wakeup is not None:
            poller.register(wakeup.fileno(), zmq.POLLIN)
        return poller

    def check_parent(self) -> None:
        """Raises Orphaned."""
        if self._orphaned.is_set():
            raise Orphaned

    def close(self) -> None:
        """What was sent still arrives, unless nobody reads any more."""
        self._context.destroy(linger=LINGER_MS)
        self._forget_folder()

    def _forget_folder(self) -> None:
        """Nobody would, once both processes are killed."""
        shutil.rmtree(self._folder, ignore_errors=True)


def main(folder: str, orphaned: threading.Event) -> int:
    """Run until stopped, or `orphaned`. Returns the process's exit status."""
    leave_to_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s engine %(name)s: %(message)s", level=logging.INFO)
    link = Link(folder, orphaned)
    try:
        return _serve(link)
    except Orphaned:
        log.warning("the server's process is gone")
    except AntiphonError as error:
        link.send(Failed(str(error)))
    except Exception as error:
        log.exception("the engine crashed")
        link.send(Failed(f"The engine crashed: {type(error).__name__}: {error}"))
    finally:
        link.close()
    return 1


def _serve(link: Link) -> int:
    early = link.begin()
    start = early.pop(0) if early else None
    if not isinstance(start, Start):
        return 1

    def progress(what: str, done: int, total: int) -> None:
        link.check_parent()
        link.send(LoadProgress(what, done, total))

    engine = load_engine(start.source, start.options, start.name, progress)
    recorder = None
    try:
        recorder = RecordWriter(Path(start.record), engine.node, engine.depth) if start.record else None
        driver = Driver(engine, lambda outputs: link.send(Outputs(outputs)), recorder=recorder)
        give_back()
        gc.freeze()  # the model's objects never die: a collection in mid-step need not walk them
        link.send(engine.info)
        with StuckWatch(driver.why_stuck, lambda why: link.send(Stuck(why))):
            _loop(link, driver, early)
    finally:
        if recorder is not None:
            recorder.close()
        if engine.processes is not None:
            engine.processes.close()
    return 0


def _loop(link: Link, driver: Driver, messages: list[Message]) -> None:
    """Drain messages, advance; wait for a message, the end of a step, the node's own time or a report's,
    whichever is first. Begins with what came early."""
    reports = Reports(link, driver)
    stopped = False
    while not stopped:
        link.check_parent()
        stopped = any(isinstance(message, Stop) for message in messages)
        for message in messages:
            if isinstance(message, WatchOrder):
                reports.watch(message)
        driver.advance(
            [message for message in messages if not isinstance(message, Start | Stop | WatchOrder)]
        )
        reports.send_due(time.monotonic())
        wait_s = 0.0 if stopped else driver.idle_s(min(IDLE_WAIT_S, reports.idle_s(time.monotonic())))
        messages = link.receive(wait_s, driver.wakeup)


class Reports:
    """What the engine says unasked: metrics, units that are lost, and snapshots while somebody watches."""

    def __init__(self, link: Link, driver: Driver) -> None:
        self._link = link
        self._driver = driver
        self._next_stats = 0.0
        self._every_s: float | None = None
        self._next_snapshot = math.inf
        self._lost: dict[str, str] = {}

    def watch(self, order: WatchOrder) -> None:
        if order.every_s == self._every_s:
            return  # whoever watches already keeps the rhythm
        self._every_s = order.every_s
        self._next_snapshot = math.inf if order.every_s is None else 0.0
        self._driver.node.watch(order.every_s is not None)

    def idle_s(self, now: float) -> float:
        """Until the next snapshot."""
        return max(self._next_snapshot - now, 0.0)

    def send_due(self, now: float) -> None:
        if self._driver.lost != self._lost:
            self._lost = self._driver.lost
            self._link.send(Lost(self._lost))
            self._next_stats = now
        if now >= self._next_stats:
            self._next_stats = now + STATS_EVERY_S
            self._link.send(Stats(self._driver.stats()))
        if self._every_s is not None and now >= self._next_snapshot:
            self._next_snapshot = now + self._every_s
            self._link.send(self._driver.snapshot())
