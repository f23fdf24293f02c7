"""Cuts a byte stream into frames; bodies are read to where they belong, without a stop in between."""

from __future__ import annotations

import socket
from collections.abc import Callable

from antiphon.runtime.connectors.frames import PREFIX, Garbled, Head, unpack

STAGE_BYTES = 64 << 10


class FrameReader:
    """`begin` is told every head and says where its body goes; `finish`, when the body is there.

    Short frames arrive together in the stage; what of a body is not in the stage is received into its
    destination.
    """

    def __init__(
        self, begin: Callable[[Head, int], memoryview], finish: Callable[[Head], None], max_head_bytes: int
    ) -> None:
        self._begin = begin
        self._finish = finish
        self._max_head_bytes = max_head_bytes
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._end = 0
        self._body: memoryview | None = None
        self._head: Head | None = None

    @property
    def is_between_frames(self) -> bool:
        return self._body is None and self._end == 0

    def read(self, source: socket.socket) -> bool:
        """All that is there now. False: the stream has ended. Raises Garbled, OSError."""
        while True:
            target = self._body if self._body is not None else self._stage[self._end :]
            try:
                count = source.recv_into(target)
            except BlockingIOError:
                return True
            if count == 0:
                return False
            if self._body is None:
                self._end += count
                self._parse()
                if count < len(target):
                    return True  # there was no more
            else:
                self._fill(count)

    def _fill(self, count: int) -> None:
        assert self._body is not None
        self._body = self._body[count:]
        if not len(self._body):
            self._body = None
            assert self._head is not None
            self._finish(self._head)

    def _parse(self) -> None:
        """The frames in the stage; what is left of it moves to its front."""
        start = 0
        while self._body is None and self._end - start >= PREFIX.size:
            num_head_bytes, num_body_bytes = PREFIX.unpack_from(self._stage, start)
            if num_head_bytes > self._max_head_bytes:
                raise Garbled(f"a head of {num_head_bytes} bytes; {self._max_head_bytes} are allowed")
            head_end = start + PREFIX.size + num_head_bytes
            if head_end > self._end:
                self._move(start, PREFIX.size + num_head_bytes)
                return
            head = unpack(self._stage[start + PREFIX.size : head_end])
            body = self._begin(head, num_body_bytes)
            here = min(num_body_bytes, self._end - head_end)
            if here:
                body[:here] = self._stage[head_end : head_end + here]
            start = head_end + here
            if here < num_body_bytes:
                self._head, self._body = head, body[here:]
            else:
                self._finish(head)
        self._move(start, 0)

    def _move(self, start: int, room: int) -> None:
        """What is in the stage from `start` on goes to its front; the stage has at least this room."""
        rest = self._end - start
        if not rest:
            self._end = 0
            return
        stage = self._stage if room <= len(self._stage) else memoryview(bytearray(room))
        stage[:rest] = self._stage[start : self._end]
        self._stage, self._end = stage, rest
