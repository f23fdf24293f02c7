"""A real server on a free port, over the fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn.server
import websockets
from fastapi import FastAPI
from openai import AsyncOpenAI

from antiphon.server.app import create_app
from antiphon.server.runner import DrainingServer, server_for
from antiphon.server.serving import Serving
from antiphon.server.settings import ServerSettings
from server.fake_engine import CharDetokeniser, FakeEngine
from wire.harness import check_event

LOOK_S = 0.005


@pytest.fixture(autouse=True, scope="session")
def looks_often() -> Iterator[None]:
    """uvicorn looks every 0.1 s whether to stop, and whether all have left: each test would wait for both."""
    often = SimpleNamespace(**vars(asyncio) | {"sleep": lambda _: asyncio.sleep(LOOK_S)})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn.server, "asyncio", often)
        yield


@dataclass
class Running:
    """A server that runs in this test's loop."""

    app: FastAPI
    engine: FakeEngine
    server: DrainingServer
    port: int

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    @property
    def serving(self) -> Serving:
        return self.app.state.serving

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.http}/v1", api_key="x")

    @asynccontextmanager
    async def socket(self, query: str = "", **options: Any) -> AsyncIterator[Socket]:
        async with websockets.connect(self.ws + query, max_size=1 << 20, **options) as connection:
            yield Socket(connection)


@dataclass
class Socket:
    """A bare client; every event it reads is validated and under 1 MiB."""

    connection: websockets.ClientConnection

    async def send(self, kind: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def by_hand(self) -> None:
        """Turns are committed by the client, not detected."""
        await self.send(
            "session.update",
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}},
        )
        await self.until("session.updated")

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            event = json.loads(await self.connection.recv())
        check_event(event)
        return event

    async def until(self, kind: str) -> list[dict[str, Any]]:
        events = [await self.read()]
        while events[-1]["type"] != kind:
            events.append(await self.read())
        return events


async def eventually(condition: Callable[[], bool]) -> None:
    """Poll, because a socket's other end has its own pace."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def leaves(asking: Coroutine[Any, Any, Any], once: Callable[[], bool]) -> None:
    """A client asks, and closes its connection once this holds."""
    task = asyncio.create_task(asking)
    await eventually(once)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@asynccontextmanager
async def running(settings: ServerSettings | None = None, engine: FakeEngine | None = None) -> Any:
    engine = engine or FakeEngine()
    app = create_app(engine, detokenisers=CharDetokeniser, settings=settings)
    server = server_for(app, "127.0.0.1", 0)
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(app, engine, server, port)
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def served() -> AsyncIterator[Running]:
    async with running() as server:
        yield server
