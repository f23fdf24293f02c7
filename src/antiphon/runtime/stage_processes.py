"""The processes of an engine's units: started together, noticed when they die, and started again."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator

import msgspec

from antiphon.core.config import EngineOptions
from antiphon.core.errors import AntiphonError, ConnectorClosed
from antiphon.core.facts import Fact, UnitLost, UnitReady
from antiphon.engine.signals import held_back
from antiphon.runtime.codec import encode
from antiphon.runtime.connectors import shared_memory, tcp
from antiphon.runtime.connectors.port import Message
from antiphon.runtime.ipc_messages import (
    ORDERS,
    WORDS,
    Ask,
    Begin,
    Broken,
    GuideCompiled,
    Happened,
    Here,
    LinkOffer,
    Ordered,
    Ready,
    RemoteOrder,
    Upward,
    packed,
    unpacked,
    upward,
)
from antiphon.runtime.messages import Failed, LoadProgress
from antiphon.runtime.queued_link import QueuedLink
from antiphon.runtime.stage_child import Child, outlook, status_words

log = logging.getLogger(__name__)

TICK_S = 0.5
ASK_AFTER_S = 5.0
MOST_WAITING_ORDERS = 4096
"""That a process doesn't take: it counts as dead then."""
MOST_WAITING_BYTES = 1 << 30

Show = Callable[[str, int, int], None]


