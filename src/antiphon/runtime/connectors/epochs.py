"""What a receiver still wants: payloads of an epoch that is over are dropped as they come."""

from __future__ import annotations

from antiphon.core.message import Message
from antiphon.core.ports import Connector


class Epochs:
    """The current epoch of each request or session that this receiver has been told of.

    num_stale  messages dropped so far
    """

    def __init__(self) -> None:
        self._current: dict[int | str, int] = {}
        self.num_stale = 0

    def begin(self, about: int | str, epoch: int) -> None:
        """From now on only this epoch and later ones; an earlier one than the current changes nothing."""
        self._current[about] = max(epoch, self._current.get(about, epoch))

    def end(self, about: int | str) -> None:
        """It is over, and nothing of it comes any more."""
        self._current.pop(about, None)

    def is_stale(self, message: Message) -> bool:
        """False for what is about nobody or somebody unknown."""
        return message.about is not None and message.epoch < self._current.get(message.about, message.epoch)

    def fresh(self, connector: Connector) -> list[Message]:
        """`connector.poll()` without the stale ones, which are released at once. Raises as `poll` does."""
        messages: list[Message] = []
        for message in connector.poll():
            if self.is_stale(message):
                self.num_stale += 1
                connector.release(message)
            else:
                messages.append(message)
        return messages
