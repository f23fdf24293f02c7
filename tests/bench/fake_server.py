"""A realtime server without a model: tones at a given rate, energy as voice detection, refusals, death.

python tests/bench/fake_server.py --reply-s 3 --speed 2        prints its URL and serves until killed
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import sys
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

RATE_HZ = 24_000
BYTES_PER_S = 2 * RATE_HZ
ids = itertools.count()


@dataclass
class Manner:
    """How the server answers. Seconds; `speed` is audio per second of time; `gap_s` once in mid-reply.

    `num_updates`: how many updates of a session are answered; None: all.
    """

    reply_s: float = 0.3
    first_s: float = 0.02
    delta_s: float = 0.1
    speed: float = 4.0
    gap_s: float = 0.0
    text: str = "Well, I never did."
    vad_silence_s: float = 0.2
    interrupts: bool = True
    has_vad: bool = True
    has_truncate: bool = True
    extensions: tuple[str, ...] = ("playback.ack",)
    num_refusals: int = 0
    num_updates: int | None = None
    most_tokens: int = 4096
    refuse_asks: bool = False
    is_silent: bool = False
    metrics: str = ""


@dataclass
class FakeServer:
    """Serves on a free port; `seen` holds every client event, `first_audio_s` when a reply's audio left."""

    manner: Manner = field(default_factory=Manner)
    seen: list[dict[str, Any]] = field(default_factory=list)
    first_audio_s: dict[str, float] = field(default_factory=dict)
    keeps_events: bool = True
    num_open: int = 0
    most_open: int = 0
    _server: Server | None = None

    async def __aenter__(self) -> FakeServer:
        self._server = await serve(
            self._session, "127.0.0.1", 0, process_request=self._http, compression=None, max_size=None
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def die(self) -> None:
        """Connections break off, the port closes."""
        if self._server is not None:
            for connection in list(self._server.connections):
                connection.transport.abort()
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.seen]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.seen if event["type"] == kind]

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        parts = urlsplit(request.path)
        if parts.path == "/v1/models":
            return connection.respond(HTTPStatus.OK, json.dumps({"data": [{"id": "fake/echo"}]}))
        if parts.path == "/first_audio":
            return connection.respond(HTTPStatus.OK, json.dumps(self.first_audio_s))
        if parts.path == "/metrics" and self.manner.metrics:
            return connection.respond(HTTPStatus.OK, self.manner.metrics)
        if parts.path != "/v1/realtime":
            return connection.respond(HTTPStatus.NOT_FOUND, "no such page")
        if parse_qs(parts.query).get("model") != ["fake/echo"]:
            return connection.respond(HTTPStatus.NOT_FOUND, "the model does not exist")
        if self.manner.num_refusals > 0:
            self.manner.num_refusals -= 1
            refusal = connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "full")
            refusal.headers["Retry-After"] = "0.1"
            return refusal
        return None

    async def _session(self, connection: ServerConnection) -> None:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        session = FakeSession(connection, self)
        try:
            await session.run()
        except ConnectionClosed:
            pass
        finally:
            self.num_open -= 1
            session.stop()


