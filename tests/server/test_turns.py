"""Voices over a real socket: spoken turns, interruptions, and an "uh-huh"."""

from __future__ import annotations

import asyncio
import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from antiphon.core.conversation import AudioPart
from antiphon.core.facts import ItemAdded, ItemCut, ResponseCancelled, SpeechEnded, SpeechStarted
from antiphon.server.media import BoundedMedia
from antiphon.wire.limits import Limits
from server.conftest import Running, Socket, eventually, running
from server.fake_engine import FakeEngine, Script
from voice import pcm16, silence, voice
from wire.harness import kinds, pcm

TEXT = "one two three four five six seven eight"


async def say(client: Socket, *pieces: np.ndarray) -> None:
    """Append sound in pieces of 100 ms, faster than it lasts."""
    data = pcm16(np.concatenate(pieces))
    for start in range(0, len(data), 4800):
        audio = base64.b64encode(data[start : start + 4800]).decode()
        await client.send("input_audio_buffer.append", audio=audio)


async def detect(client: Socket, **fields: Any) -> None:
    detection = {"type": "server_vad", **fields}
    session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    await client.send("session.update", session=session)
    await client.until("session.updated")


class WatchedMedia(BoundedMedia):
    """Notes where recordings are resampled."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.on_the_loop: list[bool] = []

    def audio_part(self, pcm16_24k: bytes) -> AudioPart:
        self.on_the_loop.append(threading.current_thread() is threading.main_thread())
        return super().audio_part(pcm16_24k)


async def test_a_long_turn_is_taken_up_beside_the_event_loop_and_a_short_one_on_it(served: Running) -> None:
    """Resampling 20 s takes 20 ms, in which nobody else's audio would be read."""
    media = served.serving.media = WatchedMedia()
    async with served.socket() as client:
        await say(client, voice(2.6), silence(0.8))
        events = await client.until("response.done")
        assert kinds(events).count("input_audio_buffer.committed") == 1
        await client.by_hand()
        await client.send("input_audio_buffer.append", audio=pcm(0.4))
        await client.send("input_audio_buffer.commit")
        await client.until("input_audio_buffer.committed")
        await client.send("input_audio_buffer.clear")
        for _ in range(30):
            await client.send("input_audio_buffer.append", audio=pcm(0.1))
        await client.send("input_audio_buffer.commit")
        await client.until("input_audio_buffer.committed")
    assert media.on_the_loop == [False, True, False]


async def test_a_long_turn_waits_for_no_thread_that_does_something_else(served: Running) -> None:
    """Such as to fetch what a request names from a slow host."""
    go_on, loop = threading.Event(), asyncio.get_running_loop()
    async with served.socket() as client:
        await client.by_hand()
        loop.set_default_executor(ThreadPoolExecutor(1))
        slow = loop.run_in_executor(None, go_on.wait)
        try:
            for _ in range(30):
                await client.send("input_audio_buffer.append", audio=pcm(0.1))
            await client.send("input_audio_buffer.commit")
            async with asyncio.timeout(20):
                await client.until("input_audio_buffer.committed")
        finally:
            go_on.set()
            await slow


async def test_a_turn_in_which_nobody_speaks_ends_its_response_and_interrupts_none() -> None:
    engine = FakeEngine(Script("", audio_s=0.0, status="cancelled", reason="no_speech"))
    async with running(engine=engine) as served:
        async with served.socket() as client:
            await say(client, voice(0.5), silence(0.8))
            done = (await client.until("response.done"))[-1]["response"]
            error = {"type": "invalid_request_error", "code": "no_speech"}
            assert done["status_details"] == {"type": "cancelled", "error": error}
        await eventually(lambda: not served.serving.connections)
        async with httpx.AsyncClient(base_url=served.http) as http:
            text = (await http.get("/metrics")).text
    assert 'antiphon_server_responses_total{status="cancelled"} 1.0' in text
    assert "antiphon_server_interrupted_total{" not in text
    assert "antiphon_server_speech_starts_total 1.0" in text
    assert 'antiphon_server_spoken_turns_total{ended_by="vad"} 1.0' in text
    assert "antiphon_server_session_seconds_count 1.0" in text


