"""Two stages in one process: messages are passed by reference, under the same contract."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque

from antiphon.core.errors import ConnectorClosed, NoCredit
from antiphon.core.message import Credit, Message
from antiphon.runtime.connectors.limits import LinkLimits
from antiphon.runtime.connectors.outbox import check


def pair(limits: LinkLimits | None = None) -> tuple[InlineConnector, InlineConnector]:
    """The two ends, each for one thread."""
    limits, lock = limits or LinkLimits(), threading.Lock()
    one, other = (InlineConnector(limits, lock, end) for end in socket.socketpair())
    one.peer, other.peer = other, one
    return one, other


class _Channel:
    """What was sent and not released, and of that what waits for credit (message, bytes of the window)."""

    __slots__ = ("num_bytes", "num_messages", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.num_messages = 0
        self.num_bytes = 0
        self.waiting: deque[tuple[Message, int]] = deque()
        self.waiting_bytes = 0


class InlineConnector:
    """Implements `core.ports.Connector`. A lock guards both ends' state; a byte wakes one that waits."""

    peer: InlineConnector

    def __init__(self, limits: LinkLimits, lock: threading.Lock, bell: socket.socket) -> None:
        bell.setblocking(False)
        self._limits = limits
        self._lock = lock
        self._bell = bell
        self._channels: dict[str, _Channel] = {}
        self._arrived: deque[Message] = deque()
        self._held: dict[int, tuple[str, int]] = {}
        self._num_tickets = 0
        self._is_closed = False

    def send(self, message: Message) -> None:
        self._check_open()
        size = check(message, self._limits)
        with self._lock:
            if self.peer._is_closed:
                raise ConnectorClosed("the other end of the connector has closed")
            if not self._has_credit(message.channel):
                raise NoCredit(message.channel)
            channel = self._channels.setdefault(message.channel, _Channel())
            taken = min(size, self._limits.window_bytes)
            channel.num_messages += 1
            channel.num_bytes += taken
            channel.waiting_bytes += taken
            channel.waiting.append((message, taken))
            self._hand_over(channel)

    def can_send(self, channel: str) -> bool:
        with self._lock:
            return not self._is_closed and not self.peer._is_closed and self._has_credit(channel)

    def credit(self, channel: str) -> Credit:
        with self._lock:
            return self._credit(self._channels.get(channel))

    def poll(self) -> list[Message]:
        self._check_open()
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
        with self._lock:
            messages = list(self._arrived)
            self._arrived.clear()
            if not messages and self.peer._is_closed:
                raise ConnectorClosed("the other end of the connector has closed")
        return messages

    def release(self, message: Message) -> None:
        with self._lock:
            held = self._held.pop(message.ticket, None) if message.ticket is not None else None
            if held is not None and not self.peer._is_closed and not self._is_closed:
                self.peer._returned(*held)

    def fileno(self) -> int:
        self._check_open()
        return self._bell.fileno()

    def close(self, linger_s: float = 0.0) -> None:
        """Nothing to wait for: what was handed over is there. A message that waits for credit is dropped."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._bell.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectorClosed("this end of the connector is closed")

    def _credit(self, channel: _Channel | None) -> Credit:
        used = (0, 0) if channel is None else (channel.num_messages, channel.num_bytes)
        left = max(0, self._limits.window_bytes - used[1])
        return Credit(self._limits.window_messages - used[0], left)

    def _has_credit(self, name: str) -> bool:
        channel = self._channels.get(name)
        if channel is None:
            return len(self._channels) < self._limits.max_channels
        credit = self._credit(channel)
        return credit.num_messages > 0 and credit.num_bytes > 0

    def _hand_over(self, channel: _Channel) -> None:
        """To the peer what its window has room for. A message over the window takes all of it."""
        while channel.waiting:
            message, taken = channel.waiting[0]
            if channel.num_bytes - channel.waiting_bytes + taken > self._limits.window_bytes:
                return
            channel.waiting.popleft()
            channel.waiting_bytes -= taken
            self.peer._receive(message, taken)

    def _receive(self, message: Message, taken: int) -> None:
        self._num_tickets += 1
        self._held[self._num_tickets] = message.channel, taken
        self._arrived.append(
            Message(
                message.channel,
                message.kind,
                message.header,
                message.arrays,
                self._num_tickets,
            )
        )
        self._ring()

    def _returned(self, name: str, num_bytes: int) -> None:
        channel = self._channels[name]
        channel.num_messages -= 1
        channel.num_bytes -= num_bytes
        self._hand_over(channel)
        if not channel.num_messages:
            del self._channels[name]
        self._ring()

    def _ring(self) -> None:
        """Make this end's descriptor readable; it may be full of unheard rings."""
        with contextlib.suppress(BlockingIOError):
            self.peer._bell.send(b"!")
