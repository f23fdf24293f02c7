"""The sending side of a link, without I/O: windows of credit, messages cut into frames, channels in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon.core.errors import LimitExceeded, NoCredit
from antiphon.runtime.connectors.arena import Arena
from antiphon.runtime.connectors.frames import ALIGN, SOON, Garbled, Opening, Part, Returned, pack, spread
from antiphon.runtime.connectors.limits import LinkLimits
from antiphon.runtime.connectors.port import Credit, Message

ARENA_FROM_BYTES = 32 << 10
"""Smaller pieces go over the socket: two short copies are cheaper than a place to give back."""
SOON_FROM_BYTES = 256 << 10
"""To wake a process up takes as long as to copy so much or more: with such bodies it is done at once."""
_PADDING = memoryview(bytes(ALIGN))


@dataclass(slots=True)
class _Sending:
    """A message on its way. `left` counts header and body bytes that are not in a frame yet."""

    message: Message
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    body: list[memoryview]
    left: int
    is_whole: bool
    opened: bool = False

    def take(self, num_bytes: int) -> list[memoryview]:
        """The next bytes of the body."""
        views: list[memoryview] = []
        while num_bytes:
            view = self.body[0][:num_bytes]
            views.append(view)
            num_bytes -= len(view)
            if len(view) == len(self.body[0]):
                self.body.pop(0)
            else:
                self.body[0] = self.body[0][len(view) :]
        return views


@dataclass(slots=True)
class _Channel:
    """The credit that is left, and the messages that wait for more of it, or for the socket."""

    num_messages: int
    num_bytes: int
    waiting: deque[_Sending] = field(default_factory=deque["_Sending"])
    waiting_bytes: int = 0


class LinkOutbox:
    """Owns the channels of one direction of a link. With an arena, large bodies are put there."""

    def __init__(self, limits: LinkLimits, arena: Arena | None = None) -> None:
        self._limits = limits
        self._arena = arena
        self._channels: dict[str, _Channel] = {}
        self._ready: dict[str, None] = {}

    @property
    def is_empty(self) -> bool:
        return not any(channel.waiting for channel in self._channels.values())

    def close(self) -> None:
        """Let go of the memory and of what waits."""
        self._arena = None
        self._channels.clear()
        self._ready.clear()

    def credit(self, name: str) -> Credit:
        channel = self._channels.get(name)
        if channel is None:
            return Credit(self._limits.window_messages, self._limits.window_bytes)
        return Credit(channel.num_messages, max(0, channel.num_bytes - channel.waiting_bytes))

    def can_send(self, name: str) -> bool:
        channel = self._channels.get(name)
        if channel is None:
            return len(self._channels) < self._limits.max_channels
        return channel.num_messages > 0 and channel.num_bytes > channel.waiting_bytes

    def add(self, message: Message) -> None:
        """Raises NoCredit, LimitExceeded, ValueError for arrays whose data is not what they say."""
        sending = self._prepared(message)
        if not self.can_send(message.channel):
            raise NoCredit(message.channel)
        channel = self._channels.setdefault(
            message.channel, _Channel(self._limits.window_messages, self._limits.window_bytes)
        )
        channel.num_messages -= 1
        channel.waiting.append(sending)
        channel.waiting_bytes += sending.left
        self._ready[message.channel] = None

    def _prepared(self, message: Message) -> _Sending:
        size = check(message, self._limits)
        shapes = tuple([(array.dtype, array.shape) for array in message.arrays])
        spans, body_bytes = spread(shapes)
        views: list[memoryview] = []
        end = 0
        for (start, stop), array in zip(spans, message.arrays, strict=True):
            if start > end:
                views.append(_PADDING[: start - end])
            if stop > start:
                views.append(memoryview(array.data))
            end = stop
        whole = self._arena is not None and ARENA_FROM_BYTES <= body_bytes <= self._limits.arena_bytes
        return _Sending(message, shapes, views, size, whole)

    def frames(self) -> Iterator[list[memoryview]]:
        """All that credit allows, the channels in turns; each as views to be written one after another. SOON
        alone is worth nothing later.
        """
        while self._ready:
            name = next(iter(self._ready))
            if self._is_long(self._channels[name]):
                yield [SOON]
            del self._ready[name]
            frame = self._next_of(name, self._channels[name])
            if frame is not None:
                yield frame

    def _is_long(self, channel: _Channel) -> bool:
        """Will the channel's next frame be in the arena, and take its time to get there?"""
        sending = channel.waiting[0]
        return sending.is_whole and min(sending.left, channel.num_bytes) >= SOON_FROM_BYTES

    def _next_of(self, name: str, channel: _Channel) -> list[memoryview] | None:
        """The channel's next frame, or None if it has to wait for credit."""
        sending = channel.waiting[0]
        header = 0 if sending.opened else len(sending.message.header)
        wanted = (
            sending.left if sending.is_whole else min(sending.left, max(header, self._limits.piece_bytes))
        )
        if min(wanted, self._limits.window_bytes) > channel.num_bytes:
            return None
        place, views = self._placed(sending, wanted - header)
        if place is None and sending.is_whole:
            sending.is_whole = False  # no room in the arena: over the socket, and piece by piece
            wanted = min(sending.left, max(header, self._limits.piece_bytes))
        piece = wanted - header
        if place is None:
            views = sending.take(piece)
        channel.num_bytes -= min(wanted, self._limits.window_bytes)
        head = _head(name, sending, piece, place)
        sending.opened, sending.left = True, sending.left - wanted
        channel.waiting_bytes -= wanted
        if not sending.left:
            channel.waiting.popleft()
        if channel.waiting:
            self._ready[name] = None
        return [memoryview(pack(head, 0 if place is not None else piece)), *views]

    def _placed(self, sending: _Sending, piece: int) -> tuple[int | None, list[memoryview]]:
        """Puts the next `piece` bytes into the arena if there is one, it has room and they are worth it."""
        if self._arena is None or piece < ARENA_FROM_BYTES:
            return None, []
        body = list(sending.body)
        place = self._arena.put(sending.take(piece), piece)
        if place is None:
            sending.body = body
        return place, []

    def returned(self, credit: Returned) -> None:
        """Credit came back. Raises Garbled for more than was given out."""
        channel = self._channels.get(credit.channel)
        if channel is None:
            raise Garbled(f"credit for channel {credit.channel!r}, on which nothing is")
        for place in credit.places:
            if self._arena is None:
                raise Garbled("a place given back, where there is no arena")
            self._arena.free(place)
        channel.num_messages += credit.num_messages
        channel.num_bytes += credit.num_bytes
        window = self._limits.window_messages, self._limits.window_bytes
        if channel.num_messages > window[0] or channel.num_bytes > window[1]:
            raise Garbled(f"more credit for channel {credit.channel!r} than was used")
        if channel.waiting:
            self._ready[credit.channel] = None
        elif (channel.num_messages, channel.num_bytes) == window:
            del self._channels[credit.channel]  # as good as new


def check(message: Message, limits: LinkLimits) -> int:
    """The message's bytes. Raises LimitExceeded; ValueError for arrays whose data is not what they say."""
    for array in message.arrays:
        if len(array.data) != array.num_bytes:
            raise ValueError(f"{array.dtype} {array.shape} with {len(array.data)} bytes of data")
    size = len(message.header) + spread([(array.dtype, array.shape) for array in message.arrays])[1]
    if len(message.header) + len(message.channel) + len(message.kind) > limits.max_header_bytes:
        hint = "What is large belongs into arrays"
        raise LimitExceeded("max_header_bytes", limits.max_header_bytes, len(message.header), hint)
    if size > limits.max_message_bytes:
        raise LimitExceeded(
            "max_message_bytes", limits.max_message_bytes, size, "Send it in several messages"
        )
    return size


def _head(name: str, sending: _Sending, piece: int, place: int | None) -> Opening | Part:
    if sending.opened:
        return Part(name, piece, place)
    message = sending.message
    return Opening(name, message.kind, message.header, sending.shapes, piece, place)
