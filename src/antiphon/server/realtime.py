"""One socket: frames to the session, effects to the client and the engine. Decides nothing itself."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
from fastapi import APIRouter, Response, WebSocket, WebSocketDisconnect

from antiphon.core.errors import AntiphonError, LimitExceeded, ProtocolError, SessionGone
from antiphon.core.facts import PersonFact, ResponseRequested, TurnAdvised
from antiphon.core.ids import IdSource
from antiphon.core.plans import AdvisoryAnswered, Output
from antiphon.core.sampling import Guide
from antiphon.runtime.engine_client import EngineClient
from antiphon.server.admission import REALTIME_SUBPROTOCOL, check_socket, http_error, subprotocols
from antiphon.server.event_queue import EventQueue
from antiphon.server.gate import Tier
from antiphon.server.metrics import ResponseMeter
from antiphon.server.serving import Serving
from antiphon.wire.advisories import AdvisoryRequest
from antiphon.wire.effects import Effect, Payload, ServerEvent
from antiphon.wire.errors import error_object
from antiphon.wire.guides import AskedGuide
from antiphon.wire.session import RealtimeSession

logger = logging.getLogger("antiphon.server")

ABORT_EXTENSION = "antiphon.abort"
"""Scope extension by which our runner lets a connection be dropped without a word."""
HEAVY_FRAME_BYTES = 32 * 1024
"""Three seconds of G.711 to listen to, or half a second of PCM: 10 ms of work."""
HEAVY_AUDIO_S = 30.0
ADVISORY_WAIT_S = 2.0
"""How long an advisory waits for the engine's answer: an engine in a long step reads nothing."""
POLICY_VIOLATION = 1008
INTERNAL = AntiphonError("The server made a mistake with this; the session goes on.")

router = APIRouter()


@router.api_route("/v1/realtime", methods=["GET", "POST"], include_in_schema=False)
async def no_socket() -> Response:
    """A request without an upgrade, or with WebRTC's offer, is told what is here."""
    error = ProtocolError(
        "/v1/realtime is a WebSocket: connect to it with ws:// or wss:// and the Realtime protocol.",
        code="upgrade_required",
    )
    answer = http_error(error, 426)
    answer.headers.update({"upgrade": "websocket", "connection": "Upgrade"})
    return answer


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """Admit or refuse, then run the session until either side ends it."""
    serving: Serving = socket.app.state.serving
    try:
        key = check_socket(socket, serving)
    except AntiphonError as error:
        await _refuse(socket, serving, error)
        return
    connection = Connection(socket, serving, key)
    # counted before the handshake's await: two at once cannot both take the last place
    serving.connections.add(connection)
    serving.sessions[connection.id], serving.keys[connection.id] = connection, key
    try:
        chosen = REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in subprotocols(socket) else None
        await socket.accept(subprotocol=chosen)
        await connection.run()
    finally:
        serving.connections.discard(connection)
        del serving.sessions[connection.id], serving.keys[connection.id]


async def _refuse(socket: WebSocket, serving: Serving, error: AntiphonError) -> None:
    serving.metrics.refused.labels(error_object(error)["code"]).inc()
    logger.info("session refused: %s", error)
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(http_error(error))
    else:
        await socket.close(POLICY_VIOLATION, str(error)[:100])


