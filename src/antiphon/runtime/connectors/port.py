"""A connector as others see it: one end of a link, and what crosses it, messages on channels with arrays
beside their headers. Its contract tests run on every kind of connector."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

DTYPE_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64"), 8),
}
"""Bytes of one value, by dtype name (numpy's and torch's agree in these)."""

MAX_DIMS = 16
_NAMES = {np.dtype(name): name for name in DTYPE_BYTES if name != "bfloat16"}


class Array(msgspec.Struct, frozen=True, eq=False):
    """Values of one dtype, in C order, native byte order.

    dtype  a name in DTYPE_BYTES
    data   the bytes, contiguous: a memoryview of format "B", or bytes
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any

    @classmethod
    def of(cls, values: NDArray[Any]) -> Array:
        """Without a copy where they are contiguous. Raises ValueError for a dtype without a wire form."""
        if values.dtype.byteorder == ">":
            values = values.astype(values.dtype.newbyteorder("="))
        name = _NAMES.get(values.dtype)
        if name is None:
            raise ValueError(f"{values.dtype} arrays have no wire form; allowed: {', '.join(DTYPE_BYTES)}")
        flat = np.ascontiguousarray(values).reshape(-1)
        return cls(name, values.shape, flat.view(np.uint8).data)

    def numpy(self) -> NDArray[Any]:
        """A view of the data; bfloat16, which numpy lacks, as the bits in uint16."""
        dtype = "uint16" if self.dtype == "bfloat16" else self.dtype
        return np.ndarray(self.shape, dtype, self.data)

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.dtype, self.shape)


@lru_cache(1024)
def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Raises ValueError for what no array is."""
    if dtype not in DTYPE_BYTES or len(shape) > MAX_DIMS or min(shape, default=0) < 0:
        raise ValueError(f"no array has dtype {dtype!r} and {len(shape)} dimensions {shape[:MAX_DIMS]}")
    return prod(shape) * DTYPE_BYTES[dtype]


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message. Its arrays are given away when it is sent: nobody writes them any more.

    channel  messages of one channel stay in order and share one window of credit
    kind     what the header is, as the receiver dispatches
    header   small, encoded (usually `runtime.codec.encode` of an order or a fact)
    ticket   set by the connector that delivers: how it knows the message when it is released
    """

    channel: str
    kind: str
    header: bytes = b""
    arrays: tuple[Array, ...] = ()
    ticket: int | None = None


class Credit(msgspec.Struct, frozen=True):
    """What a channel may still send before the receiver releases something."""

    num_messages: int
    num_bytes: int


class Connector(Protocol):
    """One end of a link between two stages, of which each is used by one thread. Nothing here waits, but for
    fractions of a millisecond for what the peer is just writing.

    Messages of one channel arrive once, in order; between channels no order is promised, so that a large
    payload holds up nobody else's. Each channel has a window of credit, in messages and bytes, that the
    receiver gives back with `release`: a receiver that doesn't stops that channel's sender, and both sides'
    memory stays bounded.
    """

    def send(self, message: Message) -> None:
        """Send now, or (what is larger than the credit that is left) as credit comes back, while `poll` is
        called.

        Raises NoCredit where `can_send` is false, LimitExceeded for a message over the link's limits, and
        ConnectorClosed as `poll` does.
        """
        ...

    def can_send(self, channel: str) -> bool:
        """There is credit, and nothing of an earlier message waits for more."""
        ...

    def credit(self, channel: str) -> Credit: ...

    def poll(self) -> list[Message]:
        """All that has arrived. Takes returned credit in and sends on what waits.

        Raises ConnectorClosed once this end is closed, or the peer has closed and everything it sent was
        returned; PeerLost, which is one too, if the peer went without saying so.
        """
        ...

    def release(self, message: Message) -> None:
        """The message is consumed: its arrays are not looked at any more (their memory is written anew), and
        the sender has its credit back. Releasing twice, or after the end, does nothing."""
        ...

    def fileno(self) -> int:
        """A file descriptor that is readable while `poll` has something to do: a message, credit, the peer's
        end, or room for what waits to be sent."""
        ...

    def close(self, linger_s: float = 0.0) -> None:
        """The end; twice does nothing. What was sent and has not left yet is dropped, unless the peer takes
        it within `linger_s`."""
        ...
