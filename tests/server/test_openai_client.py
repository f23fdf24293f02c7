"""The stock `openai` client, unchanged, against a real server."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from antiphon.core.conversation import AudioPart
from antiphon.core.plans import StagePrepared
from antiphon.wire import advisories
from server.conftest import Running


async def until_done(connection: Any) -> list[Any]:
    events = []
    async for event in connection:
        events.append(event)
        if event.type == "response.done":
            break
    return events


async def test_typed_turn(served: Running) -> None:
    async with served.client() as client, client.realtime.connect(model="test-omni") as connection:
        await connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        await connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        )
        await connection.response.create(response={"output_modalities": ["text"]})
        events = await until_done(connection)
    assert [event.type for event in events[:3]] == [
        "session.created",
        "session.updated",
        "conversation.item.added",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Hello there."
    assert events[-1].response.status == "completed"


async def test_spoken_turn(served: Running) -> None:
    speech = (np.sin(np.arange(24_000) / 20) * 8000).astype("<i2").tobytes()
    async with served.client() as client, client.realtime.connect(model="test-omni") as connection:
        await connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        )
        for start in range(0, len(speech), 4800):
            await connection.input_audio_buffer.append(
                audio=base64.b64encode(speech[start : start + 4800]).decode()
            )
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        events = await until_done(connection)
    deltas = [event.delta for event in events if event.type == "response.output_audio.delta"]
    pcm = np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")
    assert len(pcm) == 0.4 * 24_000
    assert 6000 < abs(pcm).max() < 7000
    assert events[-1].response.output[0].content[0].transcript == "Hello there."
    (part,) = served.engine.added[0].item.parts
    assert isinstance(part, AudioPart)
    assert part.num_samples == 16_000
    assert 0.2 < np.abs(np.frombuffer(part.samples, "<f4")).max() < 0.3


async def test_models(served: Running) -> None:
    async with served.client() as client:
        assert [model.id async for model in client.models.list()] == ["test-omni"]
        assert (await client.models.retrieve("test-omni")).owned_by == "antiphon"


async def test_a_turn_is_announced(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/clients.md says it: on the socket, and beside it."""
    monkeypatch.setattr(advisories, "MIN_GAP_S", 0.0)
    served.engine.prepared = (StagePrepared("thinker", 1, 0, 0, True),)
    async with served.client() as client, client.realtime.connect(model="test-omni") as connection:
        session_id = (await connection.recv()).session.id
        await connection.send({"type": "antiphon.advise", "expected_arrival": 2})
        told: Any = await connection.recv()
        assert (told.type, told.session_id, told.action) == ("antiphon.advised", session_id, "in_place")
        assert "(thinker: 1 block on the device)" in told.why
        body = {"session_id": session_id, "prepare": "turn"}
        answer: Any = await client.post("/advisories", body=body, cast_to=object)
        assert (answer["prepare"], answer["action"]) == ("turn", "in_place")
