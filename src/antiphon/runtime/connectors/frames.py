"""Frames on a byte stream: `<u32 head bytes, u64 body bytes>`, a msgpack head, a raw body.

A message is an Opening and as many Parts as its body needs. A piece of the body follows its head on the
stream, or lies in the sender's arena at `place`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from antiphon.runtime.connectors.port import num_bytes

PREFIX = struct.Struct("<IQ")
ALIGN = 64

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Garbled(Exception):
    """The peer said what the protocol has no meaning for."""


class Opening(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A message begins: all of it but the body, of which `piece` bytes come along."""

    channel: str
    kind: str
    header: bytes
    arrays: tuple[tuple[str, tuple[Count, ...]], ...]
    piece: Count
    place: Count | None


class Part(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The next `piece` bytes of the channel's message."""

    channel: str
    piece: Count
    place: Count | None


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Credit comes back; the places in the arena are free."""

    channel: str
    num_messages: Count
    num_bytes: Count
    places: tuple[Count, ...]


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The peer closes on purpose."""


class Soon(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A long body is being put into the arena: the peer may wake up meanwhile."""


Head = Opening | Part | Returned | Bye | Soon

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Head).decode


def pack(head: Head, num_body_bytes: int = 0) -> bytes:
    """Prefix and head; the body follows."""
    data = _encode(head)
    return PREFIX.pack(len(data), num_body_bytes) + data


SOON = memoryview(pack(Soon()))


def unpack(data: Any) -> Head:
    """Raises Garbled."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Garbled(f"a head that cannot be read ({error})") from None


def spread(arrays: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[list[tuple[int, int]], int]:
    """Where each array (dtype, shape) lies in a body, aligned; and the body's bytes. Raises ValueError."""
    spans: list[tuple[int, int]] = []
    end = 0
    for dtype, shape in arrays:
        start = -(-end // ALIGN) * ALIGN
        end = start + num_bytes(dtype, shape)
        spans.append((start, end))
    return spans, end