class FakeSession:
    """One socket."""

    def __init__(self, connection: ServerConnection, server: FakeServer) -> None:
        self._connection = connection
        self._server = server
        self._manner = server.manner
        self._config: dict[str, Any] = {"type": "realtime", "x_extensions": list(self._manner.extensions)}
        self._detection: dict[str, Any] | None = None
        self._reply: asyncio.Task[None] | None = None
        self._is_hearing = False
        self._silence_s = 0.0
        self._num_updates = 0

    async def run(self) -> None:
        await self._send("session.created", session=self._config)
        async for frame in self._connection:
            event = json.loads(frame)
            if self._server.keeps_events:
                self._server.seen.append(event)
            await self._receive(event)

    def stop(self) -> None:
        if self._reply is not None:
            self._reply.cancel()

    async def _receive(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "session.update":
                await self._update(event)
            case "input_audio_buffer.append" if self._detection:
                await self._hear(base64.b64decode(event["audio"]))
            case "response.create":
                await self._ask(event)
            case "response.cancel":
                await self._cancel("client_cancelled")
            case "conversation.item.truncate" if not self._manner.has_truncate:
                await self._error(event, "unknown_event")
            case _:
                pass

    async def _update(self, event: dict[str, Any]) -> None:
        heard = event["session"].get("audio", {}).get("input", {})
        if heard.get("turn_detection") and not self._manner.has_vad:
            await self._error(event, "invalid_value")
            return
        if event["session"].get("max_output_tokens", 1) > self._manner.most_tokens:
            await self._error(event, "invalid_value")
            return
        self._detection = heard.get("turn_detection", self._detection)
        if self._detection:
            self._detection["interrupt_response"] = self._manner.interrupts
        self._config |= {"audio": {"input": {"turn_detection": self._detection}}}
        self._num_updates += 1
        if self._manner.num_updates is None or self._num_updates <= self._manner.num_updates:
            await self._send("session.updated", session=self._config)

    async def _hear(self, pcm: bytes) -> None:
        samples = np.frombuffer(pcm, "<i2")
        if np.abs(samples).max(initial=0) > 500:
            self._silence_s = 0.0
            if not self._is_hearing:
                self._is_hearing = True
                await self._send("input_audio_buffer.speech_started")
                if self._manner.interrupts:
                    await self._cancel("turn_detected")
        elif self._is_hearing:
            self._silence_s += len(pcm) / BYTES_PER_S
            if self._silence_s >= self._manner.vad_silence_s:
                self._is_hearing = False
                await self._send("input_audio_buffer.speech_stopped")
                await self._start({})

    async def _ask(self, event: dict[str, Any]) -> None:
        if self._manner.refuse_asks:
            await self._error(event, "rate_limit_exceeded")
        elif not self._manner.is_silent:
            await self._start(event.get("response", {}))

    async def _start(self, asked: dict[str, Any]) -> None:
        response = f"resp_{next(ids)}"
        await self._send("response.created", response={"id": response, "status": "in_progress"})
        wants_text = asked.get("output_modalities") == ["text"]
        self._reply = asyncio.create_task(self._write(response) if wants_text else self._speak(response))

    async def _cancel(self, reason: str) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.cancel()
            response = self._reply.get_name()
            details = {"reason": reason}
            answer = {"id": response, "status": "cancelled", "status_details": details}
            await self._send("response.done", response=answer)

    async def _speak(self, response: str) -> None:
        assert self._reply is not None
        self._reply.set_name(response)
        manner = self._manner
        where = {"response_id": response, "item_id": f"item_{response}", "content_index": 0}
        await self._send("response.output_audio_transcript.delta", delta=manner.text, **where)
        await asyncio.sleep(manner.first_s)
        start_s = time.monotonic()
        self._server.first_audio_s[response] = start_s
        num_deltas = round(manner.reply_s / manner.delta_s)
        delta = base64.b64encode(bytes(round(manner.delta_s * RATE_HZ) * 2)).decode()
        for index in range(num_deltas):
            await self._send("response.output_audio.delta", delta=delta, **where)
            is_middle = index == num_deltas // 2
            start_s += manner.gap_s if is_middle else 0.0
            due_s = start_s + (index + 1) * manner.delta_s / manner.speed
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await self._done(response)

    async def _write(self, response: str) -> None:
        where = {"response_id": response, "item_id": f"item_{response}", "content_index": 0}
        for word in self._manner.text.split(" "):
            await self._send("response.output_text.delta", delta=word + " ", **where)
        await self._done(response)

    async def _done(self, response: str) -> None:
        usage = {
            "input_tokens": 12,
            "input_token_details": {"cached_tokens": 3},
            "output_token_details": {"text_tokens": 4, "audio_tokens": 5},
        }
        answer = {"id": response, "status": "completed", "status_details": None, "usage": usage}
        await self._send("response.done", response=answer)

    async def _error(self, event: dict[str, Any], code: str) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": f"{event['type']}: no"}
        await self._send("error", error=error | {"event_id": event.get("event_id")})

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._connection.send(json.dumps({"type": kind, "event_id": f"event_{next(ids)}", **fields}))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reply-s", type=float, default=3.0)
    parser.add_argument("--speed", type=float, default=2.0)
    arguments = parser.parse_args()
    manner = Manner(reply_s=arguments.reply_s, speed=arguments.speed, vad_silence_s=0.5)
    async with FakeServer(manner, keeps_events=False) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
