"""One question, one reply, over an engine session of its own: what plain HTTP routes stand on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from antiphon.core.errors import AntiphonError
from antiphon.core.facts import ResponseCancelled, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import AudioOut, Output, ResponseEnded, ResponseOutput, TurnOutput, Usage
from antiphon.server.bodies import ClientGone
from antiphon.server.gate import GatedEngine, Tier
from antiphon.server.serving import PACED_PER_SESSION, Serving
from antiphon.server.sse import EVENT_STREAM
from antiphon.wire.reply_stream import (
    PLAIN,
    ArgumentsPiece,
    EndPiece,
    Piece,
    ReplyStream,
    SoundPiece,
    TextPiece,
)
from antiphon.wire.text_params import TextReading
from antiphon.wire.tools import names_in

logger = logging.getLogger("antiphon.server")

T = TypeVar("T")

PIECE_BYTES = 256
"""What a piece takes in memory beside its text, its sound and what is told of its tokens."""


UNREAD = (
    "the client does not read what it asked for.",
    "the text is too far ahead of its reader; ask for a higher rate, fewer top_logprobs, or deliver: asap.",
)
"""Why a reply fails of which too much waits, and why a paced one does."""


class Exchange:
    """Open it, read its pieces to the end, close it. Closing early cancels the reply. The engine's session is
    closed once the reply has ended, however long its client takes to read it.

    What the client does not read is bounded: past `max_queued_bytes` the reply is cancelled, as failed. Of
    a paced one less may wait, so that all of them come to no more than all sessions.
    """

    def __init__(
        self,
        serving: Serving,
        request: ResponseRequested,
        key: int | None,
        arrived: asyncio.Event | None = None,
        reading: TextReading = PLAIN,
        is_paced: bool = False,
        is_live: bool = False,
    ) -> None:
        """key: which of the configured API keys it came with; None: there are none. arrived: set with every
        piece, and shared by exchanges that are read together. reading: of the text.
        is_paced: it is sent no faster than it is read. is_live: its speech is listened to as it comes."""
        assert serving.engine is not None
        assert serving.detokenisers is not None
        transcripts = serving.transcript_detokenisers if request.transcribe else None
        self.stream = ReplyStream(
            (transcripts or serving.detokenisers)(),
            serving.ids,
            () if request.tool_choice == "none" else names_in(request.tools),
            serving.settings.retry_after_s,
            reading,
            serving.info.json_calls,
        )
        self._serving = serving
        self._engine: GatedEngine = serving.engine
        self._request = request
        self._key = key
        self._ready: deque[Piece] = deque()
        self._num_bytes = 0
        self._most_bytes = serving.settings.max_queued_bytes // (PACED_PER_SESSION if is_paced else 1)
        self._arrived = arrived or asyncio.Event()
        self._is_over = False
        self._is_open = False
        self._has_session = False
        self._is_paced = is_paced
        self._is_live = is_live
        self._asked_s = 0.0
        self._seen: set[str] = set()

    @property
    def is_busy(self) -> bool:
        return not self._is_over

    @property
    def tier(self) -> Tier:
        return self._request.tier

    @property
    def key(self) -> int | None:
        return self._key

    @property
    def is_paced(self) -> bool:
        return self._is_paced

    def hang_up(self, code: int, reason: str) -> None:
        """Nothing to do: the answer ends by itself."""

    async def abandon(self, code: str, message: str) -> None:
        self._fail(code, message)

    def open(self) -> Self:
        """Ask the engine."""
        session = self._request.session
        self._is_open = self._has_session = True
        self._asked_s = time.monotonic()
        self._serving.connections.add(self)
        self._serving.keys[session] = self._key
        self._engine.attach(session, self._on_output, is_live=self._is_live)
        self._engine.send(SessionOpened(session))
        self._engine.send(self._request)
        return self

    def close(self) -> None:
        """Leave the engine and the server; more than once is harmless."""
        if self._is_open:
            self._is_open = False
            if not self._is_over:
                self._is_over = True
                self._serving.metrics.left()
            self._leave_engine()
            self._serving.connections.discard(self)
            del self._serving.keys[self._request.session]

    def _leave_engine(self) -> None:
        if self._has_session:
            self._has_session = False
            self._engine.detach(self._request.session)
            self._engine.send(SessionClosed(self._request.session, self._serving.settings.prefix_cache))

    async def __aenter__(self) -> Self:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def begun(self, *kinds: type[Piece]) -> None:
        """Wait until a piece of these kinds (any, if none is named) or the end is there.

        Raises what the reply failed of, if it failed before: that is still an answer with a status."""
        wanted = (*kinds, EndPiece) if kinds else object
        while not (found := [piece for piece in self._ready if isinstance(piece, wanted)]):
            await self._next_arrival()
        if isinstance(found[0], EndPiece) and found[0].error is not None:
            raise found[0].error

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Every piece in order; the last is the end."""
        while True:
            while not self._ready:
                await self._next_arrival()
            piece = self.pop()
            assert piece is not None
            yield piece
            if isinstance(piece, EndPiece):
                return

    @property
    def first(self) -> Piece | None:
        """The next piece, left where it is."""
        return self._ready[0] if self._ready else None

    def pop(self) -> Piece | None:
        """The next piece, if it is there."""
        if not self._ready:
            return None
        piece = self._ready.popleft()
        self._num_bytes -= _num_bytes(piece)
        return piece

    async def _next_arrival(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    def _on_output(self, output: Output) -> None:
        if self._is_over or isinstance(output, TurnOutput):  # one request has no next turn
            return
        self._take(output)

    def _take(self, output: ResponseOutput) -> None:
        self._measure(output)
        self._is_over = isinstance(output, ResponseEnded)
        pieces = self.stream.take(output)
        self._ready += pieces
        self._num_bytes += sum(map(_num_bytes, pieces))
        self._arrived.set()
        if self._is_over:
            self._leave_engine()
        elif self._num_bytes + self.stream.num_held_bytes > self._most_bytes:
            self._serving.metrics.slow_readers.inc()
            self._fail("slow_reader", f"max_queued_bytes: {UNREAD[self._is_paced]}")
        elif self.stream.is_stopped:
            self._stop()

    def _stop(self) -> None:
        """The text is over, by what its client named: the engine need not write on."""
        asked, stream = self._request, self.stream
        usage = msgspec.structs.replace(stream.counts, output_text_tokens=len(stream.token_ids))
        self._is_over = True  # what the engine says of the cancelling is not the reply's end
        self._engine.send(ResponseCancelled(asked.session, asked.response, "stop"))
        self._take(ResponseEnded(asked.session, asked.response, "completed", "", "", usage))

    def _fail(self, code: str, message: str) -> None:
        """End here and now; the engine forgets the reply with its session."""
        asked = self._request
        self._on_output(ResponseEnded(asked.session, asked.response, "failed", code, message, Usage()))

    def _measure(self, output: ResponseOutput) -> None:
        metrics = self._serving.metrics
        if isinstance(output, ResponseEnded):
            metrics.responses.labels(output.status).inc()
            return
        kind, histogram = "text", metrics.first_text_s
        if isinstance(output, AudioOut):
            kind, histogram = "audio", metrics.first_audio_s
        if kind not in self._seen:
            self._seen.add(kind)
            histogram.observe(time.monotonic() - self._asked_s)


def _num_bytes(piece: Piece) -> int:
    """In memory, about."""
    match piece:
        case TextPiece():
            return PIECE_BYTES + _text_bytes(piece.text) + len(piece.told)
        case SoundPiece():
            return PIECE_BYTES + len(piece.samples)
        case ArgumentsPiece():
            return PIECE_BYTES + _text_bytes(piece.delta)
        case _:
            return PIECE_BYTES


def _text_bytes(text: str) -> int:
    """The most that Python may take for it."""
    return len(text) if text.isascii() else 4 * len(text)


class Exchanges:
    """Replies to one request, side by side: an exchange for each."""

    def __init__(
        self,
        serving: Serving,
        requests: Sequence[ResponseRequested],
        key: int | None,
        reading: TextReading,
        is_paced: bool,
        is_live: bool = False,
    ) -> None:
        self._arrived = asyncio.Event()
        self.each = [
            Exchange(serving, request, key, self._arrived, reading, is_paced, is_live) for request in requests
        ]

    def open(self) -> None:
        for exchange in self.each:
            exchange.open()

    def close(self) -> None:
        for exchange in self.each:
            exchange.close()

    async def begun(self) -> None:
        """Wait until one of them has a piece. Raises what it failed of, if it has failed already."""
        while not (found := [exchange.first for exchange in self.each if exchange.first is not None]):
            await self._next_arrival()
        if isinstance(found[0], EndPiece) and found[0].error is not None:
            raise found[0].error

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        """Every piece with the number of its exchange; each one's last is its end."""
        num_open = len(self.each)
        while num_open:
            is_idle = True
            for index, exchange in enumerate(self.each):
                while (piece := exchange.pop()) is not None:
                    is_idle = False
                    yield index, piece
                    num_open -= isinstance(piece, EndPiece)
            if is_idle and num_open:
                await self._next_arrival()

    async def _next_arrival(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()


class ExchangeResponse(StreamingResponse):
    """Streams what is made of an exchange, and closes that whatever happens."""

    def __init__(
        self,
        exchange: Exchange | Exchanges,
        content: AsyncIterator[bytes],
        media_type: str,
        stall_s: float,
    ) -> None:
        super().__init__(content, media_type=media_type)
        self.headers["Cache-Control"] = "no-cache"
        self._exchange = exchange
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            async with asyncio.timeout(self._stall_s):
                await send(message)

        try:
            await super().__call__(scope, receive, patient)
        except TimeoutError:
            logger.warning("stall_s: an HTTP client read nothing for %g s", self._stall_s)
        except AntiphonError as error:
            # unfinished, the answer ends with its connection: nobody can take it for whole
            logger.warning("an answer broke off: %s", error)
        finally:
            self._exchange.close()


class Answer(Protocol):
    """What a client is told of its replies."""

    async def whole(self) -> Response:
        """All of it, once they are over."""
        ...

    def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, as they come."""
        ...


async def answered(
    request: Request, replies: Exchanges, answer: Answer, *, stream: bool, stall_s: float
) -> Response:
    """Ask the engine, and answer: whole, or as a stream once something has come. Whatever happens, the
    replies are closed in the end."""
    is_streamed = False
    try:
        replies.open()
        if not stream:
            return await while_connected(request, answer.whole())
        await while_connected(request, replies.begun())
        is_streamed = True
        return ExchangeResponse(replies, answer.events(), EVENT_STREAM, stall_s)
    finally:
        if not is_streamed:
            replies.close()


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The work's result; a client that leaves ends the work."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("The client left before its answer was there.")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
