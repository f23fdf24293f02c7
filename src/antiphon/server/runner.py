"""Runs an app on a socket. A signal drains first: uvicorn alone would cut every WebSocket at once."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from antiphon.server.realtime import ABORT_EXTENSION
from antiphon.server.serving import Serving

logger = logging.getLogger("antiphon.server")

SHUTDOWN_S = 5
"""What plain HTTP requests get after the drain."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key files."""

    certificate: str
    key: str


MAX_UNREAD_BYTES = 1 << 20
"""What may wait in a socket for a client that does not read, when it asks for more in pings."""


class AbortableWebSocket(WebSocketsSansIOProtocol):
    """Lets a connection be dropped while its peer reads nothing; a plain close would wait for the peer."""

    def handle_ping(self) -> None:
        # answers to pings pass no queue, and reading does not pause for them
        if self.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()
            return
        super().handle_ping()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # who was refused has been answered; uvicorn would log that there was no handshake as an error
        self.handshake_complete |= self.close_sent

    async def run_asgi(self) -> None:
        self.scope["extensions"][ABORT_EXTENSION] = {"abort": self.transport.abort}  # pyright: ignore
        await super().run_asgi()


class DrainingServer(uvicorn.Server):
    """uvicorn's server, with the app's drain before its shutdown. `serve` returns instead of dying by the
    signal, so that the caller can still stop its engine."""

    def __init__(self, config: uvicorn.Config, serving: Serving) -> None:
        super().__init__(config)
        self._serving = serving

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with self.capture_signals():
            await self._serve(sockets)
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            until = "" if self._serving.engine else "; requests are refused until the model is loaded"
            logger.info("listening on %s:%d%s", self.config.host, port, until)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # listeners are still open here: who comes now is told to come back later
        await self._serving.drain(hurry=lambda: self.force_exit)
        await super().shutdown(sockets)


def server_for(app: FastAPI, host: str, port: int, tls: Tls | None = None) -> DrainingServer:
    """A server to be awaited with `.serve()` in the caller's own event loop. Port 0 picks a free one."""
    serving: Serving = app.state.serving
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ws=AbortableWebSocket,
        # frames somewhat over the limit get a typed error; only absurd ones end the connection
        ws_max_size=2 * serving.settings.limits.max_frame_bytes,
        # base64 audio hardly shrinks, and deflate would cost each delta its time
        ws_per_message_deflate=False,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        timeout_graceful_shutdown=SHUTDOWN_S,
        # the app has nothing to start or end here, and a second signal would leave that task to be cancelled
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    return DrainingServer(config, serving)
