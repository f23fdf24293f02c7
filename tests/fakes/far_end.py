"""The other end of a connector, in a process of its own: `python far_end.py shared-memory FD | tcp PORT`.

Answers by the message's kind: `echo` sends it back, `hold` keeps it unreleased, `flood` sends 160 MB and
looks no further, `end` closes.
"""

from __future__ import annotations

import select
import socket
import sys
import time

import numpy as np

from antiphon.core.errors import ConnectorClosed
from antiphon.runtime.connectors import shared_memory, tcp
from antiphon.runtime.connectors.port import Array, Connector, Message

SECRET = b"a secret of the tests"


def joined(way: str, where: int) -> Connector:
    if way == "tcp":
        return tcp.connect("127.0.0.1", where, SECRET)
    return shared_memory.join(socket.socket(fileno=where))


def answer(connector: Connector, message: Message) -> None:
    match message.kind:
        case "echo":
            connector.send(Message(message.channel, "echoed", message.header, message.arrays))
            connector.release(message)
        case "flood":
            connector.send(Message("flood", "flood", arrays=(Array.of(np.zeros(160 << 20, np.uint8)),)))
            connector.send(Message("flooding", "flooding"))
            time.sleep(60)
        case "end":
            connector.send(Message("last", "words"))
            connector.close(linger_s=5)
            sys.exit(0)


def main() -> None:
    connector = joined(sys.argv[1], int(sys.argv[2]))
    connector.send(Message("hello", "hello"))
    try:
        while True:
            select.select([connector], [], [])
            for message in connector.poll():
                answer(connector, message)
    except ConnectorClosed:
        connector.close()


if __name__ == "__main__":
    main()
