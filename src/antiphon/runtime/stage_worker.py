"""The process of some of an engine's units: loads them, then carries out what the engine's process orders.

Started as `python -m antiphon.runtime stage_worker DESCRIPTOR` by `runtime.stage_processes`. The descriptor
is a socket through which links come, the first from the engine's process, others from the processes
of units that exchange payloads with these. The end of standard input is the end of the engine's process, and
of this one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import select
import socket
import time
from collections import deque

import msgspec

from antiphon.core.config import EngineOptions
from antiphon.core.errors import AntiphonError, ConnectorClosed
from antiphon.core.plans import Step
from antiphon.engine.heap import give_back
from antiphon.engine.load import LoadedUnits, Progress, load_units, open_source
from antiphon.engine.signals import leave_to_parent
from antiphon.runtime.connectors import shared_memory, tcp
from antiphon.runtime.connectors.port import Message
from antiphon.runtime.ipc_messages import (
    FACTS,
    Begin,
    Happened,
    Here,
    LinkOffer,
    Ordered,
    Ready,
    Upward,
    downward,
    link_offers,
    packed,
    unpacked,
)
from antiphon.runtime.local_units import LocalUnits
from antiphon.runtime.messages import Failed, LoadProgress
from antiphon.runtime.queued_link import QueuedLink
from antiphon.runtime.stage_child import end_with_parent

log = logging.getLogger(__name__)

OFFER_BYTES = 4096
PROGRESS_EVERY_S = 0.1
COPY_POLL_MS = 1
LAST_WORDS_S = 1.0
MOST_MOVING_BYTES = 4 << 20
"""Of pages that a link has not taken: no more are read while more wait."""
MOST_WAITING_BYTES = 256 << 20
"""Of parcels for processes that don't take them: no order is begun while more wait."""


class OfferSocket:
    """Where links come in."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def wait(self) -> tuple[str, QueuedLink]:
        """The next link. Raises ConnectorClosed once no process is there that could send one."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, OFFER_BYTES, 1)
        if not descriptors:
            raise ConnectorClosed("the engine's process is gone")
        self._socket.setblocking(False)
        offer = link_offers.decode(data)
        return offer.process, QueuedLink(_join(offer, socket.socket(fileno=descriptors[0])))

    def take(self) -> list[tuple[str, QueuedLink]]:
        """All links that have come."""
        found: list[tuple[str, QueuedLink]] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.wait())
        return found

    def fileno(self) -> int:
        return self._socket.fileno()