class Connection:
    """A client's socket, its session and its engine, joined."""

    def __init__(self, socket: WebSocket, serving: Serving, key: int | None) -> None:
        assert serving.engine is not None
        assert serving.detokenisers is not None
        self._socket = socket
        self._metrics = serving.metrics
        self._meter = ResponseMeter(serving.metrics)
        self._engine: EngineClient = serving.engine
        self._threads = serving.frame_threads
        self._stall_s = serving.settings.stall_s
        self._outbox = EventQueue(serving.settings.max_queued_bytes)
        self._is_cut = asyncio.Event()
        self._goodbye: tuple[int, str] | None = None
        self._work: asyncio.Future[list[Effect]] | None = None
        self._late: deque[Output] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._serving = serving
        self.key = key
        self._untold: deque[PersonFact] = deque()
        """What the engine is told once it is known whether the first one's guide can be followed."""
        self._checking: asyncio.Task[None] | None = None
        self._advised: asyncio.Future[AdvisoryAnswered] | None = None
        """Of an advisory that came as a request, and waits for its answer."""
        self._session = RealtimeSession(
            serving.engine.info,
            IdSource(secrets.token_hex(8)),
            serving.media,
            serving.detokenisers,
            serving.settings.limits,
            serving.detectors,
            postpones=True,
            readers=serving.settings.readers,
            transcript_detokenisers=serving.transcript_detokenisers,
        )

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def is_busy(self) -> bool:
        return self._session.num_open_responses > 0 or self._work is not None

    @property
    def tier(self) -> Tier:
        return "latency"

    @property
    def is_paced(self) -> bool:
        return False

    async def run(self) -> None:
        """Until the client leaves, stops reading, or is hung up on."""
        began_at, client = time.monotonic(), self._socket.client
        logger.info("session %s: opened%s", self.id, f" from {client.host}" if client else "")
        self._metrics.opened.inc()
        self._metrics.sessions.inc()
        self._engine.attach(self._session.id, self._on_output)
        self._carry_out(self._session.start())
        tasks = [
            asyncio.create_task(task)
            for task in (self._read_frames(), self._write_events(), self._is_cut.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave_engine()
            open_s = time.monotonic() - began_at
            self._metrics.session_s.observe(open_s)
            logger.info("session %s: closed after %.1f s", self.id, open_s)
        await self._close_socket()

    def hang_up(self, code: int, reason: str) -> None:
        self._goodbye = (code, reason)
        self._outbox.close()

    async def abandon(self, code: str, message: str) -> None:
        await self._work_done()
        self._carry_out(self._session.abandon(code, message, time.monotonic()))

    async def advise(self, asked: AdvisoryRequest) -> AdvisoryAnswered | None:
        """Tell the engine that a turn is coming; its answer, or None where that takes too long. Raises
        Throttled, and SessionGone, also when the client leaves meanwhile."""
        while self._work is not None and not self._work.done():
            await asyncio.wait([self._work])
        effects = self._session.advise(asked, time.monotonic())
        self._advised = asyncio.get_running_loop().create_future()
        self._carry_out(effects)
        try:
            return await asyncio.wait_for(self._advised, ADVISORY_WAIT_S)
        except TimeoutError:
            return None

    async def _read_frames(self) -> None:
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            frame = text if text is not None else message.get("bytes") or b""
            self._metrics.received_bytes.inc(len(frame))
            self._carry_out(await self._decided(frame))
            while self._late:
                self._on_output(self._late.popleft())
            # thousands of small frames may be here already, and nobody else's audio waits for them all
            await asyncio.sleep(0)

    async def _decided(self, frame: str | bytes) -> list[Effect]:
        """The session's answer. Decoding of much media leaves the loop, so that nobody else's audio waits."""
        now = time.monotonic()
        try:
            if len(frame) >= HEAVY_FRAME_BYTES or self._session.buffered_audio_s >= HEAVY_AUDIO_S:
                return await self._apart(lambda: self._session.receive(frame, now))
            effects = self._session.receive(frame, now)
            if not self._session.has_rest:
                return effects
            self._carry_out(effects)
            return await self._apart(list)
        except Exception:
            logger.exception(
                "session %s: a client frame of %d bytes met a mistake of ours", self.id, len(frame)
            )
            return [self._session.error(INTERNAL)]
        finally:
            if self._work is not None and self._work.done():
                self._work = None

    async def _apart(self, work: Callable[[], list[Effect]]) -> list[Effect]:
        """What the work, and then the rest of the frame, returns: done in a thread, which holds the session
        meanwhile."""

        def whole() -> list[Effect]:
            return [*work(), *self._session.go_on()]

        self._work = asyncio.get_running_loop().run_in_executor(self._threads, whole)
        return await asyncio.shield(self._work)

    def _on_output(self, output: Output) -> None:
        """The engine's sink. While a thread holds the session, outputs wait for it."""
        if self._work is not None:
            self._late.append(output)
            return
        try:
            self._carry_out(self._session.deliver(output, time.monotonic()))
            if isinstance(output, AdvisoryAnswered) and self._advised is not None:
                if not self._advised.done():
                    self._advised.set_result(output)
                self._advised = None
        except Exception:
            logger.exception("an output of %s met a mistake of ours", output.session)
            self._carry_out([self._session.error(INTERNAL)])

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ServerEvent):
                self._queue(effect.payload)
            else:
                if isinstance(effect.fact, TurnAdvised):
                    self._metrics.advisories.labels("taken").inc()
                self._tell(effect.fact)
        self._meter.cut(self._session.num_cut, self._session.unheard_s)
        self._set_alarm()

    def _tell(self, fact: PersonFact) -> None:
        """The engine, in order."""
        if self._untold:
            self._untold.append(fact)
        elif guide_in(fact) is None:
            self._engine.send(fact)
        else:
            self._untold.append(fact)
            self._checking = asyncio.create_task(self._tell_rest())

    async def _tell_rest(self) -> None:
        """A reply whose guide cannot be followed goes without: a call that was asked for is one all the
        same."""
        while self._untold:
            fact, guide = self._untold[0], guide_in(self._untold[0])
            try:
                if guide is not None:
                    key = self._serving.key_of(self.id)
                    await self._serving.check_guide(AskedGuide(guide, "tools"), key)
            except (AntiphonError, OSError) as error:
                logger.info("session %s: a call is not guided: %s", self.id, error)
                fact = msgspec.structs.replace(fact, sampling={})
            self._engine.send(fact)
            self._untold.popleft()

    def _set_alarm(self) -> None:
        """Come back when the session wants to, if nothing else happens before."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._work is None and (wake_at := self._session.wake_at) is not None:
            delay_s = max(0.0, wake_at - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        if self._work is None:
            self._carry_out(self._session.tick(time.monotonic()))

    def _queue(self, event: Payload) -> None:
        self._meter.saw(event, time.monotonic())
        try:
            self._outbox.put(msgspec.json.encode(event))
        except LimitExceeded as full:
            self._cut(str(full))

    def _cut(self, reason: str) -> None:
        """Drop a client that does not read: no goodbye would reach it."""
        if not self._is_cut.is_set():
            logger.warning("session %s: client reads too slowly, disconnected: %s", self._session.id, reason)
            self._metrics.slow_readers.inc()
            self._outbox.close()
            self._is_cut.set()

    async def _write_events(self) -> None:
        while (event := await self._outbox.get()) is not None:
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._socket.send_text(event.decode())
            except TimeoutError:
                self._cut(f"stall_s: nothing was read for {self._stall_s:g} s")
                return
            except (WebSocketDisconnect, RuntimeError):
                return
            self._metrics.sent_bytes.inc(len(event))

    async def _work_done(self) -> None:
        if self._work is not None:
            await asyncio.wait([self._work])
            self._work = None

    async def _leave_engine(self) -> None:
        """The engine learns at once; a thread that still holds the session is waited for first."""
        self._engine.detach(self._session.id)
        if self._advised is not None and not self._advised.done():
            self._advised.set_exception(SessionGone("The client left."))
        await self._work_done()
        self._outbox.close()
        if self._checking is not None:
            self._checking.cancel()
        untold, self._untold = self._untold, deque()
        for fact in untold:
            if guide_in(fact) is None:
                self._engine.send(fact)
        self._carry_out(self._session.close(time.monotonic()))
        self._meter.closed()
        if self._alarm is not None:
            self._alarm.cancel()
        self._metrics.sessions.dec()

    async def _close_socket(self) -> None:
        if self._is_cut.is_set():
            abort = self._socket.scope.get("extensions", {}).get(ABORT_EXTENSION)
            if abort is not None:
                abort["abort"]()
        elif self._goodbye is not None:
            try:
                await self._socket.close(*self._goodbye)
            except (WebSocketDisconnect, RuntimeError):
                logger.debug("session %s: the client left first", self._session.id)


def guide_in(fact: PersonFact) -> Guide | None:
    """What the text of a reply that is asked for has to match."""
    sampling = fact.sampling.values() if isinstance(fact, ResponseRequested) else ()
    return next((one.guide for one in sampling if one.guide is not None), None)
