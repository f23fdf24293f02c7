"""The engine's process: loads, then turns the driver between messages until it is told to stop.

Started as `python -m antiphon.runtime.worker FOLDER` by `runtime.launch`, which has bound two sockets in that
folder; exits when its parent is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import zmq

from antiphon.core.errors import AntiphonError
from antiphon.core.facts import Fact
from antiphon.engine.load import load_engine
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.driver import Driver
from antiphon.runtime.messages import Failed, FromEngine, Hello, Progress, Start, Stats, Stop, ToEngine
from antiphon.runtime.record import RecordWriter

log = logging.getLogger(__name__)

IDLE_WAIT_MS = 500
STATS_EVERY_S = 1.0


class Link:
    """This process's ends of the two sockets."""

    def __init__(self, folder: str) -> None:
        self._orders = zmq.Context.instance().socket(zmq.PULL)
        self._events = zmq.Context.instance().socket(zmq.PUSH)
        for socket, name in ((self._orders, "orders"), (self._events, "events")):
            socket.set_hwm(0)
            socket.connect(f"ipc://{folder}/{name}")
        self._decoder = decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        self._events.send(encode(message))

    def receive(self, wait_ms: int) -> list[Fact | Start | Stop]:
        """Everything that has arrived; waits up to `wait_ms` for the first."""
        messages: list[Fact | Start | Stop] = []
        while self._orders.poll(0 if messages else wait_ms):
            messages.append(self._decoder.decode(self._orders.recv()))
        return messages


def main(folder: str) -> int:
    """Run until stopped. Returns the process's exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s engine %(name)s: %(message)s", level=logging.INFO)
    link = Link(folder)
    link.send(Hello())
    (start,) = link.receive(wait_ms=60_000) or (None,)
    if not isinstance(start, Start):
        return 1
    try:
        return _serve(link, start)
    except AntiphonError as error:
        link.send(Failed(str(error)))
        return 1


def _serve(link: Link, start: Start) -> int:
    def progress(what: str, done: int, total: int) -> None:
        link.send(Progress(what, done, total))

    engine = load_engine(start.source, start.options, start.name, progress)
    recorder = RecordWriter(Path(start.record), engine.node, 0) if start.record else None
    driver = Driver(engine, link.send, recorder=recorder)
    link.send(engine.info)
    return _loop(link, driver)


def _loop(link: Link, driver: Driver) -> int:
    """Drain messages, advance; wait only when there is nothing to do."""
    parent = os.getppid()
    next_stats = 0.0
    busy = False
    while os.getppid() == parent:
        messages = link.receive(wait_ms=0 if busy else IDLE_WAIT_MS)
        facts = [message for message in messages if not isinstance(message, Start | Stop)]
        busy = driver.advance(facts)
        if time.monotonic() >= next_stats:
            next_stats = time.monotonic() + STATS_EVERY_S
            link.send(Stats(driver.stats()))
        if any(isinstance(message, Stop) for message in messages):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