async def test_speaking_is_answered(served: Running) -> None:
    async with served.socket() as client:
        await say(client, silence(0.5), voice(0.8), silence(0.8))
        events = await client.until("response.done")
        assert kinds(events)[1:7] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        assert events[-1]["response"]["status"] == "completed"
    (added,) = served.engine.of(ItemAdded)
    assert added.item.parts[0].num_samples / 16_000 == pytest.approx(0.3 + 0.8 + 0.5, abs=0.2)
    assert [len(served.engine.of(kind)) for kind in (SpeechStarted, SpeechEnded)] == [1, 1]


async def test_speaking_over_the_reply_ends_it() -> None:
    engine = FakeEngine(Script(TEXT, audio_s=8.0, chunk_s=1.0, pace_s=0.1))
    async with running(engine=engine) as served, served.socket() as client:
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await asyncio.sleep(0.3)
        await say(client, voice(0.4))
        events = await client.until("response.done")
        assert "input_audio_buffer.speech_started" in kinds(events)
        done = events[-1]["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        (cancelled,) = served.engine.of(ResponseCancelled)
        assert 0 <= cancelled.keep_tokens < len(TEXT)
        await say(client, silence(0.8))
        events = await client.until("response.created")
        assert kinds(events)[0] == "input_audio_buffer.speech_stopped"


async def test_speaking_over_what_is_still_playing_cuts_it(served: Running) -> None:
    served.engine.script = Script(TEXT, audio_s=4.0, chunk_s=4.0)
    async with served.socket() as client:
        await client.send("response.create")
        item = (await client.until("response.done"))[-1]["response"]["output"][0]
        await asyncio.sleep(1.0)
        await say(client, voice(0.4))
        assert kinds([await client.read()]) == ["input_audio_buffer.speech_started"]
        (cut,) = served.engine.of(ItemCut)
        assert cut.item_id == item["id"]
        await client.send(
            "conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=2000
        )
        assert (await client.read())["type"] == "conversation.item.truncated"
        await client.send("conversation.item.retrieve", item_id=item["id"])
        assert (await client.read())["item"]["content"][0]["transcript"] == "one two three four"
        assert served.engine.of(ItemCut)[-1].num_tokens == len("one two three four")


async def test_a_backchannel_ends_nothing() -> None:
    engine = FakeEngine(Script(TEXT, audio_s=8.0, chunk_s=1.0, pace_s=0.1))
    async with running(engine=engine) as served, served.socket() as client:
        await detect(client, min_speech_ms=700)
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await say(client, voice(0.2), silence(0.6))
        events = await client.until("response.done")
        assert events[-1]["response"]["status"] == "completed"
        assert not [kind for kind in kinds(events) if kind.startswith("input_audio_buffer")]
        assert not engine.of(ResponseCancelled)


async def test_a_doubt_that_nothing_resolves_ends_by_the_clock() -> None:
    engine = FakeEngine(Script(TEXT, audio_s=4.0, chunk_s=2.0, pace_s=0.05))
    async with running(engine=engine) as served, served.socket() as client:
        await detect(client, min_speech_ms=2000)
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await say(client, voice(0.2))
        await eventually(lambda: not served.engine.num_open)
        assert (await client.until("response.done"))[-1]["response"]["status"] == "completed"


async def test_a_long_recording_at_once() -> None:
    """Eighteen seconds in one frame, which a thread hears: three turns. The second begins over the reply to
    the first, and the third before the second has one."""
    async with running() as served, served.socket() as client:
        audio = base64.b64encode(pcm16(np.concatenate([voice(2.0), silence(4.0)] * 3))).decode()
        await client.send("input_audio_buffer.append", audio=audio)
        events = await client.until("response.done") + await client.until("response.done")
        statuses = [event["response"]["status"] for event in events if event["type"] == "response.done"]
        assert statuses == ["cancelled", "completed"]
        assert kinds(events).count("input_audio_buffer.committed") == 3
