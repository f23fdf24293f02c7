"""What a link allows. Said once, by the end that offers the link; the other end is told."""

from __future__ import annotations

import struct

import msgspec

from antiphon.core.errors import ConfigError

MIB = 1 << 20
_PACKED = struct.Struct("<6Q")
PACKED_BYTES = _PACKED.size


class LinkLimits(msgspec.Struct, frozen=True):
    """Raises ConfigError where they contradict each other.

    window_bytes       in flight on one channel: sent and not released
    window_messages    the same, in messages
    max_message_bytes  of one message; what is larger than the window goes piece by piece, and takes all of it
    max_header_bytes   of one message's header, which is never divided
    arena_bytes        shared memory: what may lie there for the receiver, all channels together; what fits is
                       not divided. Memory is taken when it is first written
    max_channels       channels with something in flight
    """

    window_bytes: int = 32 * MIB
    window_messages: int = 64
    max_message_bytes: int = 1024 * MIB
    max_header_bytes: int = 4 * MIB
    arena_bytes: int = 128 * MIB
    max_channels: int = 1024

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"connector limits: {name} is {getattr(self, name)}; it has to be 1 or more"
                )
        if self.max_header_bytes > self.window_bytes:
            raise ConfigError(
                f"connector limits: max_header_bytes ({self.max_header_bytes}) is over window_bytes "
                f"({self.window_bytes}): such a message could never be sent; raise the window"
            )

    @property
    def piece_bytes(self) -> int:
        """Large messages are divided into these, between which other channels have their turn."""
        return max(1, min(MIB, self.window_bytes // 2))

    def packed(self) -> bytes:
        """The limits as a greeting holds them, PACKED_BYTES long."""
        return _PACKED.pack(*(getattr(self, name) for name in self.__struct_fields__))

    @classmethod
    def unpacked(cls, data: bytes) -> LinkLimits:
        """Raises ConfigError."""
        return cls(*_PACKED.unpack(data))
