"""Connectors of every kind in one process, and how to turn them."""

from __future__ import annotations

import select
import time
from concurrent.futures import ThreadPoolExecutor

from antiphon.runtime.connectors import shared_memory, tcp
from antiphon.runtime.connectors.limits import LinkLimits
from antiphon.runtime.connectors.port import Connector, Message

SECRET = b"a secret of the tests"
KINDS = ("shared-memory", "tcp")
WAIT_S = 20.0


def link(kind: str, limits: LinkLimits | None = None) -> tuple[Connector, Connector]:
    if kind == "shared-memory":
        near, socket = shared_memory.pair(limits)
        return near, shared_memory.join(socket)
    listener = tcp.Listener("127.0.0.1", 0, SECRET, limits)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accept, WAIT_S)
        far = tcp.connect(*listener.address, SECRET)
        near = accepted.result()
    listener.close()
    return near, far


def readable(connector: Connector, wait_s: float = 0.0) -> bool:
    return bool(select.select([connector], [], [], wait_s)[0])


def drain(connector: Connector, messages: list[Message]) -> None:
    """All that comes, until `poll` raises why nothing does any more; never a second without either."""
    while True:
        assert readable(connector, 1.0)
        messages += connector.poll()


def receive(sender: Connector, receiver: Connector, count: int) -> list[Message]:
    """Exactly `count` messages arrive; they are not released."""
    messages: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages arrived"
        for connector in select.select([sender, receiver], [], [], 1.0)[0]:
            arrived = connector.poll()
            if connector is receiver:
                messages += arrived
    assert len(messages) == count
    return messages
