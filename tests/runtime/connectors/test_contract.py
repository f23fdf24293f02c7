"""The contract of runtime.connectors.port.Connector, held by every kind of connector."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from select import select

import numpy as np
import pytest
import torch

from antiphon.core.errors import ConnectorClosed, LimitExceeded, NoCredit, PeerLost
from antiphon.runtime.connectors.limits import MIB, LinkLimits
from antiphon.runtime.connectors.port import DTYPE_BYTES, Array, Connector, Message
from antiphon.runtime.connectors.tensors import array_of, tensor_of
from fakes.links import KINDS, WAIT_S, drain, link, readable, receive

Pair = tuple[Connector, Connector]
NewLink = Callable[..., Pair]


@pytest.fixture(params=KINDS)
def new_link(request: pytest.FixtureRequest) -> Iterator[NewLink]:
    """Links of one kind; all ends are closed, and no descriptor stays open."""
    ends: list[Connector] = []

    def new(**limits: int) -> Pair:
        pair = link(request.param, LinkLimits(**limits))
        ends.extend(pair)
        return pair

    before = len(os.listdir("/proc/self/fd"))
    yield new
    for end in ends:
        end.close()
    assert len(os.listdir("/proc/self/fd")) == before


def noise(num_bytes: int) -> Array:
    return Array.of(np.random.default_rng(num_bytes).integers(0, 256, num_bytes, np.uint8))


def payload(channel: str, num_bytes: int) -> Message:
    return Message(channel, "payload", arrays=(noise(num_bytes),))


@pytest.mark.parametrize("num_bytes", [0, 1, 1000, 40_000, MIB + 1, 33 * MIB, 64 * MIB])
def test_sizes(new_link: NewLink, num_bytes: int) -> None:
    """What was sent arrives, under and over the window, and all credit comes back."""
    one, other = new_link()
    message = Message("c", "payload", b"head", (noise(num_bytes), noise(3)))
    one.send(message)
    (got,) = receive(one, other, 1)
    assert (got.channel, got.kind, got.header) == ("c", "payload", b"head")
    for mine, theirs in zip(message.arrays, got.arrays, strict=True):
        assert np.array_equal(mine.numpy(), theirs.numpy())
    other.release(got)
    while one.credit("c") != one.credit("never used"):
        assert readable(one, 5.0)
        assert one.poll() == []


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_dtypes(new_link: NewLink, dtype: str) -> None:
    """Bit for bit, in any shape, small in the frame or large beside it."""
    one, other = new_link()
    for shape in ((), (0, 4), (3,), (2, 3, 4), (300, 400)):
        tensor = bits(dtype, shape)
        one.send(Message("c", "t", arrays=(array_of(tensor),)))
        (got,) = receive(one, other, 1)
        theirs = tensor_of(got.arrays[0])
        assert (theirs.dtype, theirs.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(theirs.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
        values = got.arrays[0].numpy()
        assert values.shape == shape
        assert values.tobytes() == bytes(got.arrays[0].data)
        other.release(got)


def bits(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bits at all (NaNs too), except for bool."""
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    flat = tensor.reshape(-1).view(torch.uint8)
    values = torch.from_numpy(noise(flat.numel()).numpy())
    flat.copy_(values % 2 if dtype == "bool" else values)
    return tensor


def test_order_within_a_channel(new_link: NewLink) -> None:
    one, other = new_link(window_messages=8)
    sizes = [int(size) for size in np.random.default_rng(0).integers(0, 200_000, 200)]
    sent, got = 0, []
    while len(got) < len(sizes):
        while sent < len(sizes) and one.can_send("c"):
            one.send(Message("c", str(sent), arrays=(noise(sizes[sent]),)))
            sent += 1
        for connector in select([one, other], [], [], 5.0)[0]:
            for message in connector.poll():
                got.append((message.kind, message.arrays[0].num_bytes))
                other.release(message)
    assert got == [(str(number), size) for number, size in enumerate(sizes)]


def test_both_directions_in_two_threads(new_link: NewLink) -> None:
    """Each end has its own thread, sends 200 messages of up to 300 kB and takes 200. Who has taken all goes
    on polling until all that it sent was released: what is over the window leaves with credit that returns.
    """

    def work(end: Connector, rounds: int) -> int:
        sent = got = total = 0
        deadline = time.monotonic() + WAIT_S
        while got < rounds or sent < rounds or end.credit("c") != end.credit("never used"):
            assert time.monotonic() < deadline, f"sent {sent}, took {got} of {rounds}"
            while sent < rounds and end.can_send("c"):
                end.send(Message("c", "k", arrays=(Array.of(np.full(1500 * sent, sent % 256, np.uint8)),)))
                sent += 1
            select([end], [], [], 0.1)
            for message in end.poll():
                values = message.arrays[0].numpy()
                assert (values == got % 256).all()
                assert len(values) == 1500 * got
                got, total = got + 1, total + len(values)
                end.release(message)
        return total

    ends = new_link(window_bytes=MIB, max_header_bytes=1000, arena_bytes=MIB)
    with ThreadPoolExecutor(2) as pool:
        totals = list(pool.map(partial(work, rounds=200), ends))
    assert totals == [1500 * 199 * 100] * 2


