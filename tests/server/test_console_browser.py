"""The console in a headless Chromium, with a microphone made of a file."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
from playwright.async_api import expect

from antiphon.core.facts import ItemAdded, ResponseCancelled, ResponseRequested
from antiphon.server.settings import ServerSettings
from server.browser import CHROMIUM, PIXEL, SENTENCE, OmniWire, chromium, opened
from server.conftest import eventually, running
from server.fake_engine import INFO, FakeEngine, Script
from server.test_console import snapshot

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH or in CHROMIUM"),
    pytest.mark.slow,
]


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    path = tmp_path / "voice.wav"
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(2 * 24_000) / 24_000)
    soundfile.write(path, wave, 24_000, subtype="PCM_16")
    return path


async def test_types_a_turn_and_hears_the_answer() -> None:
    async with opened(Script(SENTENCE, audio_s=0.6)) as console:
        await console.type("Hello")
        await expect(console.page.locator(".user")).to_have_text("Hello")
        await expect(console.page.locator(".assistant .heard")).to_have_text(SENTENCE)
        await expect(console.page.locator(".assistant small")).to_contain_text("0.6 of 0.6 s heard")
        await expect(console.page.locator(".assistant small")).to_contain_text("first sound after")
        await expect(console.page.locator("#announcer")).to_have_text(SENTENCE)
        await console.state("ready")


async def test_speaks_with_the_keyboard_alone(voice: Path) -> None:
    async with opened(Script(SENTENCE), voice) as console:
        await console.page.click("#open-settings")
        await console.page.check("input[value=manual]")
        await console.page.click("#settings button")
        await console.page.evaluate("document.activeElement.blur()")
        await expect(console.page.locator("#hint")).to_contain_text("Hold space")
        await console.page.keyboard.down("Space")
        await console.state("listening")
        await console.page.wait_for_timeout(1200)
        await console.page.keyboard.up("Space")
        await eventually(lambda: bool(console.server.engine.of(ResponseRequested)))
        samples = console.server.engine.of(ItemAdded)[0].item.parts[0].samples
        assert np.abs(np.frombuffer(samples, "<f4")).max() > 0.05, "the microphone was silent"
        await expect(console.page.locator(".assistant")).to_contain_text("One two")


async def test_stop_cuts_the_answer_where_it_was_heard() -> None:
    async with opened(Script(SENTENCE, audio_s=20.0)) as console:
        await console.type("Go on")
        await console.state("replying")
        await console.page.wait_for_timeout(1000)
        await console.page.keyboard.press("Escape")
        await console.state("ready")
        unheard = await console.page.locator(".assistant.cut .ahead").text_content()
        assert unheard
        assert SENTENCE.endswith(unheard)
        assert len(unheard) > len(SENTENCE) / 2


async def test_stop_cancels_what_is_still_made() -> None:
    async with opened(Script(SENTENCE, audio_s=4.0, gate=asyncio.Event())) as console:
        await console.type("Go on")
        await eventually(lambda: bool(console.server.engine.of(ResponseRequested)))
        await console.state("waiting")
        await console.page.click("#stop")
        await eventually(lambda: bool(console.server.engine.of(ResponseCancelled)))
        await expect(console.page.locator(".assistant small")).to_have_text("stopped")
        await console.state("ready")


class Cancelling(OmniWire):
    """Ends the running reply as soon as it is told to."""

    def _take(self, frame: str | bytes) -> None:
        super()._take(frame)
        if json.loads(frame)["type"] == "response.cancel":
            response = {
                "id": "resp_x",
                "status": "cancelled",
                "status_details": {"reason": "client_cancelled"},
            }
            self.say("response.done", response=response)


async def test_a_reply_that_is_stopped_says_so_once() -> None:
    wire = Cancelling()
    async with opened(Script(), wire=wire) as console:
        ids = {"response_id": "resp_x", "item_id": "item_x"}
        wire.say("response.created", response={"id": "resp_x"})
        wire.say("response.output_audio_transcript.delta", delta=SENTENCE, **ids)
        wire.say("response.output_audio.delta", delta=base64.b64encode(bytes(480_000)).decode(), **ids)
        await console.state("replying")
        await console.page.keyboard.press("Escape")
        await eventually(lambda: bool(wire.of("conversation.item.truncate")))
        await console.state("ready")
        note = await console.page.locator(".assistant small").text_content()
        assert note is not None
        assert note.count("stopped") == 1, note


async def test_acknowledges_what_is_played_and_the_end() -> None:
    wire = OmniWire(audio_s=1.0)
    async with opened(Script(), wire=wire) as console:
        await console.type("Hello")
        await eventually(lambda: bool(wire.of("playback.ack")) and wire.heard[-1].get("played_ms") == 1000)
        acks = wire.of("playback.ack")
        assert all(ack["item_id"] == "item_1" and ack["response_id"] == "resp_1" for ack in acks)
        played = [ack["played_ms"] for ack in acks]
        assert played == sorted(played)
        assert 3 <= len(played) <= 8, "about every 200 ms"
        await console.state("ready")
        assert not wire.of("conversation.item.truncate")


async def test_typing_announces_a_turn_at_the_first_key_and_not_at_each() -> None:
    wire = OmniWire(audio_s=1.0)
    async with opened(Script(), wire=wire) as console:
        await console.page.locator("#text").press_sequentially("Hello there", delay=20)
        await eventually(lambda: bool(wire.of("antiphon.advise")))
        assert await console.page.input_value("#text") == "Hello there"
        assert len(wire.of("antiphon.advise")) == 1
        assert wire.heard[-1]["type"] == "antiphon.advise"


async def test_speech_interrupts_and_the_cut_is_told(voice: Path) -> None:
    wire = OmniWire()
    async with opened(Script(), voice, wire) as console:
        page = console.page
        await expect(page.locator("#hint")).to_contain_text("opens and closes the microphone")
        await page.keyboard.press("Space")
        await expect(page.locator("#talk")).to_have_attribute("aria-pressed", "true")
        await eventually(lambda: len(wire.of("input_audio_buffer.append")) > 5)
        await console.type("Tell me everything")
        await console.state("replying")
        await page.wait_for_timeout(800)
        wire.say("input_audio_buffer.speech_started", item_id="item_u", audio_start_ms=1000)
        await eventually(lambda: bool(wire.of("conversation.item.truncate")))
        cut = wire.of("conversation.item.truncate")[0]
        assert (cut["item_id"], cut["content_index"]) == ("item_1", 0)
        assert 500 <= cut["audio_end_ms"] <= 2500
        await expect(page.locator(".cut .ahead")).to_contain_text("ten.")
        await expect(page.locator(".cut small")).to_contain_text("interrupted")
        await console.state("listening")
        wire.say("input_audio_buffer.speech_stopped", item_id="item_u", audio_end_ms=2500)
        wire.say("input_audio_buffer.committed", item_id="item_u")
        await expect(page.locator(".user").last).to_have_text("Spoken message0.7 s")
        said = {"item_id": "item_u", "content_index": 0}
        wire.say("conversation.item.input_audio_transcription.completed", transcript="Stop.", **said)
        await expect(page.locator(".user").last).to_contain_text("Stop.")
        assert not wire.of("input_audio_buffer.commit")


@pytest.mark.parametrize(
    ("turns", "length", "silence_s"),
    [("server_vad", "2.2 s", 0.5), ("semantic_vad", "3.0 s with the pause after it", 0.0)],
)
async def test_the_silence_that_ends_a_turn_is_waited_for_and_not_said(
    voice: Path, turns: str, length: str, silence_s: float
) -> None:
    wire = OmniWire()
    async with opened(Script(), voice, wire) as console:
        await console.page.click("#open-settings")
        await console.page.check(f"input[value={turns}]")
        await console.page.click("#settings button")
        await console.page.evaluate("document.activeElement.blur()")
        await console.page.keyboard.press("Space")
        await eventually(lambda: len(wire.of("input_audio_buffer.append")) >= 76)
        await console.page.keyboard.press("Space")
        await console.state("ready")
        wire.say("input_audio_buffer.speech_started", item_id="item_u", audio_start_ms=0)
        appended = sum(len(base64.b64decode(e["audio"])) for e in wire.of("input_audio_buffer.append")) / 48
        late_ms = appended - 3000
        wire.say("input_audio_buffer.speech_stopped", item_id="item_u", audio_end_ms=3000)
        wire.say("input_audio_buffer.committed", item_id="item_u")
        await expect(console.page.locator(".user small")).to_have_text(length)
        wire.reply()
        note = console.page.locator(".assistant small")
        await expect(note).to_contain_text("first sound")
        said = await note.inner_text()
        assert ("after your turn's end" in said) == (not silence_s)
        (seconds,) = (float(word) for word in re.findall(r"first sound (?:after )?([\d.]+) s", said))
        assert seconds >= silence_s + late_ms / 1000 - 0.01
        assert seconds < silence_s + late_ms / 1000 + 0.8, "nothing else is counted"


async def test_words_whose_sound_had_not_come_were_not_heard() -> None:
    wire = OmniWire()
    async with opened(Script(), wire=wire) as console:
        ids = {"response_id": "resp_x", "item_id": "item_x"}
        wire.say("response.created", response={"id": "resp_x"})
        wire.say("response.output_audio_transcript.delta", delta=SENTENCE, **ids)
        await expect(console.page.locator(".assistant .ahead")).to_have_text(SENTENCE)
        await console.page.keyboard.press("Escape")
        await expect(console.page.locator(".assistant.cut .ahead")).to_have_text(SENTENCE)
        assert wire.of("response.cancel")


async def test_settings_are_told_and_kept() -> None:
    wire = OmniWire()
    async with opened(Script(), wire=wire) as console:
        page = console.page
        await page.click("#open-settings")
        await page.fill("#instructions", "Be kind.")
        await page.fill("#min-speech", "160")
        await page.check("input[value=semantic_vad]")
        await page.check("#transcribe")
        await page.keyboard.press("Escape")
        await expect(page.locator("#settings")).not_to_be_visible()
        updates = [event["session"] for event in wire.of("session.update")]
        assert updates[-2]["instructions"] == "Be kind."
        assert updates[-2]["audio"]["input"]["transcription"].keys() == {"model"}
        assert updates[-1]["audio"]["input"]["turn_detection"] == {
            "type": "semantic_vad",
            "min_speech_ms": 160,
        }
        await page.reload()
        await console.state("ready")
        assert await page.input_value("#instructions") == "Be kind."


async def test_an_engine_that_falls_silent_is_said() -> None:
    async with opened(Script()) as console:
        view = await console.viewer()
        rate = console.page.locator("#rate")
        for shown, at in enumerate((1.0, 2.25), 1):
            view(snapshot(at))
            await expect(console.page.locator("#decisions li")).to_have_count(shown)
        await expect(rate).to_have_text("1 steps/s")
        await expect(console.page.locator("#sessions tbody tr")).to_have_count(1)
        await expect(console.page.locator("#no-sessions")).to_contain_text("feed is not there")
        await expect(rate).to_be_empty()
        view(snapshot(60.0))
        await expect(console.page.locator("#sessions tbody tr")).to_have_count(1)
        await expect(rate).to_be_empty()


async def test_an_engine_that_starts_again_shows_nothing_of_the_last() -> None:
    async with opened(Script()) as console:
        page, engine = console.page, console.server.engine
        await eventually(lambda: engine.viewer is not None)
        assert engine.viewer is not None
        for shown, at in enumerate((1.0, 2.25), 1):
            engine.viewer(snapshot(at))
            await expect(page.locator("#decisions li")).to_have_count(shown)
        await expect(page.locator("#rate")).to_have_text("1 steps/s")
        console.server.serving.engine, console.server.serving.loading = None, "starting"
        console.server.serving.forsake()
        await console.state("loading")
        assert await page.locator("#rate").inner_text() == ""
        assert await page.locator("#sessions tbody tr").count() == 0
        await expect(page.locator("#no-sessions")).to_contain_text("feed is not there")
        engine.viewer(snapshot(3.0, count=0))
        await expect(page.locator("#no-sessions")).to_have_text("Nobody is connected.")


async def test_a_strained_server_does_not_say_that_its_places_are_taken() -> None:
    async with running() as server, chromium() as browser:
        server.serving.least_lead_s = lambda: 0.1
        page = await browser.new_page()
        await page.goto(server.http)
        await expect(page.locator("#status")).to_have_attribute("data-state", "strained")
        await expect(page.locator("#headline")).to_have_text("Live listeners are about to run dry")
        await expect(page.locator("#how")).to_contain_text("less than 0.6 s")


async def test_a_full_server_is_watched_and_said_to_be_full() -> None:
    async with running(ServerSettings(max_sessions=1)) as server, chromium() as browser:
        page = await browser.new_page()
        async with server.socket() as taken:
            await taken.read()
            await page.goto(server.http)
            status = page.locator("#status")
            await expect(status).to_have_attribute("data-state", "full")
            await expect(page.locator("#headline")).to_have_text("All places are taken")
            await expect(page.locator("#how")).to_contain_text("all 1 sessions are in use")
            await eventually(lambda: server.engine.viewer is not None)
            assert server.engine.viewer is not None
            server.engine.viewer(snapshot())
            await expect(page.locator("#sessions tbody tr")).to_have_count(1)
        await expect(status).to_have_attribute("data-state", "ready", timeout=20_000)


async def test_a_model_that_loads_says_how_far_it_is() -> None:
    async with running() as server, chromium() as browser:
        page, serving, engine = await browser.new_page(), server.serving, server.serving.engine
        serving.engine, serving.loading = None, "loading thinker, 40 %"
        await page.goto(server.http)
        await expect(page.locator("#status")).to_have_attribute("data-state", "loading")
        await expect(page.locator("#how")).to_have_text("Now: loading thinker, 40 %.")
        await expect(page.locator("#hint")).to_contain_text("Space opens")
        await expect(page.locator("#error")).to_be_hidden()
        serving.engine = engine
        await expect(page.locator("#headline")).to_have_text("Say something")


async def test_a_session_that_is_lost_is_told_apart_from_the_next() -> None:
    async with opened(Script(SENTENCE, gate=asyncio.Event())) as console:
        await console.type("Hello")
        await expect(console.page.locator(".assistant")).to_have_count(1)
        console.server.serving.forsake()
        await expect(console.page.locator(".assistant small")).to_contain_text("failed")
        await expect(console.page.locator(".divider")).to_contain_text("does not know what stands above")
        await console.state("ready")


async def test_words_are_heard_when_their_sound_is() -> None:
    wire, ids = OmniWire(), {"response_id": "resp", "item_id": "item"}
    async with opened(Script(), wire=wire) as console:
        heard, ahead = console.page.locator(".heard"), console.page.locator(".ahead")
        wire.say("response.created", response={"id": "resp"})
        wire.say("response.output_audio_transcript.delta", delta=SENTENCE, **ids)
        for samples in (8009, 8011, 8017):  # whose times in ms add up to a little more than their sum's
            wire.say(
                "response.output_audio.delta", delta=base64.b64encode(bytes(2 * samples)).decode(), **ids
            )
        await expect(console.page.locator(".assistant small")).to_contain_text("1.0 of 1.0 s heard")
        assert len(await ahead.text_content() or "") > 10, "1 s is less than so many words take"
        wire.say("response.done", response={"id": "resp", "status": "completed"})
        await expect(heard).to_have_text(SENTENCE)
        await expect(ahead).to_have_text("")


async def test_what_a_transcriber_hears_is_written_down_unasked() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, languages=("en",)))
    async with running(engine=engine) as server, chromium() as browser:
        page, sent = await browser.new_page(), list[Any]()
        page.on(
            "websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame)))
        )
        await page.goto(server.http)
        await expect(page.locator("#transcribe")).to_be_checked()
        await eventually(lambda: len(sent) > 1)
        assert sent[0]["session"]["audio"]["input"]["transcription"] == {"model": "test-omni"}
        await page.click("#open-settings")
        await page.uncheck("#transcribe")
        await eventually(lambda: sent[-2]["session"]["audio"]["input"].get("transcription", 0) is None)
        await page.reload()
        await expect(page.locator("#status")).to_have_attribute("data-state", "ready")
        await expect(page.locator("#transcribe")).not_to_be_checked()


async def test_sends_a_picture() -> None:
    async with opened(Script("Nice.", audio_s=0.2)) as console:
        picture = {"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}
        await console.page.set_input_files("#file", [picture, picture])
        await expect(console.page.locator("#images img")).to_have_count(2)
        await console.page.click("#images button >> nth=0")
        await console.type("What is it?")
        await expect(console.page.locator(".user img")).to_have_count(1)
        await expect(console.page.locator("#images")).not_to_be_visible()
        await eventually(lambda: bool(console.server.engine.of(ItemAdded)))
        assert len(console.server.engine.of(ItemAdded)[0].item.parts) == 2


async def test_offers_no_pictures_to_a_model_that_takes_none() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(INFO, inputs=("audio",)))
    async with running(engine=engine) as server, chromium() as browser:
        page = await browser.new_page()
        await page.goto(server.http)
        await expect(page.locator("#status")).to_have_attribute("data-state", "ready")
        await expect(page.locator("#attach")).not_to_be_visible()
        picture = {"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}
        await page.set_input_files("#file", [picture])
        await expect(page.locator("#error")).to_contain_text("This model takes no pictures.")
        await expect(page.locator("#images img")).to_have_count(0)
