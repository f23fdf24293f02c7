"""Bodies of requests without a server: where they are parsed, and how long they may take to come."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastapi import Request
from starlette.types import Message

from antiphon.core.errors import ProtocolError
from antiphon.server import bodies
from antiphon.server.admission import http_error
from antiphon.server.bodies import LONG_BODY_BYTES, read_body, typed
from antiphon.server.settings import ServerSettings
from antiphon.wire.audio_api import SpeechRequest
from server.conftest import running


def request(*pieces: bytes) -> Request:
    """One whose client sends these, and nothing after them."""
    left = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]

    async def receive() -> Message:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return Request({"type": "http", "headers": []}, receive)


async def test_a_body_that_stops_coming_is_not_waited_for() -> None:
    settings = ServerSettings(stall_s=0.02)
    for pieces in ((), (b"a", b"b")):
        with pytest.raises(ProtocolError, match=r"body came for 0.02 s") as caught:
            await read_body(request(*pieces), settings)
        assert http_error(caught.value).status_code == 408


async def test_a_client_whose_body_stops_is_told_408() -> None:
    async def ask(port: int, route: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{"
        writer.write(head.encode())
        answer = await reader.read()  # to the end: the connection closes, after some seconds
        writer.close()
        return answer

    routes = "chat/completions", "completions", "audio/speech", "audio/transcriptions", "advisories"
    async with running(ServerSettings(stall_s=0.02)) as served:
        served.server.config.timeout_keep_alive = 1  # what it waits for before it closes
        answers = await asyncio.gather(*(ask(served.port, route) for route in routes))
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in answer


async def test_a_long_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    decode = bodies.decode_json

    def watched(text: bytes, what: str) -> Any:
        threads.append(threading.current_thread())
        return decode(text, what)

    monkeypatch.setattr(bodies, "decode_json", watched)
    for num_chars in (10, LONG_BODY_BYTES):
        body = b'{"input": "' + b"a" * num_chars + b'"}'
        assert len((await typed(body, SpeechRequest)).input) == num_chars
        with pytest.raises(ProtocolError, match="not valid JSON"):
            await typed(body[:-1], SpeechRequest)
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, True, False, False]