def test_a_consumer_that_stops_stops_its_sender(new_link: NewLink) -> None:
    """Whether it doesn't poll or doesn't release: what is in flight is a window and the message over it."""
    one, other = new_link(window_bytes=MIB, max_header_bytes=1000, arena_bytes=8 * MIB)
    in_flight = 0
    while one.can_send("c"):
        one.send(payload("c", 300_000))
        in_flight += 1
    assert in_flight == 4
    assert one.can_send("another")
    with pytest.raises(NoCredit, match="'c'"):
        one.send(payload("c", 1))
    held = receive(one, other, 3)
    for _ in range(10):
        assert one.poll() == other.poll() == []
        assert not one.can_send("c")
    for message in held:
        other.release(message)
        other.release(message)
    assert len(receive(one, other, 1)) == 1
    assert one.can_send("c")


@pytest.mark.parametrize("kind", ["shared-memory", "tcp"])
def test_a_short_message_overtakes_a_long_one(kind: str) -> None:
    """On another channel, while pieces of the long one fill the socket."""
    one, other = link(kind, LinkLimits(arena_bytes=MIB))
    one.send(payload("long", 32 * MIB))
    one.send(Message("short", "k"))
    assert [message.channel for message in receive(one, other, 2)] == ["short", "long"]
    one.close()
    other.close()


def test_messages_are_counted_too(new_link: NewLink) -> None:
    one, other = new_link(window_messages=5)
    for _ in range(5):
        assert one.can_send("c")
        one.send(Message("c", "k"))
    assert not one.can_send("c")
    assert one.credit("c").num_messages == 0
    other.release(receive(one, other, 5)[2])
    assert readable(one, 5.0)
    assert one.poll() == []
    assert one.can_send("c")


def test_the_descriptor_tells_what_happens(new_link: NewLink) -> None:
    """Nothing, a message, its credit, the end."""
    one, other = new_link()
    assert not readable(one)
    assert not readable(other)
    one.send(payload("c", 100_000))
    assert readable(other, 5.0)
    (message,) = receive(one, other, 1)
    assert not readable(other)
    other.release(message)
    assert readable(one, 5.0)
    one.poll()
    assert not readable(one)
    other.close()
    assert readable(one, 5.0)


def test_many_channels(new_link: NewLink) -> None:
    """Each has its own window; one that is empty again costs nothing, so there is no end to names."""
    one, other = new_link(max_channels=300)
    for generation in range(3):
        names = [f"{generation}/{number}" for number in range(300)]
        for turn in range(3):
            for name in names:
                one.send(Message(name, str(turn), arrays=(noise(100),)))
        assert not one.can_send("one more")
        got = receive(one, other, 900)
        for name in names:
            assert [message.kind for message in got if message.channel == name] == ["0", "1", "2"]
        for message in got:
            other.release(message)
        while any(one.credit(name) != one.credit("new") for name in names):
            assert select([one, other], [], [], 5.0)[0]
            assert one.poll() == other.poll() == []
        assert one.can_send("one more")


def test_limits_are_said(new_link: NewLink) -> None:
    one, _ = new_link(max_message_bytes=1000, max_header_bytes=100)
    with pytest.raises(LimitExceeded, match="max_message_bytes"):
        one.send(payload("c", 1001))
    with pytest.raises(LimitExceeded, match="max_header_bytes"):
        one.send(Message("c", "k", bytes(101)))
    with pytest.raises(ValueError, match="3 bytes"):
        one.send(Message("c", "k", arrays=(Array("int64", (2,), b"123"),)))
    assert one.credit("c") == one.credit("never used")


def test_closing(new_link: NewLink) -> None:
    """What was sent before arrives; then both ends say that it is over. Twice is once."""
    one, other = new_link()
    other.send(Message("c", "early"))
    (before,) = receive(other, one, 1)
    one.send(Message("c", "last"))
    one.close()
    one.close()
    one.release(before)
    for use in (one.poll, one.fileno, partial(one.send, Message("c", "k"))):
        with pytest.raises(ConnectorClosed, match="this end"):
            use()
    assert not one.can_send("c")
    assert readable(other, 5.0)
    (last,) = other.poll()
    assert last.kind == "last"
    other.release(last)
    with pytest.raises(ConnectorClosed, match="other end") as caught:
        other.poll()
    assert not isinstance(caught.value, PeerLost)
    assert not other.can_send("c")
    with pytest.raises(ConnectorClosed):
        other.send(Message("c", "k"))
    assert readable(other, 5.0)


def test_lingering_waits_for_what_was_sent(new_link: NewLink) -> None:
    one, other = new_link(window_bytes=MIB, max_header_bytes=1000, arena_bytes=MIB)
    one.send(payload("c", 20 * MIB))
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(one.close, 20.0)
        messages: list[Message] = []
        with pytest.raises(ConnectorClosed):
            drain(other, messages)
        assert [message.arrays[0].num_bytes for message in messages] == [20 * MIB]
        closing.result(5.0)