class StageProcesses:
    """Owner of the processes, and of the numbers of orders. For one thread.

    units  by process
    peers  pairs of processes that exchange payloads, with the connector that joins them
    begin  what a process is told first, given its name and the number of the first order it may get
    """

    def __init__(
        self,
        units: dict[str, tuple[str, ...]],
        peers: dict[frozenset[str], str],
        begin: Callable[[str, int], Begin],
        options: EngineOptions,
    ) -> None:
        self._facts: list[Fact] = []
        self._compiled: list[GuideCompiled] = []
        self._parcels: list[tuple[QueuedLink, Message]] = []
        self._number = 0
        self._peers = peers
        self._begin = begin
        self._start_limit_s = options.start_limit_s
        self._silence_limit_s = options.silence_limit_s
        self._children = {name: Child(name, names) for name, names in units.items()}
        self._pumped_at = 0.0
        self._epoll = select.epoll()
        self._finalize = weakref.finalize(self, _end_all, self._children, self._epoll)

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """All at once; nothing waits."""
        for child in self._children.values():
            self._start(child)

    def wait_until_ready(self, show: Show) -> None:
        """All of them, whose progress is shown. Raises AntiphonError with the name of the one that is
        late, or the words of the one that failed."""
        while not all(child.is_ready for child in self._children.values()):
            self._epoll.poll(TICK_S)
            for child in self._children.values():
                self._wait_for(child, show)
        self._facts.clear()

    def close(self) -> None:
        self._finalize()

    def fileno(self) -> int:
        """Readable when `pump` has something to do, but for a restart that is due."""
        return self._epoll.fileno()

    def pump(self) -> None:
        """Take in what has come, notice which have gone, start those whose time has come."""
        now = time.monotonic()
        for child in self._children.values():
            if child.link is not None:
                self._take(child)
            elif child.restart_at is not None and now >= child.restart_at:
                self._start(child)
            if child.process is not None and not child.is_ready and now > child.deadline:
                self._bury(child, f"was not ready within {self._start_limit_s:g} s")
        self._look_after(now)

    def take_facts(self) -> list[Fact]:
        """What they reported, and what was noticed of them, in order; once."""
        facts, self._facts = self._facts, []
        return facts

    def take_compiled(self) -> list[GuideCompiled]:
        """Guides that are there; once."""
        compiled, self._compiled = self._compiled, []
        return compiled

    def take_parcels(self) -> list[tuple[QueuedLink, Message]]:
        """What came for units of this process, to be released to the link it came by; once."""
        parcels, self._parcels = self._parcels, []
        return parcels

    # -- what they are told --------------------------------------------------------------------------

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def order(self, process: str, number: int, order: RemoteOrder) -> None:
        """To a process that isn't there: nothing."""
        self.tell(process, Ordered(number, order))

    def tell(self, process: str, message: Ordered | Broken | Ask) -> None:
        child = self._children[process]
        if child.is_ready and child.link is not None:
            child.link.send(packed(ORDERS if isinstance(message, Ordered) else WORDS, message))
            if child.link.num_waiting > MOST_WAITING_ORDERS or child.link.waiting_bytes > MOST_WAITING_BYTES:
                self._bury(child, "takes no orders any more")

    def deliver(self, process: str, parcel: Message) -> None:
        child = self._children[process]
        if child.is_ready and child.link is not None:
            child.link.send(parcel)

    # -- what is known of them -----------------------------------------------------------------------

    @property
    def lost(self) -> dict[str, str]:
        """Units that are not there, and why."""
        return {
            unit: f"its process {child.why}{outlook(child)}"
            for child in self._children.values()
            if not child.is_ready
            for unit in child.units
        }

    @property
    def pids(self) -> dict[str, int]:
        """Of those that run. For tests that end one."""
        return {name: child.process.pid for name, child in self._children.items() if child.process}

    def restarts(self) -> Iterator[tuple[str, int]]:
        """How often each unit was started again."""
        for child in self._children.values():
            for unit in child.units:
                yield unit, max(child.num_starts - 1, 0)

    # -- one of them ---------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        try:
            self._spawn(child)
        except OSError as error:
            self._bury(child, f"had no room to start ({error})")

    def _spawn(self, child: Child) -> None:
        """Raises OSError."""
        offers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child.offers = offers
        offers.setblocking(False)
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs, held_back():
            child.process = subprocess.Popen(
                [sys.executable, "-m", "antiphon.runtime", "stage_worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": path},
            )
        link, far = shared_memory.pair()
        child.link = QueuedLink(link)
        child.progress, child.words = None, ""
        child.num_starts += 1
        child.deadline = time.monotonic() + self._start_limit_s
        child.restart_at = None
        self._epoll.register(link, select.EPOLLIN)
        self._let_in(child, LinkOffer(""), far)
        child.link.send(packed(ORDERS, self._begin(child.name, self._number + 1)))
        for other in self._children.values():
            connector = self._peers.get(frozenset((child.name, other.name)))
            if other is not child and other.offers is not None and connector is not None:
                self._introduce(child, other, connector)

    def _introduce(self, one: Child, other: Child, connector: str) -> None:
        ends = shared_memory.between() if connector == "shared_memory" else tcp.between()
        self._let_in(one, LinkOffer(other.name, connector), ends[0])
        self._let_in(other, LinkOffer(one.name, connector), ends[1])

    def _let_in(self, child: Child, offer: LinkOffer, connection: socket.socket) -> None:
        """Give the process one end of a link. If it is gone, its own link says so."""
        with connection, contextlib.suppress(OSError):
            assert child.offers is not None
            socket.send_fds(child.offers, [encode(offer)], [connection.fileno()])

    def _take(self, child: Child) -> None:
        assert child.link is not None
        try:
            for message in child.link.poll():
                if message.kind == "Parcel":
                    self._parcels.append((child.link, message))
                else:
                    said = unpacked(message, upward)
                    child.link.release(message)
                    self._hear(child, said)
        except ConnectorClosed:
            self._bury(child, "")
        except (msgspec.MsgspecError, AntiphonError) as error:
            self._bury(child, f"said what cannot be read ({error})")

    def _look_after(self, now: float) -> None:
        """A silent process is asked if it is there, and answers between two steps. One that doesn't hangs,
        and has to go. Others may wait for just that one, so they have their time again; so have all after a
        pause of this process, in which they may have been stopped as well.
        """
        there = [child for child in self._children.values() if child.is_ready and child.process is not None]
        hanging = [child for child in there if child.hangs(now, self._silence_limit_s)]
        begin_again = hanging or now - self._pumped_at > ASK_AFTER_S
        self._pumped_at = now
        for child in there:
            if child.asked_at is not None and begin_again:
                child.asked(now)
            elif child.asked_at is None and now - child.heard_at > min(ASK_AFTER_S, self._silence_limit_s):
                child.asked(now)
                self.tell(child.name, Ask())
        if hanging:
            first = min(hanging, key=lambda child: child.heard_at)
            self._bury(first, f"hangs: no answer for {self._silence_limit_s:g} s")

    def _hear(self, child: Child, said: Upward) -> None:
        child.heard_at, child.asked_at = time.monotonic(), None
        match said:
            case Here():
                pass
            case Happened():
                self._facts.append(said.fact)
            case GuideCompiled():
                self._compiled.append(said)
            case Ready():
                child.why = ""
                child.restarts.ready(child.heard_at)
                self._facts += [UnitReady(unit) for unit in child.units]
                if child.num_starts > 1:
                    log.warning("process %s is there again", child.name)
            case Failed():
                child.words = said.message
            case LoadProgress():
                child.progress = said

    def _bury(self, child: Child, why: str) -> None:
        """It is gone, or has to go: its units are lost, and it is started again unless that is of no use."""
        was_ready = child.is_ready
        if child.link is not None:
            self._epoll.unregister(child.link)
        self._parcels = [(link, parcel) for link, parcel in self._parcels if link is not child.link]
        status = child.end(is_dying=not why)
        child.why = why or child.words or status_words(status)
        now = time.monotonic()
        wait_s = child.restarts.wait_s(now)
        child.restart_at = None if wait_s is None else now + wait_s
        if was_ready:
            self._facts += [UnitLost(unit, f"its process {child.why}") for unit in child.units]
        log.error("process %s %s%s", child.name, child.why, outlook(child))

    def _wait_for(self, child: Child, show: Show) -> None:
        """Of the first start, which is not tried again. What a process said last is shown although it is
        ready now: a small stage says what it loads and that it is ready in one breath."""
        was_ready = child.is_ready
        if child.link is not None:
            self._take(child)
        if child.process is None:
            raise AntiphonError(f"the process {child.name!r} of {_names(child)} could not start: {child.why}")
        if not child.is_ready and time.monotonic() > child.deadline:
            raise AntiphonError(
                f"the process {child.name!r} of {_names(child)} was not ready within "
                f"{self._start_limit_s:g} s ({_at(child.progress)}); raise start_limit_s or find out why"
            )
        said = child.progress or LoadProgress(f"starting {child.name}", 0, 0)
        if not was_ready:
            show(said.what, said.done, said.total)


def _end_all(children: dict[str, Child], epoll: select.epoll) -> None:
    """They have no state worth a goodbye."""
    epoll.close()
    for child in children.values():
        if child.process is not None:
            child.process.kill()
    for child in children.values():
        child.end()
        child.why, child.restart_at = "has ended", None


def _names(child: Child) -> str:
    return ", ".join(child.units)


def _at(progress: LoadProgress | None) -> str:
    if progress is None:
        return "it has not begun to load"
    share = f" at {progress.done / progress.total:.0%}" if progress.total else ""
    return f"{progress.what}{share}"
