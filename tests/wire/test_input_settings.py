"""Formats, transcription and the rest of `audio.input`; and what of `audio.output` can be chosen."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from antiphon.core.conversation import AudioPart, TextPart
from antiphon.core.facts import ItemAdded, ResponseCancelled
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.wire.limits import Limits
from wire.harness import INFO, Driver, kinds, pcm

BYTES = base64.b64encode(bytes(range(200)) * 8).decode()


def updated(driver: Driver, **audio: Any) -> dict[str, Any]:
    (event,) = driver.send("session.update", session={"type": "realtime", "audio": audio})
    assert event["type"] == "session.updated", event
    return event["session"]["audio"]


def test_absent_keeps_and_null_clears() -> None:
    driver = Driver()
    asked = {
        "turn_detection": {"type": "semantic_vad", "eagerness": "high"},
        "transcription": {"model": "gpt-4o-mini-transcribe", "language": "de", "prompt": "names"},
        "noise_reduction": {"type": "near_field"},
        "format": {"type": "audio/pcma"},
    }
    shown = updated(driver, input=asked)["input"]
    assert shown["turn_detection"]["eagerness"] == "high"
    assert shown["transcription"] == asked["transcription"]
    assert shown["noise_reduction"] == asked["noise_reduction"]
    assert shown["format"] == {"type": "audio/pcma"}
    assert updated(driver, output={"voice": "ash"})["input"] == shown
    cleared = updated(driver, input=dict.fromkeys(asked))["input"]
    assert cleared == {
        "turn_detection": None,
        "transcription": None,
        "noise_reduction": None,
        "format": {"type": "audio/pcm", "rate": 24000},
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"tracing": "auto"},
        {"tracing": {"workflow_name": "x"}},
        {"truncation": {"type": "retention_ratio", "retention_ratio": 0.8}},
        {"truncation": "auto"},
        {"prompt": None, "include": None, "x_extensions": ["playback.ack"]},
    ],
)
def test_what_stock_clients_send_is_taken_even_in_mid_response(fields: dict) -> None:
    driver = Driver()
    driver.ask()
    (event,) = driver.send("session.update", session={"type": "realtime", **fields})
    assert event["type"] == "session.updated"
    assert event["session"]["tracing"] is None
    assert event["session"]["truncation"] == fields.get("truncation", "auto")


def test_g711_comes_in_through_the_media_port() -> None:
    driver = Driver()
    updated(driver, input={"format": {"type": "audio/pcmu"}, "turn_detection": None})
    driver.send("input_audio_buffer.append", audio=BYTES)
    assert driver.session.buffered_audio_s == pytest.approx(0.2)
    driver.send("input_audio_buffer.commit")
    (part,) = driver.fact(ItemAdded).item.parts
    assert isinstance(part, AudioPart)
    assert len(part.samples) == 2 * 6 * 1600
    content = [{"type": "input_audio", "audio": BYTES}]
    driver.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    assert driver.fact(ItemAdded).item.parts == (part,)


def test_g711_goes_out_to_the_last_byte() -> None:
    driver = Driver()
    assert updated(driver, output={"format": {"type": "audio/pcmu"}})["output"]["format"] == {
        "type": "audio/pcmu"
    }
    response = driver.ask()
    events = driver.audio(response, 0.3) + driver.audio(response, 20.0) + driver.end(response)
    deltas = [e["delta"] for e in events if e["type"] == "response.output_audio.delta"]
    assert sum(len(base64.b64decode(delta)) for delta in deltas) == 8000 * 20.3
    assert len(deltas) == 4, "cut where PCM of as many seconds would be"
    assert events[-1]["response"]["audio"]["output"]["format"] == {"type": "audio/pcmu"}
    (created,) = driver.send(
        "response.create", response={"audio": {"output": {"format": {"type": "audio/pcm"}}}}
    )
    assert created["response"]["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}


def transcribing(info: ModelInfo = INFO, **fields: Any) -> tuple[Driver, str, str]:
    """A session whose committed audio is being written down; the item's id, and the side request's."""
    driver = Driver(info=info)
    asked = {"model": "whisper-1", **fields}
    updated(driver, input={"transcription": asked, "turn_detection": None})
    driver.send("input_audio_buffer.append", audio=pcm(0.2))
    events = driver.send("input_audio_buffer.commit")
    return driver, events[-1]["item"]["id"], driver.request.response


def test_a_transcript_comes_beside_the_reply() -> None:
    driver, item_id, side = transcribing(language="de", prompt="Names: Ada.")
    request = driver.request
    assert (request.tier, request.remember, request.speech) == ("best_effort", False, False)
    assert request.items is not None
    audio, instruction = request.items[0].parts
    assert audio == driver.fact(ItemAdded).item.parts[0]
    assert isinstance(instruction, TextPart)
    assert "de" in instruction.text
    assert "Names: Ada." in instruction.text
    assert driver.session.num_open_responses == 0
    response = driver.ask()
    driver.audio(response)
    events = driver.tokens(side, " Guten Tag")
    assert kinds(events) == ["conversation.item.input_audio_transcription.delta"]
    assert (events[0]["item_id"], events[0]["delta"]) == (item_id, "Guten Ta")
    events = driver.output(ResponseEnded(driver.session.id, side, "completed", "", "", Usage(7, 13, 0, 0, 5)))
    assert kinds(events)[-1] == "conversation.item.input_audio_transcription.completed"
    assert events[-1]["transcript"] == "Guten Tag"
    assert events[-1]["usage"] == {
        "type": "tokens",
        "input_tokens": 20,
        "output_tokens": 5,
        "total_tokens": 25,
        "input_token_details": {"text_tokens": 7, "audio_tokens": 13},
    }
    (event,) = driver.send("conversation.item.retrieve", item_id=item_id)
    assert event["item"]["content"] == [{"type": "input_audio", "transcript": "Guten Tag"}]
    assert driver.end(response)[-1]["response"]["status"] == "completed"
    assert driver.tokens(side, "late") == []


def test_a_transcribers_usage_is_how_long_it_heard() -> None:
    driver, _, side = transcribing(msgspec.structs.replace(INFO, languages=("en",)))
    (heard,) = driver.fact(ItemAdded).item.parts
    assert isinstance(heard, AudioPart)
    events = driver.end(side)
    assert events[-1]["usage"] == {"type": "duration", "seconds": heard.num_samples / 16000}


def test_a_transcript_that_fails_harms_nothing() -> None:
    driver, item_id, side = transcribing()
    response = driver.ask()
    (event,) = driver.end(side, "failed", "stage_failed", "Oh.")
    assert event["type"] == "conversation.item.input_audio_transcription.failed"
    assert event["item_id"] == item_id
    assert event["error"] == {"type": "server_error", "code": "stage_failed", "message": "Oh."}
    assert driver.end(response)[-1]["response"]["status"] == "completed"


def test_abandoned_transcripts_fail() -> None:
    driver, item_id, side = transcribing()
    (event,) = driver._keep(driver.session.abandon("server_shutting_down", "Bye.", 0.0))
    assert (event["item_id"], event["error"]["code"]) == (item_id, "server_shutting_down")
    assert driver.fact(ResponseCancelled).response == side
    assert driver.session.abandon("server_shutting_down", "Bye.", 0.0) == []


def test_audio_is_never_part_of_a_transcript() -> None:
    driver, _, side = transcribing()
    assert driver.audio(side) == []
    driver._keep(driver.session.close(0.0))
    assert driver.end(side) == []


def test_nothing_is_said_of_an_item_that_is_gone() -> None:
    driver, item_id, side = transcribing()
    driver.send("conversation.item.delete", item_id=item_id)
    assert ResponseCancelled(driver.session.id, side) in driver.facts
    assert driver.tokens(side, "late") == []
    assert driver.end(side, "cancelled") == []


CHANGES: dict[str, Any] = {
    "instructions": "Be brief.",
    "output_modalities": ["text"],
    "max_output_tokens": 7,
    "tools": [{"type": "function", "name": "look_up"}],
    "tool_choice": "required",
    "truncation": "disabled",
    "audio": {
        "input": {
            "format": {"type": "audio/pcmu"},
            "transcription": {"model": "whisper-1", "prompt": "names"},
            "noise_reduction": {"type": "near_field"},
            "turn_detection": None,
        },
        "output": {"voice": "Chelsie", "format": {"type": "audio/pcma"}},
    },
}
"""An update of everything."""


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"instructions": "x" * 101}, "max_text_chars"),
        ({"output_modalities": ["sound"]}, "session.output_modalities"),
        ({"max_output_tokens": -1}, "session.max_output_tokens"),
        ({"tools": [{"type": "web"}]}, "session.tools[0].type"),
        ({"tool_choice": {"type": "function", "name": "other"}}, "session.tool_choice"),
        ({"truncation": "sometimes"}, "session.truncation"),
        ({"tracing": 5}, "session.tracing"),
        ({"include": ["x"]}, "session.include"),
        ({"unknown": 1}, "session.unknown"),
        ({"audio": {"input": {"format": {"type": "audio/mp3"}}}}, "session.audio.input.format.type"),
        (
            {"audio": {"input": {"noise_reduction": {"type": "all"}}}},
            "session.audio.input.noise_reduction.type",
        ),
        ({"audio": {"input": {"turn_detection": {"type": "x"}}}}, "session.audio.input.turn_detection.type"),
        ({"audio": {"output": {"speed": 2}}}, "session.audio.output.speed"),
        ({"audio": {"output": {"format": {"type": "audio/mp3"}}}}, "session.audio.output.format.type"),
        ({}, "session.tools"),
    ],
)
def test_an_update_that_is_refused_changes_nothing(wrong: dict[str, Any], param: str) -> None:
    """Nor one whose tools, which the model is not shown, are all that is wrong with it."""
    info = msgspec.structs.replace(INFO, takes_tools=param != "session.tools")
    driver = Driver(Limits(max_text_chars=100), info=info)
    (first,) = driver.send("session.update", session={"type": "realtime", "instructions": "As before."})
    num_facts = len(driver.facts)
    audio = {
        side: CHANGES["audio"][side] | wrong.get("audio", {}).get(side, {}) for side in ("input", "output")
    }
    asked = {"type": "realtime", **CHANGES, **wrong, "audio": audio}
    assert driver.error("session.update", session=asked)["param"] == param
    assert len(driver.facts) == num_facts
    (after,) = driver.send("session.update", session={"type": "realtime"})
    assert after["session"] == first["session"]
    driver.say()
    driver.ask()
    assert (driver.request.instructions, driver.request.tools) == ("As before.", ())
    if param != "session.tools":
        (all_of_it,) = driver.send("session.update", session={"type": "realtime", **CHANGES})
        assert all_of_it["session"] != first["session"]