class StageWorker:
    """The process's loop: orders in, facts out, parcels both ways."""

    def __init__(self, offers: OfferSocket, engine: QueuedLink) -> None:
        self._offers = offers
        self._engine = engine
        self._peers: dict[str, QueuedLink] = {}
        self._orders: deque[Message] = deque()
        self._held: Ordered | None = None
        """The next order, which waits for pages of another process."""
        self._num_running = 0
        """Steps that a lane has and has not reported."""
        self._reported_at = 0.0

    def begin(self) -> None:
        """Load what the first message says. Raises AntiphonError."""
        while not self._orders:
            select.select([self._engine], [], [])
            self._orders.extend(self._engine.poll())
        message = self._orders.popleft()
        begin = unpacked(message, downward)
        self._engine.release(message)
        assert isinstance(begin, Begin), "the first message says what to load"
        loaded, places = load(begin, self._progress)
        self._units = LocalUnits(loaded, begin.born)
        self._places = places
        give_back()
        gc.freeze()
        self.tell(Ready())

    def run(self) -> None:
        """Until the engine's process closes the link, or is gone: raises ConnectorClosed."""
        while True:
            self._wait()
            self._take()
            while self._may_go_on:
                self._carry_out()
                self._report()
            self._report()

    def tell(self, message: Upward) -> None:
        self._engine.send(packed(FACTS, message))

    def close(self) -> None:
        self._engine.close(LAST_WORDS_S)

    @property
    def _may_go_on(self) -> bool:
        """With the next order."""
        if self._held is not None:
            return not self._units.is_held(self._held.order)
        return bool(self._orders) and not self._is_crowded

    @property
    def _is_crowded(self) -> bool:
        return sum(link.waiting_bytes for link in self._peers.values()) > MOST_WAITING_BYTES

    def _progress(self, what: str, done: int, total: int) -> None:
        """Report how far the load is. It also polls for orders, so that an engine that is gone is noticed."""
        now = time.monotonic()
        if done == total or now - self._reported_at > PROGRESS_EVERY_S:
            self._reported_at = now
            self.tell(LoadProgress(what, done, total))
        self._orders.extend(self._engine.poll())

    def _wait(self) -> None:
        poller = select.poll()
        for end in (self._offers, self._engine, *self._peers.values()):
            poller.register(end, select.POLLIN)
        if self._units.lane is not None:
            poller.register(self._units.lane, select.POLLIN)
        if self._may_go_on:
            poller.poll(0)
        else:
            is_working = self._units.mover.num_in_flight or self._units.compiling
            poller.poll(COPY_POLL_MS if is_working else None)

    def _take(self) -> None:
        """The engine's link first: an order for a new peer comes after the offer of a link with it."""
        messages = self._engine.poll()
        for process, link in self._offers.take():
            if process in self._peers:
                self._peers[process].close()
            self._peers[process] = link
        for message in messages:
            self._sort(self._engine, message)
        for process, link in list(self._peers.items()):
            try:
                for message in link.poll():
                    self._sort(link, message)
            except ConnectorClosed:
                link.close()
                del self._peers[process]

    def _sort(self, link: QueuedLink, message: Message) -> None:
        """An order keeps its credit until it is carried out."""
        if message.kind in ("Parcel", "Pages"):
            self._units.take_in(message)
            link.release(message)
        elif message.kind == "Broken":
            broken = unpacked(message, downward)
            link.release(message)
            self._units.moves.break_off(broken.ticket)
        elif message.kind == "Ask":
            link.release(message)
            if not self._num_running:
                self.tell(Here())  # else the report of the step is the answer
        else:
            self._orders.append(message)

    def _carry_out(self) -> None:
        if self._held is None:
            message = self._orders.popleft()
            self._held = unpacked(message, downward)
            self._engine.release(message)
            assert isinstance(self._held, Ordered), "a process begins once"
        if not self._units.is_held(self._held.order):
            ordered, self._held = self._held, None
            self._num_running += isinstance(ordered.order, Step)
            self._units.carry_out(ordered.number, ordered.order)

    def _report(self) -> None:
        if self._units.lane is not None:
            self._units.lane.clear()
        for executor in self._units.executors.values():
            for fact in executor.poll():
                self._num_running -= 1
                self.tell(Happened(fact))
        for fact in self._units.poll():
            self.tell(Happened(fact))
        for compiled in self._units.compiled():
            self.tell(compiled)
        while self._units.outgoing:
            unit, message = self._units.outgoing.popleft()
            process = self._places[unit]
            link = self._peers.get(process) if process else self._engine
            if link is not None:
                link.send(message)
        self._send_pages()

    def _send_pages(self) -> None:
        """As far as the links take them."""
        for target in self._units.moves.targets:
            link = self._peers.get(self._places[target])
            while link is None or link.waiting_bytes <= MOST_MOVING_BYTES:
                pages = self._units.moves.next_layer(target)
                if pages is None:
                    break
                if link is not None:
                    link.send(pages)


def load(begin: Begin, progress: Progress) -> tuple[LoadedUnits, dict[str, str]]:
    """The units of this process, and where each unit of the node lives."""
    options = own_options(begin.options, begin.process)
    opened = open_source(begin.source, options, lambda what, done, total: None)
    places = {unit.name: unit.process for unit in opened.node.placed}
    return load_units(opened, options, begin.process, progress), places


def own_options(options: EngineOptions, process: str) -> EngineOptions:
    """With the threads that this process may have, 1 unless said otherwise."""
    threads = next((each.threads for each in options.processes if each.name == process), 1)
    return msgspec.structs.replace(options, threads=threads)


def main(descriptor: int) -> int:
    """Run until the engine's process is gone. Returns the process's exit status."""
    leave_to_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s stage %(name)s: %(message)s", level=logging.INFO)
    end_with_parent()
    try:
        offers = OfferSocket(descriptor)
        _, engine = offers.wait()
    except (AntiphonError, OSError):
        return 1
    stage = StageWorker(offers, engine)
    try:
        stage.begin()
        stage.run()
    except ConnectorClosed:
        return 0
    except AntiphonError as error:
        return _last_words(stage, str(error))
    except Exception as error:
        log.exception("the stage crashed")
        return _last_words(stage, f"{type(error).__name__}: {error}")
    return 0


def _last_words(stage: StageWorker, text: str) -> int:
    with contextlib.suppress(ConnectorClosed):
        stage.tell(Failed(text))
        stage.close()
    return 1


def _join(offer: LinkOffer, connection: socket.socket) -> shared_memory.StreamConnector:
    return shared_memory.join(connection) if offer.connector == "shared_memory" else tcp.adopt(connection)
