"""Strangers, liars and garbage at the TCP connector."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.errors import ConfigError, PeerLost
from antiphon.runtime.connectors import tcp
from antiphon.runtime.connectors.frames import Opening, Part, Returned, pack
from antiphon.runtime.connectors.limits import LinkLimits
from antiphon.runtime.connectors.port import Connector, Message
from antiphon.runtime.connectors.stream import StreamConnector
from fakes.links import SECRET, drain, link, receive


@contextmanager
def listening(wait_s: float = 10.0) -> Iterator[tuple[tcp.Listener, Future[Connector]]]:
    listener = tcp.Listener("127.0.0.1", 0, SECRET)
    try:
        with ThreadPoolExecutor(1) as pool:
            yield listener, pool.submit(listener.accept, wait_s)
    finally:
        listener.close()


def test_another_secret_is_refused_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    """And the listener goes on: who knows the secret comes in afterwards."""
    with listening() as (listener, accepted):
        with pytest.raises(ConfigError, match=r"another secret"):
            tcp.connect(*listener.address, b"not the tests' secret")
        far = tcp.connect(*listener.address, SECRET)
        near = accepted.result()
    far.send(Message("c", "k"))
    assert receive(far, near, 1)
    near.close()
    far.close()
    assert "its secret is not ours" in caplog.text


def test_who_only_pretends_to_know_the_secret() -> None:
    """A listener that accepts anything has to prove itself too."""
    server = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        connection = server.accept()[0]
        connection.sendall(struct.pack("<8sH32s", tcp.MAGIC, tcp.VERSION, bytes(32)) + LinkLimits().packed())
        connection.recv(100)
        connection.sendall(b"\1" + bytes(32))
        connection.close()

    with ThreadPoolExecutor(1) as pool, server:
        pool.submit(pretend)
        with pytest.raises(ConfigError, match=r"does not know the secret"):
            tcp.connect(*server.getsockname(), SECRET)


def test_another_version_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(1.0) as (listener, accepted):
        hello = struct.pack("<8sH32s", tcp.MAGIC, 7, bytes(32))
        with socket.create_connection(listener.address) as connection:
            connection.sendall(hello)
            with pytest.raises(PeerLost, match=r"turned away: the other side speaks version 7 .* this one 1"):
                accepted.result()
    server = socket.create_server(("127.0.0.1", 0))

    def newer() -> None:
        connection = server.accept()[0]
        connection.sendall(hello)
        connection.recv(100)
        connection.close()

    with ThreadPoolExecutor(1) as pool, server:
        pool.submit(newer)
        with pytest.raises(ConfigError, match=r"version 7 .* this one 1: run the same release"):
            tcp.connect(*server.getsockname(), SECRET)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(60), b"ANTIPHON"])
def test_strangers_are_turned_away(said: bytes) -> None:
    """Also those who say nothing: they are not waited for."""
    with listening(0.5) as (listener, accepted), socket.create_connection(listener.address) as stranger:
        stranger.sendall(said)
        with pytest.raises(PeerLost, match=r"within 0.5 s; the last who came .* turned away"):
            accepted.result()


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with pytest.raises(PeerLost, match=r"too long|timed out"):
            tcp.connect(*address, SECRET, timeout_s=0.1)
        with pytest.raises(ConfigError, match=r"cannot listen"):
            tcp.Listener(*address, SECRET)
    with pytest.raises(PeerLost, match=r"no peer listens"):
        tcp.connect(*address, SECRET)
    with pytest.raises(ConfigError, match=r"16 or more"):
        tcp.connect(*address, b"short")


def test_the_listener_says_the_limits() -> None:
    one, other = link("tcp", LinkLimits(window_bytes=5000, max_header_bytes=1000, window_messages=3))
    assert other.credit("c") == one.credit("c")
    assert (other.credit("c").num_messages, other.credit("c").num_bytes) == (3, 5000)
    one.close()
    other.close()


@contextmanager
def known_liar() -> Iterator[tuple[Connector, Callable[[bytes], None]]]:
    """A connector, and what writes raw bytes to it as a peer that knew the secret."""
    near, far = socket.socketpair()
    limits = LinkLimits(10_000, 4, max_message_bytes=1 << 20, max_header_bytes=1000, max_channels=2)
    connector = StreamConnector(near, limits)
    try:
        yield connector, far.sendall
    finally:
        connector.close()
        far.close()


def opening(channel: str = "c", size: int = 10, piece: int = 10, **fields: object) -> bytes:
    given = {"arrays": (("uint8", (size,)),), "place": None} | fields
    head = Opening(channel, "k", b"", given["arrays"], piece, given["place"])  # type: ignore[arg-type]
    inline = piece if head.place is None else 0
    return pack(head, inline) + bytes(inline)


LIES = {
    "a head of 4294967295 bytes": struct.pack("<IQ", 2**32 - 1, 0),
    "a head that cannot be read": struct.pack("<IQ", 4, 0) + b"\xc1\xc1\xc1\xc1",
    "a head that cannot be read ": struct.pack("<IQ", 0, 0),
    "a message of 1048577 bytes": opening(size=(1 << 20) + 1),
    "1048576 are allowed": opening(arrays=(("uint8", (2**62, 2)), ("uint8", (2**62 - 1,)))),
    "no array has dtype 'object'": opening(arrays=(("object", (3,)),)),
    "no array has dtype 'uint8' and 17 dim": opening(arrays=(("uint8", (1,) * 17),)),
    "10 bytes where 11 were announced": pack(Part("c", 11, None), 10),
    "a message longer than announced": opening(size=5, piece=10),
    "a part of no message": pack(Part("c", 1, None), 1) + b"x",
    "a message within another": opening(size=20) * 2,
    "sends without credit": opening(size=9000, piece=9000) * 2,
    "sends without credit ": opening(size=0, piece=0) * 5,
    "more than 2 channels": opening("a") + opening("b") + opening("c"),
    "which is not in the arena": opening(place=0),
    "on which nothing is": pack(Returned("c", 1, 0, ())),
    "a body where none belongs": pack(Returned("c", 1, 0, ()), 5) + bytes(5),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies(lie: str) -> None:
    """A peer that cannot be right is let go, in words, before anything is allocated for it."""
    with known_liar() as (connector, say):
        say(LIES[lie])
        tracemalloc.start()
        with pytest.raises(PeerLost) as caught:
            drain(connector, [])
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert lie.strip() in str(caught.value)
        assert peak_bytes < 1 << 20


def test_too_much_credit() -> None:
    with known_liar() as (connector, say):
        connector.send(Message("c", "k", b"12345"))
        say(pack(Returned("c", 0, 3, ())) * 2)
        with pytest.raises(PeerLost, match=r"more credit"):
            connector.poll()
    with known_liar() as (connector, say):
        connector.send(Message("c", "k", b"12345"))
        say(pack(Returned("c", 0, 0, (64,))))
        with pytest.raises(PeerLost, match=r"no arena"):
            connector.poll()


@given(st.binary(max_size=200), st.integers(0, 60), st.integers(0, 40))
@settings(deadline=None, max_examples=200)
def test_garbage_between_good_frames(noise: bytes, cut: int, at: int) -> None:
    """Whatever comes: messages, or the end in words; never another exception."""
    good = opening() + opening("d", size=3, piece=2) + pack(Part("d", 1, None), 1) + b"x"
    with known_liar() as (connector, say):
        say(good[:cut] + noise + good[cut + at :])
        messages: list[Message] = []
        with suppress(PeerLost):
            messages += connector.poll()
            messages += connector.poll()
        for message in messages:
            assert all(array.numpy().nbytes == array.num_bytes for array in message.arrays)
