"""What lies in shared memory, what doesn't, and who keeps the books."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ConfigError, PeerLost
from antiphon.runtime.connectors import arena as arenas
from antiphon.runtime.connectors import shared_memory
from antiphon.runtime.connectors.arena import Arena, new_memory
from antiphon.runtime.connectors.frames import SOON, Garbled
from antiphon.runtime.connectors.limits import MIB, LinkLimits
from antiphon.runtime.connectors.port import Array, Connector, Message
from antiphon.runtime.connectors.stream import StreamConnector
from fakes.links import readable, receive


@pytest.fixture
def ends() -> Iterator[tuple[Connector, Connector]]:
    near, far = shared_memory.pair(LinkLimits(window_bytes=4 * MIB, arena_bytes=4 * MIB))
    pair = near, shared_memory.join(far)
    yield pair
    for end in pair:
        end.close()


def of(value: int, num_bytes: int) -> Message:
    return Message(str(value), "k", arrays=(Array.of(np.full(num_bytes, value, np.uint8)),))


def test_large_bodies_are_looked_at_where_they_lie(ends: tuple[Connector, Connector]) -> None:
    """Until they are released; then their place is written anew."""
    one, other = ends
    one.send(of(1, MIB))
    (message,) = receive(one, other, 1)
    values = message.arrays[0].numpy()
    assert (values == 1).all()
    assert values.ctypes.data % 64 == 0
    other.release(message)
    while one.credit("1").num_messages < 64:
        one.poll()
    one.send(of(2, MIB))
    assert (receive(one, other, 1)[0].arrays[0].numpy() == 2).all()
    assert (values == 2).all()


def test_a_body_that_was_announced_and_does_not_come_holds_nobody_up() -> None:
    """`poll` looks out for it for a moment, and goes on."""
    one, other = socket.socketpair()
    link = StreamConnector(one, LinkLimits())
    other.sendall(SOON)
    assert readable(link, 5.0)
    before = time.monotonic()
    assert link.poll() == []
    assert time.monotonic() - before < 4.0, "and not until a limit of silence"
    other.close()
    with pytest.raises(PeerLost):
        link.poll()
    link.close()


def test_what_is_over_the_window_takes_all_of_it() -> None:
    """It lies there whole, if it fits; nothing else is sent on its channel until it is released."""
    near, far = shared_memory.pair(LinkLimits(window_bytes=MIB, max_header_bytes=1000, arena_bytes=8 * MIB))
    other = shared_memory.join(far)
    near.send(of(1, 8 * MIB))
    assert near.credit("1").num_bytes == 0
    (message,) = other.poll()
    assert (message.arrays[0].numpy() == 1).all()
    other.release(message)
    assert near.poll() == []
    assert near.credit("1") == near.credit("new")
    near.close()
    other.close()


def test_a_full_arena_holds_nobody_up(ends: tuple[Connector, Connector]) -> None:
    """What has no room there goes over the socket; nothing that is held changes."""
    one, other = ends
    for value in range(1, 9):
        one.send(of(value, MIB))
    messages = receive(one, other, 8)
    for message in messages:
        assert (message.arrays[0].numpy() == int(message.channel)).all()


def test_memory_stays_mapped_while_it_is_looked_at(ends: tuple[Connector, Connector]) -> None:
    one, other = ends
    one.send(of(5, MIB))
    values = receive(one, other, 1)[0].arrays[0].numpy()
    one.close()
    other.close()
    assert values.sum() == 5 * MIB


def test_memory_cannot_be_pulled_away() -> None:
    descriptor = new_memory(MIB)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_without_memfd_a_file_without_a_name_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arenas.os, "memfd_create")
    near, far = shared_memory.pair()
    other = shared_memory.join(far)
    near.send(of(3, MIB))
    assert (receive(near, other, 1)[0].arrays[0].numpy() == 3).all()
    near.close()
    other.close()


def test_joining_another_version_or_nobody() -> None:
    near, far = socket.socketpair()
    memories = [new_memory(100), new_memory(100)]
    socket.send_fds(near, [struct.pack("<H", 9), LinkLimits().packed()], memories)
    for memory in memories:
        os.close(memory)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"version 9 .* this one 2"):
        shared_memory.join(far)
    assert len(os.listdir("/proc/self/fd")) == before
    near.close()
    with pytest.raises(PeerLost, match=r"before this one joined"):
        shared_memory.join(far)
    far.close()


def test_limits_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"window_messages is 0"):
        LinkLimits(window_messages=0)
    with pytest.raises(ConfigError, match=r"raise the window"):
        LinkLimits(window_bytes=1000)


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans(), st.integers(0, 50)), max_size=80))
def test_the_arenas_books(steps: list[tuple[int, bool, int]]) -> None:
    """Nothing overlaps, nothing is lost: all bodies stay as they were put, and freed room joins again."""
    memory = memoryview(bytearray(8192))
    arena = Arena(memory)
    lying: dict[int, bytes] = {}
    for number, (size, frees, which) in enumerate(steps):
        if frees and lying:
            place = sorted(lying)[which % len(lying)]
            arena.free(place)
            del lying[place]
        body = bytes([number % 256]) * size
        place = arena.put([memoryview(body)], size)
        if place is not None:
            lying[place] = body
        assert all(memory[place : place + len(body)] == body for place, body in lying.items())
    for place in lying:
        arena.free(place)
    with pytest.raises(Garbled, match=r"where nothing lies"):
        arena.free(0)
    assert arena.put([], 8192) == 0
