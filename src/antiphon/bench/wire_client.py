"""One realtime session over a WebSocket: JSON events both ways, each arrival stamped with the run's clock."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from antiphon.bench.target import DrivenServer
from antiphon.core.errors import AntiphonError
from antiphon.people.downlink import ReceivedEvent, unreadable

MAX_FRAME_BYTES = 64 * 1024 * 1024
OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
APPEND_HEAD = b'{"type":"input_audio_buffer.append","audio":"'
APPEND_TAIL = b'"}'


class Refused(AntiphonError):
    """The server answered the handshake with an HTTP error."""

    def __init__(self, status: int, message: str, retry_after_s: float | None) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.retry_after_s = retry_after_s


class Unreachable(AntiphonError):
    """No connection came about."""


class ConnectionLost(AntiphonError):
    """The connection broke, or the server closed it."""


class WireClient:
    """An open session. `clock` stamps arrivals."""

    def __init__(self, socket: ClientConnection, clock: Callable[[], float]) -> None:
        self._socket = socket
        self._clock = clock
        self._decoder = msgspec.json.Decoder(ReceivedEvent)

    @classmethod
    async def open(cls, target: DrivenServer, clock: Callable[[], float]) -> WireClient:
        """Raises Refused or Unreachable."""
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        try:
            socket = await connect(
                target.realtime_uri,
                additional_headers=headers,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                max_queue=None,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                proxy=None,
            )
        except InvalidStatus as error:
            raise _refused(error) from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise Unreachable(f"no session at {target.root}: {error or type(error).__name__}") from error
        return cls(socket, clock)

    async def send(self, event: dict[str, Any]) -> None:
        """Raises ConnectionLost."""
        await self._write(msgspec.json.encode(event))

    async def append_framed(self, frame: bytes) -> None:
        """A frame made by `append_frame`."""
        await self._write(frame)

    async def events(self) -> AsyncIterator[tuple[ReceivedEvent, float]]:
        """Events and when they came, until the connection breaks: then ConnectionLost."""
        while True:
            try:
                frame = await self._socket.recv(decode=False)
            except ConnectionClosed as error:
                raise ConnectionLost(f"connection closed: {error}") from error
            now = self._clock()
            try:
                yield self._decoder.decode(frame), now
            except msgspec.MsgspecError as error:
                yield unreadable(str(error)), now

    async def close(self) -> None:
        await self._socket.close()

    async def _write(self, frame: bytes) -> None:
        try:
            await self._socket.send(frame, text=True)
        except ConnectionClosed as error:
            raise ConnectionLost(f"connection closed: {error}") from error


def append_frame(pcm: bytes) -> bytes:
    return APPEND_HEAD + base64.b64encode(pcm) + APPEND_TAIL


def _refused(error: InvalidStatus) -> Refused:
    response = error.response
    try:
        retry_after_s = float(response.headers.get("Retry-After", ""))
    except ValueError:
        retry_after_s = None
    text = (response.body or b"").decode(errors="replace")[:300] or response.reason_phrase
    return Refused(response.status_code, text, retry_after_s)
