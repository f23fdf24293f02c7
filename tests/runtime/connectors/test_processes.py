"""Connectors between processes, of which one ends: on purpose, by SIGKILL, in the middle of a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from antiphon.core.errors import ConnectorClosed, PeerLost
from antiphon.runtime.connectors import shared_memory, tcp
from antiphon.runtime.connectors.port import Array, Connector, Message
from fakes.links import SECRET, drain, readable

FAR_END = Path(__file__).parents[2] / "fakes" / "far_end.py"
SOON_S = 3.0
"""A tenth of that where nobody else uses the machine. A limit of silence is a minute."""


@contextmanager
def process(way: str) -> Iterator[tuple[Connector, subprocess.Popen[bytes]]]:
    """A process with the far end, which has said hello."""
    listener = None
    if way == "tcp":
        listener = tcp.Listener("127.0.0.1", 0, SECRET)
        far = subprocess.Popen((sys.executable, str(FAR_END), way, str(listener.address[1])))
        near = listener.accept(20.0)
        listener.close()
    else:
        near, socket = shared_memory.pair()
        number = socket.fileno()
        far = subprocess.Popen((sys.executable, str(FAR_END), way, str(number)), pass_fds=(number,))
        socket.close()
    try:
        assert readable(near, 20.0)
        (hello,) = near.poll()
        assert hello.kind == "hello"
        near.release(hello)
        yield near, far
    finally:
        far.kill()
        far.wait()
        near.close()


@pytest.fixture(params=["shared-memory", "tcp"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Afterwards no descriptor, no mapping and no name in shared memory is left."""
    before, others = len(os.listdir("/proc/self/fd")), names()
    yield request.param
    assert len(os.listdir("/proc/self/fd")) == before
    assert "antiphon-arena" not in Path("/proc/self/maps").read_text()
    assert not names() - others


def names() -> set[str]:
    """Shared memories with a name, ours or multiprocessing's; other programs have some too."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("antiphon", "psm_"))}


def big(num_bytes: int = 64 << 20) -> Array:
    return Array.of(np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8))


@pytest.mark.parametrize("num_bytes", [0, 100, 1 << 20, 64 << 20])
def test_there_and_back(way: str, num_bytes: int) -> None:
    values = big(num_bytes)
    with process(way) as (near, _):
        near.send(Message("c", "echo", b"head", (values,)))
        messages: list[Message] = []
        while not messages:
            assert readable(near, 10.0)
            messages = near.poll()
        assert messages[0].header == b"head"
        assert np.array_equal(messages[0].arrays[0].numpy(), values.numpy())


def test_last_words_arrive(way: str) -> None:
    with process(way) as (near, far):
        near.send(Message("c", "end"))
        messages: list[Message] = []
        with pytest.raises(ConnectorClosed) as caught:
            drain(near, messages)
        assert [message.kind for message in messages] == ["words"]
        assert not isinstance(caught.value, PeerLost)
        assert far.wait(2.0) == 0


def test_a_killed_peer_is_noticed(way: str) -> None:
    """At once, by a descriptor that is readable and stays so, while it held messages."""
    with process(way) as (near, far):
        for _ in range(4):
            near.send(Message("c", "hold", arrays=(big(1 << 20),)))
        while readable(near, 0.1):
            assert near.poll() == []
        far.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(PeerLost, match=r"killed|reset"):
            drain(near, [])
        assert time.monotonic() - killed < SOON_S
        assert readable(near)
        assert not near.can_send("c")
        with pytest.raises(PeerLost):
            near.send(Message("c", "echo"))


def test_killed_in_the_middle_of_a_message(way: str) -> None:
    """Both have a part of 160 MB, which go in no arena whole; it is not delivered."""
    with process(way) as (near, far):
        near.send(Message("c", "flood"))
        assert readable(near, 10.0)
        near.send(Message("d", "hold", arrays=(Array.of(np.zeros(160 << 20, np.uint8)),)))
        far.send_signal(signal.SIGKILL)
        far.wait()
        messages: list[Message] = []
        with pytest.raises(PeerLost):
            drain(near, messages)
        assert "flood" not in {message.kind for message in messages}


def test_a_peer_that_stands_still_is_not_lost(way: str) -> None:
    """SIGSTOP: the sender runs out of credit, in bounded memory, and all goes on afterwards."""
    with process(way) as (near, far):
        far.send_signal(signal.SIGSTOP)
        sent = 0
        values = big(3 << 20)
        while near.can_send("c"):
            near.send(Message("c", "echo", arrays=(values,)))
            sent += 1
        assert sent == 11
        assert near.poll() == []
        far.send_signal(signal.SIGCONT)
        echoed = 0
        while echoed < sent:
            assert readable(near, 10.0)
            for message in near.poll():
                echoed += 1
                near.release(message)


def test_this_process_is_killed() -> None:
    """The one that made the shared memory dies first; the other notices and ends, and nothing is left."""
    code = (
        "import subprocess, sys, time\n"
        "from antiphon.runtime.connectors import shared_memory\n"
        "near, socket = shared_memory.pair()\n"
        "number = str(socket.fileno())\n"
        f"far = subprocess.Popen((sys.executable, {str(FAR_END)!r}, 'shared-memory', number),\n"
        "                       pass_fds=(int(number),))\n"
        "socket.close()\n"
        "while not near.poll(): time.sleep(0.01)\n"
        "print(far.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    others = names()
    first = subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE)
    assert first.stdout is not None
    pid = int(first.stdout.readline())
    first.kill()
    first.wait()
    first.stdout.close()
    deadline = time.monotonic() + SOON_S
    while runs(pid):
        assert time.monotonic() < deadline, "the other process goes on"
        time.sleep(0.01)
    assert not names() - others


def runs(pid: int) -> bool:
    """A zombie that nobody reaps does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_never_joins() -> None:
    near, socket = shared_memory.pair()
    near.send(Message("c", "k"))
    socket.close()
    with pytest.raises(PeerLost):
        near.poll()
    near.close()
