"""One end of a link with whatever waits until the other end takes it."""

from __future__ import annotations

import contextlib
from collections import deque

from antiphon.core.errors import ConnectorClosed
from antiphon.runtime.connectors.port import Connector, Message


class QueuedLink:
    """A link, and behind each channel a queue of what has no credit yet. The sender looks at
    `num_waiting` and `waiting_bytes`: nothing here is refused."""

    def __init__(self, link: Connector) -> None:
        self._link = link
        self._queues: dict[str, deque[Message]] = {}
        self.waiting_bytes = 0

    @property
    def num_waiting(self) -> int:
        """Messages, of all channels."""
        return sum(map(len, self._queues.values()))

    def send(self, message: Message) -> None:
        """In order within its channel. To a peer that is gone: nothing; `poll` says so."""
        queue = self._queues.setdefault(message.channel, deque())
        queue.append(message)
        self.waiting_bytes += _size(message)
        self._flush()

    def poll(self) -> list[Message]:
        """What has come. Raises ConnectorClosed, PeerLost."""
        messages = self._link.poll()
        self._flush()
        return messages

    def release(self, message: Message) -> None:
        self._link.release(message)

    def fileno(self) -> int:
        return self._link.fileno()

    def close(self, linger_s: float = 0.0) -> None:
        self._link.close(linger_s)

    def _flush(self) -> None:
        with contextlib.suppress(ConnectorClosed):
            for channel, queue in self._queues.items():
                while queue and self._link.can_send(channel):
                    self._link.send(queue[0])
                    self.waiting_bytes -= _size(queue.popleft())


def _size(message: Message) -> int:
    return len(message.header) + sum(array.num_bytes for array in message.arrays)
