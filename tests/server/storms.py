"""What storms are made of: raw sockets that misbehave, a witness who must not notice, and what is counted."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets

from antiphon.core.facts import SessionClosed, SessionOpened
from server.conftest import Running, Socket, eventually
from server.fake_engine import Script
from wire.harness import kinds

CHUNK_S = 0.05
TALK = Script("one two three four", audio_s=0.2, chunk_s=CHUNK_S, pace_s=0.02)
"""What a witness is answered: eight pieces at an even pace."""


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_sockets() -> int:
    """Sockets that this process holds open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    found = 0
    for link in links:
        with suppress(OSError):
            found += os.readlink(link).startswith("socket:")
    return found


@dataclass
class Witness:
    """Converses all the while; every reply has to be whole, in order, and on time."""

    client: Socket
    gaps_s: list[float] = field(default_factory=list)
    num_replies: int = 0

    async def converse(self) -> None:
        while True:
            await self.turn()

    async def turn(self) -> None:
        await self.client.send("response.create")
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.done":
            before_s = time.monotonic()
            events.append(await self.client.read())
            self.gaps_s.append(time.monotonic() - before_s)
        said = [e["delta"] for e in events if e["type"] == "response.output_audio_transcript.delta"]
        assert "".join(said) == TALK.text
        assert kinds(events).count("response.output_audio.delta") == TALK.audio_s / CHUNK_S
        assert kinds(events)[:2] == ["response.created", "response.output_item.added"]
        assert events[-1]["response"]["status"] == "completed"
        self.num_replies += 1


@asynccontextmanager
async def witnessed(served: Running, longest_gap_s: float) -> AsyncIterator[Witness]:
    """Somebody converses while the body runs. Afterwards all that storms may leave behind is gone."""
    served.engine.script = TALK
    async with served.socket() as client:
        await client.until("session.created")
        witness = Witness(client)
        await witness.turn()
        before = Counted.now(served)
        task = asyncio.create_task(witness.converse())
        try:
            yield witness
            num_replies = witness.num_replies
            # two more turns after the storm, or fail with what went wrong in it
            await eventually(lambda: task.done() or witness.num_replies >= num_replies + 2)
            if task.done():
                task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert max(witness.gaps_s) < longest_gap_s
        await before.comes_back(served)


@dataclass(frozen=True)
class Counted:
    """What is open."""

    sessions: int
    sinks: int
    tasks: int
    sockets: int

    @classmethod
    def now(cls, served: Running) -> Counted:
        return cls(
            len(served.engine.of(SessionOpened)) - len(served.engine.of(SessionClosed)),
            len(served.engine.sinks),
            len(asyncio.all_tasks()),
            num_sockets(),
        )

    async def comes_back(self, served: Running) -> None:
        """Wait until no more is open than was. The witness's unfinished turn may still have its task."""
        try:
            await eventually(lambda: self._holds(Counted.now(served)))
        except TimeoutError:
            raise AssertionError(f"before {self}, after {Counted.now(served)}") from None

    def _holds(self, now: Counted) -> bool:
        return (now.sessions, now.sinks) == (self.sessions, self.sinks) and (
            now.tasks <= self.tasks + 1 and now.sockets <= self.sockets
        )


async def memory_stays(rounds: int, storm: Callable[[], Awaitable[None]], most_bytes: int) -> int:
    """Run storms; after two, which warm what is kept, memory may grow by so much. Returns the growth."""
    for _ in range(2):
        await storm()
    gc.collect()
    before = rss_bytes()
    for _ in range(rounds):
        await storm()
    gc.collect()
    growth = rss_bytes() - before
    assert growth < most_bytes, f"{growth / 1e6:.1f} MB more after {rounds} storms"
    return growth


UPGRADE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(payload: bytes, opcode: int = 1, fin: bool = True) -> bytes:
    """A client's frame with a zero mask."""
    head, length = bytes([opcode | 0x80 * fin]), len(payload)
    if length < 126:
        return head + bytes([0x80 | length]) + bytes(4) + payload
    if length < 1 << 16:
        return head + bytes([0xFE]) + length.to_bytes(2, "big") + bytes(4) + payload
    return head + bytes([0xFF]) + length.to_bytes(8, "big") + bytes(4) + payload


@asynccontextmanager
async def raw_socket(port: int) -> AsyncIterator[socket.socket]:
    """Upgraded, and nothing read beyond the answer's first bytes. It leaves by RST, as who crashes does."""
    loop = asyncio.get_running_loop()
    with socket.socket() as raw:
        raw.setblocking(False)
        await loop.sock_connect(raw, ("127.0.0.1", port))
        await loop.sock_sendall(raw, UPGRADE)
        assert b" 101 " in await loop.sock_recv(raw, 64)
        yield raw
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


async def send_raw(raw: socket.socket, data: bytes) -> None:
    with suppress(ConnectionError):
        await asyncio.get_running_loop().sock_sendall(raw, data)


async def closed(connection: websockets.ClientConnection) -> None:
    with suppress(websockets.ConnectionClosed):
        async with asyncio.timeout(10):
            while True:
                await connection.recv()
