"""The receiving side of a link, without I/O: frames become messages; released messages become credit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphon.runtime.connectors.frames import Garbled, Opening, Part, Returned, spread
from antiphon.runtime.connectors.limits import LinkLimits
from antiphon.runtime.connectors.port import Array, Message


@dataclass(slots=True)
class _Arriving:
    """A message of which pieces are missing.

    size      header and body bytes; arrived: of these, here
    repaid    credit given back before the message is complete: what is over the window
    places    pieces that stay in the arena, for the receiver to look at there
    """

    opening: Opening
    spans: list[tuple[int, int]]
    size: int
    body: memoryview
    arrived: int = 0
    filled: int = 0
    repaid: int = 0
    places: tuple[int, ...] = ()


class Inbox:
    """Owns what has arrived and is not released. `give_back` sends credit; `shared` is the sender's arena."""

    def __init__(
        self, limits: LinkLimits, give_back: Callable[[Returned], None], shared: memoryview | None = None
    ) -> None:
        self._limits = limits
        self._give_back = give_back
        self._shared = shared
        self._arriving: dict[str, _Arriving] = {}
        self._used: dict[str, list[int]] = {}  # channel -> messages, bytes of its window
        self._held: dict[int, Returned] = {}
        self._messages: list[Message] = []
        self._num_tickets = 0

    def take(self) -> list[Message]:
        """The messages that are complete, once."""
        messages, self._messages = self._messages, []
        return messages

    def release(self, message: Message) -> None:
        held = self._held.pop(message.ticket, None) if message.ticket is not None else None
        if held is not None:
            self._repay(held)

    def close(self) -> None:
        """Let go of the memory; what was taken and is not released stays as it is."""
        self._shared = None
        self._arriving.clear()
        self._messages.clear()
        self._held.clear()

    def begin(self, head: Opening | Part, num_body_bytes: int) -> memoryview:
        """Where the body that follows is to be read into. Raises Garbled, before anything is allocated."""
        if num_body_bytes != (head.piece if head.place is None else 0):
            raise Garbled(f"{num_body_bytes} bytes where {head.piece} were announced")
        shared = None if head.place is None else self._at(head.place, head.piece)
        arriving = (
            self._opened(head, shared) if isinstance(head, Opening) else self._arriving.get(head.channel)
        )
        if arriving is None:
            raise Garbled(f"a part of no message on channel {head.channel!r}")
        if arriving.filled + head.piece > len(arriving.body):
            raise Garbled("a message longer than announced")
        units = _units(head) if shared is None else min(_units(head), self._limits.window_bytes)
        self._use(head.channel, int(isinstance(head, Opening)), units)
        return arriving.body[arriving.filled : arriving.filled + num_body_bytes]

    def finish(self, head: Opening | Part) -> None:
        """What was begun is there."""
        arriving = self._arriving[head.channel]
        arriving.arrived += _units(head)
        if not arriving.places:
            self._keep(head, arriving)
        if arriving.arrived == arriving.size:
            self._deliver(self._arriving.pop(head.channel))

    def _keep(self, head: Opening | Part, arriving: _Arriving) -> None:
        """A piece of a message that is put together here: its place is free, and what of the message is over
        the window is paid back at once."""
        freed: tuple[int, ...] = ()
        if head.place is not None:
            arriving.body[arriving.filled : arriving.filled + head.piece] = self._at(head.place, head.piece)
            freed = (head.place,)
        arriving.filled += head.piece
        early = max(0, min(arriving.arrived, arriving.size - self._limits.window_bytes) - arriving.repaid)
        arriving.repaid += early
        if early or freed:
            self._repay(Returned(head.channel, 0, early, freed))

    def _opened(self, opening: Opening, shared: memoryview | None) -> _Arriving:
        if opening.channel in self._arriving:
            raise Garbled(f"a message within another one on channel {opening.channel!r}")
        if opening.channel not in self._used and len(self._used) >= self._limits.max_channels:
            raise Garbled(f"more than {self._limits.max_channels} channels")
        try:
            spans, body_bytes = spread(opening.arrays)
        except ValueError as error:
            raise Garbled(str(error)) from None
        size = len(opening.header) + body_bytes
        if size > self._limits.max_message_bytes:
            raise Garbled(f"a message of {size} bytes; {self._limits.max_message_bytes} are allowed")
        stays = shared is not None and opening.piece == body_bytes
        body = shared if stays and shared is not None else np.empty(body_bytes, np.uint8).data
        places = (opening.place,) if stays and opening.place is not None else ()
        arriving = _Arriving(opening, spans, size, body, places=places)
        self._arriving[opening.channel] = arriving
        return arriving

    def _at(self, place: int, num_bytes: int) -> memoryview:
        if self._shared is None or place + num_bytes > len(self._shared):
            raise Garbled(f"{num_bytes} bytes at place {place}, which is not in the arena")
        return self._shared[place : place + num_bytes]

    def _deliver(self, arriving: _Arriving) -> None:
        opening, body = arriving.opening, arriving.body
        self._num_tickets += 1
        arrays = [
            Array(dtype, shape, body[start:end])
            for (dtype, shape), (start, end) in zip(opening.arrays, arriving.spans, strict=True)
        ]
        self._messages.append(
            Message(
                opening.channel,
                opening.kind,
                opening.header,
                tuple(arrays),
                self._num_tickets,
            )
        )
        left = min(arriving.size, self._limits.window_bytes)
        self._held[self._num_tickets] = Returned(opening.channel, 1, left, arriving.places)

    def _use(self, channel: str, num_messages: int, num_bytes: int) -> None:
        used = self._used.setdefault(channel, [0, 0])
        used[0] += num_messages
        used[1] += num_bytes
        if used[0] > self._limits.window_messages or used[1] > self._limits.window_bytes:
            raise Garbled(f"channel {channel!r} sends without credit")

    def _repay(self, credit: Returned) -> None:
        used = self._used[credit.channel]
        used[0] -= credit.num_messages
        used[1] -= credit.num_bytes
        if used == [0, 0]:
            del self._used[credit.channel]
        self._give_back(credit)


def _units(head: Opening | Part) -> int:
    """What a frame uses of the window."""
    return head.piece + (len(head.header) if isinstance(head, Opening) else 0)
