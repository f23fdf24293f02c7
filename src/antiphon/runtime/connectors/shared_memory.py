"""Two processes of one host: a Unix socket for heads and short bodies, an arena each way for long ones.

The arenas have no name: their descriptors travel through the socket (SCM_RIGHTS) and are closed once they are
mapped. So whatever ends, and however, nothing is left behind.
"""

from __future__ import annotations

import os
import socket
import struct

from antiphon.core.errors import ConfigError, PeerLost
from antiphon.runtime.connectors.arena import Arena, mapped, new_memory
from antiphon.runtime.connectors.limits import PACKED_BYTES, LinkLimits
from antiphon.runtime.connectors.stream import StreamConnector

VERSION = 2
JOIN_WAIT_S = 10.0
_VERSION = struct.Struct("<H")
_GREETING_BYTES = _VERSION.size + PACKED_BYTES


def pair(limits: LinkLimits | None = None) -> tuple[StreamConnector, socket.socket]:
    """This process's end, and the socket for the other process, which calls `join` with it. Does not wait:
    what is sent before the other process has started lies ready for it. Close the socket once that process
    has it, or its death will not be noticed."""
    limits = limits or LinkLimits()
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    memories = [new_memory(limits.arena_bytes) for _ in range(2)]
    try:
        socket.send_fds(near, [_VERSION.pack(VERSION), limits.packed()], memories)
        to_peer, from_peer = (mapped(memory) for memory in memories)
    finally:
        for memory in memories:
            os.close(memory)
    return StreamConnector(near, limits, Arena(to_peer), from_peer), far


def between(limits: LinkLimits | None = None) -> tuple[socket.socket, socket.socket]:
    """Two sockets for two other processes, each of which calls `join` with its own, and need not wait for the
    other. Close both once the processes have them."""
    limits = limits or LinkLimits()
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    memories = [new_memory(limits.arena_bytes) for _ in range(2)]
    try:
        for end, mine_first in zip(ends, (memories, memories[::-1]), strict=True):
            socket.send_fds(end, [_VERSION.pack(VERSION), limits.packed()], mine_first)
    finally:
        for memory in memories:
            os.close(memory)
    return ends


def join(connection: socket.socket) -> StreamConnector:
    """The other end, from the socket that `pair` or `between` returned. Raises ConfigError where the two
    processes run different versions, PeerLost where nobody is there."""
    connection.settimeout(JOIN_WAIT_S)
    try:
        data, memories, _, _ = socket.recv_fds(connection, _GREETING_BYTES, 2)
    except OSError as error:
        raise PeerLost(f"the other end of the connector is gone ({error})") from None
    try:
        limits = _read(data)
        from_peer, to_peer = (mapped(memory) for memory in memories)
    finally:
        for memory in memories:
            os.close(memory)
    return StreamConnector(connection, limits, Arena(to_peer), from_peer)


def _read(data: bytes) -> LinkLimits:
    if len(data) != _GREETING_BYTES:
        raise PeerLost("the other end of the connector is gone: its process has ended before this one joined")
    (version,) = _VERSION.unpack_from(data)
    if version != VERSION:
        raise ConfigError(
            f"the other process speaks version {version} of the connector, this one {VERSION}: "
            "run the same release on both sides"
        )
    return LinkLimits.unpacked(data[_VERSION.size :])
