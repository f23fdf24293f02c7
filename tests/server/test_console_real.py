"""The console against the real server: somebody speaks, is answered, and speaks over the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import soundfile
from playwright.async_api import Page, WebSocket, expect

from antiphon.bench.voice import Voices, silence
from fakes.serving import greedy, serving
from server.browser import CHROMIUM, PIXEL, chromium
from server.conftest import eventually

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH or in CHROMIUM"),
    pytest.mark.slow,
]

SAID_MS = 20_000
SPY = """(() => {
    const spy = (window.spy = { sounded: 0, delays: [] });
    const connect = AudioNode.prototype.connect;
    AudioNode.prototype.connect = function (to, ...rest) {
        if (to instanceof AudioDestinationNode) {
            const ear = new AnalyserNode(this.context, { fftSize: 256 });
            const data = new Float32Array(256);
            connect.call(this, ear);
            setInterval(() => {
                ear.getFloatTimeDomainData(data);
                if (data.some((sample) => sample !== 0)) spy.sounded = performance.now();
            }, 5);
        }
        return connect.call(this, to, ...rest);
    };
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (data) {
        if (!this.spied) this.addEventListener("message", (event) => {
            const at = performance.now();
            const { type } = JSON.parse(event.data);
            if (type !== "input_audio_buffer.speech_started" || at - spy.sounded > 50) return;
            setTimeout(() => spy.delays.push(spy.sounded - at), 300);
        });
        this.spied = true;
        return send.call(this, data);
    };
})()"""
"""How long sound went on after the server said that somebody speaks over it, in milliseconds."""


@dataclass
class Visit:
    """The console in a page, and every event of its realtime socket in both directions."""

    page: Page
    sent: list[dict[str, Any]] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def listen(self, socket: WebSocket) -> None:
        if "/v1/realtime" in socket.url:
            socket.on("framesent", lambda frame: self.sent.append(json.loads(frame)))
            socket.on("framereceived", lambda frame: self.heard.append(json.loads(frame)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in (*self.sent, *self.heard) if event["type"] == kind]

    async def settle(self, name: str, value: str | bool) -> None:
        """Choose in the settings drawer, and wait until the server has agreed."""
        agreed = len(self.of("session.updated"))
        await self.page.click("#open-settings")
        if isinstance(value, bool):
            await self.page.set_checked(name, value)
        else:
            await self.page.fill(name, value)
        await self.page.keyboard.press("Escape")
        await eventually(lambda: len(self.of("session.updated")) >= agreed + 2)


@asynccontextmanager
async def visiting(url: str, voice: str) -> AsyncIterator[Visit]:
    async with chromium(voice) as browser:
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(SAID_MS)
        visit = Visit(page)
        page.on("websocket", visit.listen)
        page.on("console", lambda line: line.type == "error" and visit.complaints.append(line.text))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        await page.add_init_script(SPY)
        await page.goto(url)
        await expect(page.locator("#status")).to_have_attribute("data-state", "ready")
        yield visit
        assert not visit.complaints


@pytest.fixture
async def server(tiny_checkpoint: Path, tmp_path: Path) -> AsyncIterator[str]:
    async with serving(greedy(tiny_checkpoint, tmp_path / "greedy"), tmp_path / "run.record") as url:
        yield url


@pytest.fixture
def talk(tmp_path: Path) -> str:
    """Speech, a pause in which the reply begins, speech over it, and quiet."""
    voices, path = Voices.synthetic(), tmp_path / "talk.wav"
    parts = silence(1.0), voices.speak(1.4, 1), silence(1.6), voices.speak(1.6, 1), silence(60.0)
    with soundfile.SoundFile(path, "w", 24_000, 1, "PCM_16") as file:
        file.buffer_write(b"".join(parts), "int16")
    return f"{path}%noloop"


async def test_speaks_is_answered_and_interrupts(server: str, talk: str) -> None:
    async with visiting(server, talk) as visit:
        page, users, replies = visit.page, visit.page.locator(".user"), visit.page.locator(".assistant")
        await visit.settle("#min-speech", "160")
        await visit.settle("#transcribe", True)
        await page.click("#talk")
        await expect(replies).to_have_count(2, timeout=SAID_MS)
        await eventually(lambda: len(visit.of("response.done")) == 2)
        kinds = [event["type"] for event in visit.heard]
        started = [at for at, kind in enumerate(kinds) if kind == "input_audio_buffer.speech_started"]
        assert len(started) == 2
        assert kinds.index("input_audio_buffer.committed") < kinds.index("response.created") < started[1]
        # spoken over: silence at once, the server told how much was heard, the rest struck out
        (cut,) = visit.of("conversation.item.truncate")
        assert cut["audio_end_ms"] > 0
        assert len(visit.of("conversation.item.truncated")) == 1
        (delay,) = await page.evaluate("spy.delays")
        assert delay < 100
        await expect(replies.first).to_have_class("assistant cut")
        await expect(replies.first).to_contain_text("interrupted")
        assert await replies.first.locator(".ahead").text_content()
        # the next turn is answered and played to its end, which the server is told
        await expect(page.locator("#status")).to_have_attribute("data-state", "listening", timeout=SAID_MS)
        whole = [ack for ack in visit.of("playback.ack") if ack["item_id"] != cut["item_id"]]
        assert whole
        total_ms = sum(
            len(event["delta"]) * 3 / 4 / 48
            for event in visit.of("response.output_audio.delta")
            if event["item_id"] == whole[0]["item_id"]
        )
        assert whole[-1]["played_ms"] == pytest.approx(total_ms, abs=1)
        # what was said is written down
        await eventually(lambda: len(visit.of("conversation.item.input_audio_transcription.completed")) == 2)
        for at, event in enumerate(visit.of("conversation.item.input_audio_transcription.completed")):
            await expect(users.nth(at).locator("span")).to_have_text(event["transcript"])
        detection = visit.of("session.updated")[-1]["session"]["audio"]["input"]["turn_detection"]
        assert (detection["type"], detection["min_speech_ms"]) == ("server_vad", 160)
        # and the panels show this session and its steps
        await expect(page.locator("#sessions tbody .who")).to_have_text("this page")
        assert await page.locator("#decisions li").count() > 3


async def test_types_and_shows_a_picture(server: str, talk: str) -> None:
    async with visiting(server, talk) as visit:
        picture = {"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}
        await visit.page.set_input_files("#file", [picture])
        await visit.page.fill("#text", "What is it?")
        await visit.page.press("#text", "Enter")
        await eventually(lambda: bool(visit.of("response.done")))
        usage = visit.of("response.done")[0]["response"]["usage"]
        assert usage["input_token_details"]["image_tokens"] > 0
        await expect(visit.page.locator(".assistant small")).to_contain_text("first sound")
        await visit.page.keyboard.press("Escape")
        await expect(visit.page.locator("#status")).to_have_attribute("data-state", "ready")
