"""The console's view of the engine, over a WebSocket: one JSON snapshot about every 250 ms."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from antiphon.core.errors import AntiphonError
from antiphon.server.admission import REALTIME_SUBPROTOCOL, check_key, check_origin, http_error, subprotocols
from antiphon.server.feed import Feed, Viewer
from antiphon.server.serving import Serving

logger = logging.getLogger("antiphon.server")

POLICY_VIOLATION = 1008

router = APIRouter()


@router.websocket("/console/feed")
async def console_feed(socket: WebSocket) -> None:
    """Admit as the realtime socket does, though without taking a session's place; show until it closes."""
    serving: Serving = socket.app.state.serving
    feed: Feed = socket.app.state.feed
    try:
        key = _check(socket, serving)
    except AntiphonError as error:
        await _refuse(socket, error)
        return
    viewer = feed.join(None if key is None else lambda session: serving.key_of(session) == key)
    try:
        chosen = REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in subprotocols(socket) else None
        await socket.accept(subprotocol=chosen)
        await _show(socket, viewer)
    finally:
        feed.leave(viewer)


def _check(socket: WebSocket, serving: Serving) -> int | None:
    """Whose sessions this client may see (None: all), or raise the reason for which it may see none."""
    check_origin(socket, serving.settings.origins)
    key = check_key(socket, serving.settings.api_keys)
    serving.check_ready()
    return key


async def _refuse(socket: WebSocket, error: AntiphonError) -> None:
    logger.info("feed refused: %s", error)
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(http_error(error))
    else:
        await socket.close(POLICY_VIOLATION, str(error)[:100])


async def _show(socket: WebSocket, viewer: Viewer) -> None:
    """What the viewer says is not listened to; that it leaves is."""
    tasks = [asyncio.create_task(task) for task in (_send(socket, viewer), _until_closed(socket))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(socket: WebSocket, viewer: Viewer) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.send_text((await viewer.get()).decode())


async def _until_closed(socket: WebSocket) -> None:
    while (await socket.receive())["type"] == "websocket.receive":
        pass
