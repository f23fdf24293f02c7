"""A connector over a connected stream socket: Unix (with arenas: shared memory) or TCP."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from itertools import islice

from antiphon.core.errors import ConnectorClosed, PeerLost, system_words
from antiphon.runtime.connectors.arena import Arena
from antiphon.runtime.connectors.frames import SOON, Bye, Garbled, Head, Opening, Part, Returned, Soon, pack
from antiphon.runtime.connectors.inbox import Inbox
from antiphon.runtime.connectors.limits import LinkLimits
from antiphon.runtime.connectors.outbox import LinkOutbox
from antiphon.runtime.connectors.port import Credit, Message
from antiphon.runtime.connectors.reader import FrameReader

QUEUE_BYTES = 1 << 20
"""Frames are made while fewer bytes than this wait for the socket: a short message overtakes a long one."""
LINGER_S = 300e-6
"""How long `poll` stays for a body that is being put into the arena: a process that went to sleep again would
take as long to wake up."""
VIEWS_PER_CALL = 64
HEAD_ROOM_BYTES = 64 << 10


class StreamConnector:
    """Implements `port.Connector`. Owns the socket.

    arena   where this end puts large bodies for the peer
    shared  where the peer puts them
    """

    def __init__(
        self,
        connection: socket.socket,
        limits: LinkLimits,
        arena: Arena | None = None,
        shared: memoryview | None = None,
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._outbox = LinkOutbox(limits, arena)
        self._inbox = Inbox(limits, self._return, shared)
        self._reader = FrameReader(self._begin, self._finish, limits.max_header_bytes + HEAD_ROOM_BYTES)
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._end: ConnectorClosed | None = None  # why nothing comes any more
        self._is_closed = False
        self._is_deaf = False  # the peer takes nothing any more; what it said before is still to be read
        self._awaits_room = False
        self._lingers_until = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    # -- port.Connector ------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self._check_open()
        self._check_end()
        self._outbox.add(message)
        self._write()

    def can_send(self, channel: str) -> bool:
        return not self._is_closed and not self._is_deaf and self._outbox.can_send(channel)

    def credit(self, channel: str) -> Credit:
        return self._outbox.credit(channel)

    def poll(self) -> list[Message]:
        self._check_open()
        self._read()
        self._write()
        messages = self._inbox.take()
        while not messages and self._end is None and time.monotonic() < self._lingers_until:
            self._read()
            self._write()
            messages = self._inbox.take()
        if not messages:
            self._check_end()
        return messages

    def release(self, message: Message) -> None:
        self._inbox.release(message)

    def fileno(self) -> int:
        self._check_open()
        return self._selector.fileno()

    def close(self, linger_s: float = 0.0) -> None:
        if self._is_closed:
            return
        self._linger(time.monotonic() + linger_s)
        self._is_closed = True
        self._selector.close()
        self._socket.close()
        self._inbox.close()
        self._outbox.close()
        self._queue.clear()

    # -- the end -------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectorClosed("this end of the connector is closed")

    def _check_end(self) -> None:
        """Raised anew each time: an exception that is kept would keep the frames it went through."""
        if self._end is not None:
            raise type(self._end)(*self._end.args)

    def _linger(self, until: float) -> None:
        """Send what waits and say goodbye; over TCP, wait until it was heard. As far as time allows."""
        self._write()
        while not self._outbox.is_empty and self._wait(until):
            self._write()
        self._enqueue([memoryview(pack(Bye()))])
        self._flush()
        while self._queue and self._wait(until):
            self._flush()
        self._hang_up(socket.SHUT_WR)
        # what comes in when a TCP socket is closed resets the connection, and takes what was sent along
        while self._socket.family != socket.AF_UNIX and self._wait(until):
            pass

    def _wait(self, until: float) -> bool:
        """Read what comes; false when time is over or the peer gone."""
        left_s = until - time.monotonic()
        if self._end is not None or left_s <= 0:
            return False
        self._selector.select(left_s)
        self._read()
        return True

    def _lose(self, why: str) -> None:
        """No goodbye was said. The descriptor stays readable, since the socket is at its end."""
        if self._end is None:
            self._end = PeerLost(f"the other end of the connector {why}")
        self._hang_up(socket.SHUT_RDWR)

    def _hang_up(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)
        self._drop_queue()

    def _drop_queue(self) -> None:
        self._is_deaf = True
        self._queue.clear()
        self._queued_bytes = 0
        self._watch_room(False)

    # -- in ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._end is not None:
            return
        goes_on = True
        try:
            goes_on = self._reader.read(self._socket)
        except Garbled as error:
            self._lose(f"sent {error}")
        except OSError as error:
            self._lose(f"is gone ({system_words(error)})")
        if not goes_on and self._end is None:
            where = "" if self._reader.is_between_frames else " in the middle of a message"
            self._lose(f"is gone{where}: its process has ended, or was killed")

    def _begin(self, head: Head, num_body_bytes: int) -> memoryview:
        if isinstance(head, Opening | Part):
            return self._inbox.begin(head, num_body_bytes)
        if num_body_bytes:
            raise Garbled("a body where none belongs")
        return memoryview(b"")

    def _finish(self, head: Head) -> None:
        match head:
            case Opening() | Part():
                self._inbox.finish(head)
            case Returned():
                self._outbox.returned(head)
            case Soon():
                self._lingers_until = time.monotonic() + LINGER_S
            case Bye():
                self._end = ConnectorClosed("the other end of the connector has closed")
                self._hang_up(socket.SHUT_WR)

    # -- out -----------------------------------------------------------------------------------------

    def _return(self, credit: Returned) -> None:
        if not self._is_closed:
            self._enqueue([memoryview(pack(credit))])
            self._flush()

    def _write(self) -> None:
        """Make frames as long as credit and the socket take them: until the socket is full, which wakes this
        end when it isn't, or until there is nothing to send or no credit."""
        if self._queue:
            self._flush()
        frames = self._outbox.frames()
        while not self._is_deaf and not self._queue:
            while self._queued_bytes < QUEUE_BYTES and (frame := next(frames, None)) is not None:
                self._enqueue(frame)
                if frame[0] is SOON:
                    self._flush()
            if not self._queue:
                return
            self._flush()

    def _enqueue(self, views: list[memoryview]) -> None:
        if not self._is_deaf:
            for view in views:
                self._queue.append(view)
                self._queued_bytes += len(view)

    def _flush(self) -> None:
        try:
            while self._queue:
                self._sent(self._socket.sendmsg(list(islice(self._queue, VIEWS_PER_CALL))))
        except BlockingIOError:
            pass
        except OSError:
            self._drop_queue()
            return
        self._watch_room(bool(self._queue))

    def _sent(self, count: int) -> None:
        self._queued_bytes -= count
        while count:
            view = self._queue[0]
            if count < len(view):
                self._queue[0] = view[count:]
                return
            count -= len(view)
            self._queue.popleft()

    def _watch_room(self, wanted: bool) -> None:
        if wanted != self._awaits_room:
            self._awaits_room = wanted
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(self._socket, events)
