"""The console in a headless Chromium, over the fake engine or over a realtime socket of the test's own."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, WebSocketRoute, async_playwright, expect

from antiphon.core.snapshot import Snapshot
from server.conftest import Running, eventually, running
from server.fake_engine import FakeEngine, Script

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

DEFAULTS: dict[str, dict[str, Any]] = {
    "server_vad": {"prefix_padding_ms": 300, "silence_duration_ms": 500, "interrupt_response": True},
    "semantic_vad": {"eagerness": "auto", "interrupt_response": True},
}
"""What each kind of turn detection is, where a client does not say."""
SENTENCE = "One two three four five six seven eight nine ten."
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass
class Opened:
    """The console in a page, and all that it complained of."""

    server: Running
    page: Page
    browser: Browser
    complaints: list[str] = field(default_factory=list)

    async def state(self, state: str) -> None:
        await expect(self.page.locator("#status")).to_have_attribute("data-state", state)

    async def viewer(self) -> Callable[[Snapshot], None]:
        """What takes the snapshots that the page shows, once it looks."""
        engine = self.server.engine
        await eventually(lambda: engine.viewer is not None)
        assert engine.viewer is not None
        return engine.viewer

    async def type(self, text: str) -> None:
        await self.page.fill("#text", text)
        await self.page.press("#text", "Enter")


@asynccontextmanager
async def chromium(voice: Path | None = None) -> AsyncIterator[Browser]:
    flags = [
        "--no-sandbox",
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        "--autoplay-policy=no-user-gesture-required",
        *([f"--use-file-for-fake-audio-capture={voice}"] if voice else []),
    ]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(
    script: Script, voice: Path | None = None, wire: OmniWire | None = None, **options: Any
) -> AsyncIterator[Opened]:
    """The console over the fake engine; with `wire`, over a realtime socket of the test's own."""
    async with running(engine=FakeEngine(script)) as server, chromium(voice) as browser:
        page = await browser.new_page(**options)
        console = Opened(server, page, browser)
        page.on("console", lambda line: line.type == "error" and console.complaints.append(line.text))
        page.on("pageerror", lambda error: console.complaints.append(str(error)))
        if wire is not None:
            await page.route_web_socket("**/v1/realtime*", wire.serve)
        await page.goto(server.http)
        await console.state("ready")
        yield console
        assert not console.complaints


class OmniWire:
    """A realtime socket that detects turns and takes acknowledgements, as far as the console needs."""

    def __init__(self, audio_s: float = 20.0) -> None:
        self.heard: list[dict[str, Any]] = []
        self._audio_s = audio_s
        self._socket: WebSocketRoute | None = None
        self._detection: dict[str, Any] | None = {"type": "server_vad"}
        self._num_replies = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.heard if event["type"] == kind]

    def serve(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        socket.on_message(self._take)
        self._session("session.created")

    def say(self, kind: str, **fields: Any) -> None:
        assert self._socket is not None
        self._socket.send(json.dumps({"type": kind, "event_id": "e", **fields}))

    def reply(self) -> None:
        """Words, and more sound than the test has time for."""
        self._num_replies += 1
        ids = {"response_id": f"resp_{self._num_replies}", "item_id": f"item_{self._num_replies}"}
        self.say("response.created", response={"id": ids["response_id"]})
        self.say("response.output_audio_transcript.delta", delta=SENTENCE, **ids)
        second = base64.b64encode(bytes(48_000)).decode()
        for _ in range(round(self._audio_s)):
            self.say("response.output_audio.delta", delta=second, **ids)
        self.say("response.done", response={"id": ids["response_id"], "status": "completed"})

    def _session(self, kind: str) -> None:
        shown = self._detection and {**DEFAULTS[self._detection["type"]], **self._detection}
        audio = {"input": {"turn_detection": shown}, "output": {}}
        self.say(
            kind,
            session={"id": "sess_own", "audio": audio, "x_extensions": ["playback.ack", "antiphon.advise"]},
        )

    def _take(self, frame: str | bytes) -> None:
        event = json.loads(frame)
        self.heard.append(event)
        if event["type"] == "response.create":
            self.reply()
        elif event["type"] == "session.update":
            asked = event["session"].get("audio", {}).get("input", {})
            self._detection = asked.get("turn_detection", self._detection)
            self._session("session.updated")
