"""How long a payload takes from one stage to another, by connector, beside a plain copy of the same bytes.

    python benchmarks/connectors.py --out benchmarks/results/connectors.json

One way: from before `send` in this process until `poll` has returned the message in the other (both read the
same monotonic clock). The copies are numpy's in one process: `copy`, into new memory as whoever keeps a
payload makes it, and `copy_warm`, into memory that was written just before.
`bare_tcp` is what TCP itself takes: one blocking socket, the bytes and nothing else, into memory that is
there. All of a size in turns. Milliseconds; `of_copy` is a way's median by that of `copy`.
"""

from __future__ import annotations

import argparse
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.bench import provenance
from antiphon.core.errors import ConnectorClosed
from antiphon.runtime.connectors import shared_memory, tcp
from antiphon.runtime.connectors.port import Array, Connector, Message

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
SECRET = b"of the benchmark, on this machine only"
SECONDS = struct.Struct("<d")
BARE = struct.Struct("<Qd")


def far_end(way: str, where: int) -> None:
    """The other process: answers each payload with the seconds it took to come."""
    if way == "tcp":
        connector = tcp.connect("127.0.0.1", where, SECRET)
    else:
        connector = shared_memory.join(socket.socket(fileno=where))
    connector.send(Message("hello", "hello"))
    try:
        while True:
            select.select([connector], [], [])
            for message in connector.poll():
                taken_s = time.monotonic() - SECONDS.unpack(message.header)[0]
                connector.send(Message("taken", "taken", SECONDS.pack(taken_s)))
                connector.release(message)
    except ConnectorClosed:
        connector.close()


@contextmanager
def joined(way: str) -> Iterator[Connector]:
    """A connector to a process of its own, which is there."""
    command = [sys.executable, __file__, "--far-end", way]
    if way == "tcp":
        listener = tcp.Listener("127.0.0.1", 0, SECRET)
        process = subprocess.Popen([*command, str(listener.address[1])])
        near = listener.accept(20.0)
        listener.close()
    else:
        near, end = shared_memory.pair()
        process = subprocess.Popen([*command, str(end.fileno())], pass_fds=(end.fileno(),))
        end.close()
    try:
        next_of(near)
        yield near
    finally:
        near.close()
        process.wait()


def bare_end(port: int) -> None:
    """The other process of `bare_tcp`: prefix of bytes and time, bytes, answered with the seconds taken."""
    into = memoryview(bytearray(max(SIZES)))
    prefix = bytearray(BARE.size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv_into(prefix, flags=socket.MSG_WAITALL):
            num_bytes, before = BARE.unpack(prefix)
            connection.recv_into(into[:num_bytes], flags=socket.MSG_WAITALL)
            connection.sendall(SECONDS.pack(time.monotonic() - before))


@contextmanager
def bare() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, __file__, "--far-end", "bare", str(server.getsockname()[1])]
        process = subprocess.Popen(command)
        connection = server.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        yield connection
    process.wait()


def across_bare(connection: socket.socket, values: np.ndarray) -> float:
    connection.sendall(BARE.pack(values.nbytes, time.monotonic()))
    connection.sendall(values.data)
    return SECONDS.unpack(connection.recv(SECONDS.size, socket.MSG_WAITALL))[0]


def next_of(connector: Connector) -> Message:
    """Wait for the next message, and release it."""
    while True:
        select.select([connector], [], [])
        for message in connector.poll():
            connector.release(message)
            return message


def across(connector: Connector, values: np.ndarray) -> float:
    """Seconds one way, as the other process has measured them."""
    payload = Array.of(values)
    connector.send(Message("payload", "payload", SECONDS.pack(time.monotonic()), (payload,)))
    taken_s = SECONDS.unpack(next_of(connector).header)[0]
    while connector.credit("payload") != connector.credit("unused"):
        select.select([connector], [], [])
        connector.poll()
    return taken_s


def copied(values: np.ndarray, into: np.ndarray | None) -> float:
    before = time.monotonic()
    if into is None:
        values.copy()
    else:
        np.copyto(into, values)
    return time.monotonic() - before


def measured(ways: dict[str, Callable[[np.ndarray], float]], num_bytes: int, repeats: int) -> dict[str, Any]:
    values = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
    warm = np.zeros_like(values)
    ways = {"copy": lambda v: copied(v, None), "copy_warm": lambda v: copied(v, warm)} | ways
    times_s: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 3):
        for name, way in ways.items():
            taken_s = way(values)
            if number >= 3:
                times_s[name].append(taken_s)
    row: dict[str, Any] = {"bytes": num_bytes}
    for name, taken_s in times_s.items():
        low, median, high = (round(1000 * float(np.percentile(taken_s, p)), 4) for p in (10, 50, 90))
        row[name] = {"p10_ms": low, "p50_ms": median, "p90_ms": high}
        if name not in ("copy", "copy_warm"):
            row[name]["of_copy"] = round(float(np.median(taken_s) / np.median(times_s["copy"])), 2)
    medians = "  ".join(f"{name} {row[name]['p50_ms']}" for name in ways)
    sys.stderr.write(f"{num_bytes >> 10:>8} KiB  {medians}\n")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=200, help="of each way and size; a fifth from 16 MB on"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--far-end", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.far_end:
        way, where = options.far_end[0], int(options.far_end[1])
        if way == "bare":
            bare_end(where)
        else:
            far_end(way, where)
        return
    with joined("shared-memory") as memory, joined("tcp") as stream, bare() as plain:
        ways = {
            "shared_memory": lambda values: across(memory, values),
            "tcp": lambda values: across(stream, values),
            "bare_tcp": lambda values: across_bare(plain, values),
        }
        rows = [measured(ways, size, options.repeats // (5 if size >= 16 * MIB else 1)) for size in SIZES]
    provenance.keep({"unit": "ms one way", "repeats": options.repeats, "sizes": rows}, options.out)


if __name__ == "__main__":
    main()
