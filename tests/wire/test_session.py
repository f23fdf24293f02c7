"""Event orders of PROTOCOL §5, and what the engine is told."""

from __future__ import annotations

import base64

import msgspec
import numpy as np
import pytest

from antiphon.core.conversation import AudioPart, ImagePart, TextPart, VideoPart
from antiphon.core.errors import SessionGone
from antiphon.core.facts import (
    ItemAdded,
    ItemRemoved,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
)
from antiphon.core.plans import TokensOut, ints
from wire.harness import INFO, USAGE, Driver, kinds, message, pcm

OPENING = ["response.output_item.added", "conversation.item.added", "response.content_part.added"]
CLOSING = [
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


def test_connect_sends_session_created_unprompted() -> None:
    driver = Driver()
    assert kinds(driver.started) == ["session.created"]
    session = driver.started[0]["session"]
    assert session["model"] == INFO.name
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "idle_timeout_ms": None,
        "create_response": True,
        "interrupt_response": True,
    }
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["output"] == {
        "format": {"type": "audio/pcm", "rate": 24000},
        "voice": "ethan",
        "speed": 1.0,
    }
    assert driver.facts == [SessionOpened(driver.session.id)]


def test_a_model_without_a_voice_replies_in_text_and_refuses_to_speak() -> None:
    driver = Driver(info=msgspec.structs.replace(INFO, voices=()))
    session = driver.started[0]["session"]
    assert (session["output_modalities"], session["audio"]["output"]["voice"]) == (["text"], None)
    driver.say()
    error = driver.error("response.create", response={"output_modalities": ["audio"]})
    assert (error["type"], error["param"]) == ("invalid_request_error", "response.output_modalities")
    assert "test-omni has no voice" in error["message"]
    for modalities in (["audio"], None):  # stock clients send the first unasked
        update = {"type": "realtime", "output_modalities": modalities, "instructions": f"Be {modalities}."}
        (updated,) = driver.send("session.update", session=update)
        assert updated["session"]["output_modalities"] == ["text"]
        assert updated["session"]["instructions"] == update["instructions"]
    both = {"type": "realtime", "output_modalities": ["text", "audio"]}
    assert driver.error("session.update", session=both)["param"] == "session.output_modalities"
    response = driver.ask()
    assert driver.request.speech is False
    driver.tokens(response, "hey")
    assert "response.output_text.delta" in kinds(driver.events)
    assert "response.output_audio_transcript.delta" not in kinds(driver.events)


def test_a_model_that_does_not_hear_refuses_sound_as_it_comes() -> None:
    """A recording in its conversation would make every later reply fail."""
    driver = Driver(info=msgspec.structs.replace(INFO, inputs=()))
    error = driver.error("input_audio_buffer.append", audio=pcm(0.5))
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert error["message"] == "The model test-omni does not hear: send text."
    for _ in range(50):
        assert driver.send("input_audio_buffer.append", audio=pcm(0.02)) == [], "it is told once"
    assert driver.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"
    assert not driver.facts_of(ItemAdded)


def test_text_turn() -> None:
    driver = Driver()
    events = driver.send("conversation.item.create", item=message("hello"))
    assert kinds(events) == ["conversation.item.added", "conversation.item.done"]
    assert driver.fact(ItemAdded).item.parts == (TextPart("hello"),)
    response = driver.ask(output_modalities=["text"], instructions="Be brief.", max_output_tokens=9)
    assert driver.request == ResponseRequested(
        driver.session.id,
        response,
        driver.request.item_id,
        speech=False,
        instructions="Be brief.",
        voice="ethan",
        max_tokens=9,
        retention=0.8,
        answers_silence=True,
    )
    assert kinds(driver.tokens(response, "Hey")) == [*OPENING, "response.output_text.delta"]
    assert kinds(driver.tokens(response, "!")) == ["response.output_text.delta"]
    events = driver.end(response)
    assert kinds(events) == ["response.output_text.delta", "response.output_text.done", *CLOSING]
    assert events[1]["text"] == "Hey!"
    done = events[-1]["response"]
    assert done["status"] == "completed"
    assert done["status_details"] is None
    assert done["output"][0]["content"] == [{"type": "output_text", "text": "Hey!"}]
    assert done["usage"]["input_tokens"] == 22
    assert done["usage"]["total_tokens"] == 33
    assert done["usage"]["input_token_details"]["cached_tokens"] == USAGE.cached_tokens


def test_audio_reply() -> None:
    driver = Driver()
    item = driver.say()
    response = driver.ask()
    events = driver.tokens(response, "Hi")
    assert kinds(events) == [*OPENING, "response.output_audio_transcript.delta"]
    assert events[0]["item"]["content"] == []
    assert events[0]["item"]["status"] == "in_progress"
    assert events[1]["previous_item_id"] == item
    assert events[2]["part"] == {"type": "audio", "transcript": ""}
    (delta,) = driver.audio(response, 0.1, 0.5)
    assert delta["type"] == "response.output_audio.delta"
    assert set(np.frombuffer(base64.b64decode(delta["delta"]), "<i2")) == {16384}
    events = driver.end(response)
    assert kinds(events) == [
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        *CLOSING,
    ]
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi"}]


def test_manual_commit() -> None:
    driver = Driver()
    assert driver.send("input_audio_buffer.append", audio=pcm(0.15)) == []
    assert driver.send("input_audio_buffer.append", audio=pcm(0.1)) == []
    events = driver.send("input_audio_buffer.commit")
    assert kinds(events) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert len({event.get("item_id") or event["item"]["id"] for event in events}) == 1
    assert events[1]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    (part,) = driver.fact(ItemAdded).item.parts
    assert isinstance(part, AudioPart)
    assert part.num_samples == 6000
    assert driver.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"
    assert driver.session.buffered_audio_s == 0


def test_clear_empties_the_buffer() -> None:
    driver = Driver()
    driver.send("input_audio_buffer.append", audio=pcm(1))
    assert kinds(driver.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert driver.error("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_half_a_sample_may_come_later_or_never() -> None:
    driver = Driver()
    odd = base64.b64encode(b"\1" * 4801).decode()
    driver.send("input_audio_buffer.append", audio=odd)
    driver.send("input_audio_buffer.append", audio=odd)
    driver.send("input_audio_buffer.append", audio=odd)
    driver.send("input_audio_buffer.commit")
    assert len(driver.fact(ItemAdded).item.parts[0].samples) == 2 * 14402


def test_cancel_ends_once_with_what_was_said() -> None:
    driver = Driver()
    response = driver.ask()
    driver.tokens(response, "Well, ")
    assert driver.send("response.cancel", response_id=response) == []
    assert driver.fact(ResponseCancelled) == ResponseCancelled(driver.session.id, response, keep_tokens=0)
    assert driver.audio(response) == []
    assert driver.error("response.cancel")["code"] == "response_cancel_not_active"
    events = driver.end(response)
    assert kinds(events)[-5:] == ["response.output_audio_transcript.done", *CLOSING]
    done = events[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert done["output"][0]["status"] == "incomplete"
    assert driver.end(response) == []
    assert driver.tokens(response, "late") == []


@pytest.mark.parametrize(
    ("status", "reason", "details"),
    [
        ("incomplete", "max_output_tokens", {"type": "incomplete", "reason": "max_output_tokens"}),
        ("cancelled", "shutdown", {"type": "cancelled", "reason": None}),
        (
            "failed",
            "invalid_prompt",
            {
                "type": "failed",
                "error": {"type": "invalid_request_error", "code": "invalid_prompt", "message": "Oh."},
            },
        ),
        (
            "failed",
            "step_failed",
            {"type": "failed", "error": {"type": "server_error", "code": "step_failed", "message": "Oh."}},
        ),
    ],
)
def test_other_ends(status: str, reason: str, details: dict) -> None:
    driver = Driver()
    response = driver.ask()
    driver.audio(response)
    events = driver.end(response, status, reason, "Oh.")
    assert kinds(events) == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        *CLOSING,
    ]
    assert events[-1]["response"]["status_details"] == details
    assert events[-2]["item"]["status"] == "incomplete"


def test_a_failure_before_any_output_has_no_item() -> None:
    driver = Driver()
    events = driver.end(driver.ask(), "failed", "prompt_failed", "Too long.")
    assert kinds(events) == ["response.done"]
    assert events[0]["response"]["output"] == []


def test_an_empty_reply_is_still_an_item() -> None:
    driver = Driver()
    events = driver.end(driver.ask())
    assert kinds(events) == [
        *OPENING,
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        *CLOSING,
    ]


def test_out_of_band_runs_beside_and_stays_outside() -> None:
    driver = Driver()
    driver.say()
    main = driver.ask()
    side = driver.ask(
        conversation="none", input=[message("only this")], metadata={"topic": "x"}, output_modalities=["text"]
    )
    assert driver.request.remember is False
    assert driver.request.items is not None
    assert driver.request.items[0].parts == (TextPart("only this"),)
    events = driver.tokens(side, "yes") + driver.end(side)
    assert not [kind for kind in kinds(events) if kind.startswith("conversation.")]
    assert events[-1]["response"]["conversation_id"] is None
    assert events[-1]["response"]["metadata"] == {"topic": "x"}
    assert driver.send("response.cancel", response_id=main) == []
    assert driver.end(main, "cancelled", "client_cancelled")[-1]["response"]["status"] == "cancelled"


def test_items_in_any_place() -> None:
    driver = Driver()
    driver.say(id="b")
    driver.send("conversation.item.create", item=message(id="a"), previous_item_id="root")
    added = driver.send("conversation.item.create", item=message(id="ab"), previous_item_id="a")
    assert added[0]["previous_item_id"] == "a"
    assert [fact.after for fact in driver.facts if isinstance(fact, ItemAdded)] == [None, "root", "a"]
    assert kinds(driver.send("conversation.item.delete", item_id="a")) == ["conversation.item.deleted"]
    assert driver.fact(ItemRemoved).item_id == "a"
    assert driver.say(id="a") == "a"


def test_roles_and_images() -> None:
    driver = Driver()
    driver.send(
        "conversation.item.create",
        item={"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]},
    )
    driver.send(
        "conversation.item.create",
        item={"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    )
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,AA"},
        {"type": "input_audio", "audio": pcm(0.2)},
        {"type": "input_video", "video": ["data:x", "data:y"], "fps": 0.25},
    ]
    (added, _) = driver.send(
        "conversation.item.create", item={"type": "message", "role": "user", "content": parts}
    )
    assert added["item"]["content"] == [
        {"type": "input_image", "detail": "auto"},
        {"type": "input_audio", "transcript": None},
        {"type": "input_image", "detail": "auto"},
    ]
    *_, video = parts = driver.fact(ItemAdded).item.parts
    assert [type(part) for part in parts] == [ImagePart, AudioPart, VideoPart]
    assert isinstance(video, VideoPart)
    assert (video.num_frames, video.fps) == (2, 0.25)
    (retrieved,) = driver.send("conversation.item.retrieve", item_id=added["item"]["id"])
    assert retrieved["type"] == "conversation.item.retrieved"
    assert retrieved["item"] == added["item"]


@pytest.mark.parametrize(
    ("inputs", "part", "kind"),
    [
        (("audio",), {"type": "input_image", "image_url": "data:image/png;base64,AA"}, "image"),
        (("audio",), {"type": "input_video", "video": ["data:x"]}, "image"),
        ((), {"type": "input_audio", "audio": pcm(0.2)}, "audio"),
    ],
)
def test_a_medium_that_the_model_does_not_take_is_refused_before_it_is_in_the_conversation(
    inputs: tuple[str, ...], part: dict, kind: str
) -> None:
    driver = Driver(info=msgspec.structs.replace(INFO, inputs=inputs))
    text = {"type": "input_text", "text": "look"}
    item = {"type": "message", "role": "user", "content": [text, part]}
    (error,) = driver.send("conversation.item.create", item=item)
    takes = " and ".join(("text", *inputs))
    assert error["error"]["message"] == f"The model test-omni takes {takes}: leave {kind} out."
    assert error["error"]["param"] == "item.content[1].type"
    (error,) = driver.send("response.create", response={"input": [item]})
    assert error["error"]["param"] == "response.input[0].content[1].type"


def test_update_merges_and_resets() -> None:
    driver = Driver()
    update = {"type": "realtime", "instructions": "Sing.", "audio": {"output": {"voice": "Chelsie"}}}
    assert kinds(driver.send("session.update", session=update)) == ["session.updated"]
    (event,) = driver.send(
        "session.update",
        session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 5, "temperature": 1},
    )
    session = event["session"]
    assert session["instructions"] == "Sing."
    assert session["audio"]["output"]["voice"] == "Chelsie"
    assert (session["output_modalities"], session["max_output_tokens"]) == (["text"], 5)
    driver.ask()
    assert (driver.request.voice, driver.request.speech, driver.request.max_tokens) == ("chelsie", False, 5)
    (event,) = driver.send(
        "session.update",
        session={"type": "realtime", "instructions": None, "max_output_tokens": None, "tracing": "auto"},
    )
    assert (event["session"]["instructions"], event["session"]["max_output_tokens"]) == ("", "inf")
    assert event["session"]["tracing"] is None


def test_a_voice_is_reset_by_null() -> None:
    driver = Driver()
    for voice, shown in (("marin", "marin"), (None, "ethan")):
        (event,) = driver.send(
            "session.update", session={"type": "realtime", "audio": {"output": {"voice": voice}}}
        )
        assert event["session"]["audio"]["output"]["voice"] == shown


def test_the_echoed_session_may_be_sent_back() -> None:
    driver = Driver()
    session = driver.started[0]["session"]
    (event,) = driver.send("session.update", session=session)
    assert event["session"] == session


def test_an_agents_own_model_name_is_no_error() -> None:
    """openai-agents repeats its default model in every update, whatever the URL chose."""
    (event,) = Driver().send("session.update", session={"type": "realtime", "model": "gpt-realtime-2.1"})
    assert event["session"]["model"] == INFO.name


def test_unknown_voices_get_the_default_and_are_echoed() -> None:
    driver = Driver()
    events = driver.send("response.create", response={"audio": {"output": {"voice": "marin"}}})
    assert events[0]["response"]["audio"]["output"]["voice"] == "marin"
    assert driver.request.voice == "ethan"


def test_long_audio_is_cut_into_small_events() -> None:
    driver = Driver()
    response = driver.ask()
    deltas = driver.audio(response, 20.0)[3:]
    assert len(deltas) == 3
    assert sum(len(base64.b64decode(delta["delta"])) for delta in deltas) == 960_000


def test_loud_and_broken_samples_are_bounded() -> None:
    driver = Driver()
    response = driver.ask()
    loud = driver.audio(response, 0.01, 9.0)[-1]
    assert set(np.frombuffer(base64.b64decode(loud["delta"]), "<i2")) == {32767}
    broken = driver.audio(response, 0.01, float("nan"))[-1]
    assert set(np.frombuffer(base64.b64decode(broken["delta"]), "<i2")) == {0}


def test_codec_frames_are_not_text() -> None:
    driver = Driver()
    response = driver.ask()
    frames = ints([1, 2]).reshape(1, 2)
    assert driver.output(TokensOut(driver.session.id, response, "talker", frames)) == []


def test_abandon_ends_what_runs() -> None:
    driver = Driver()
    response = driver.ask()
    effects = driver._keep(driver.session.abandon("server_shutting_down", "Bye.", 0.0))
    assert effects[-1]["response"]["status_details"]["error"]["code"] == "server_shutting_down"
    assert driver.fact(ResponseCancelled).response == response
    assert driver.session.num_open_responses == 0


def test_close_once() -> None:
    driver = Driver()
    response = driver.ask()
    driver._keep(driver.session.close(0.0))
    assert driver.fact(SessionClosed) == SessionClosed(driver.session.id)
    assert driver.session.close(0.0) == []
    assert driver.tokens(response, "late") == []
    with pytest.raises(SessionGone):
        driver.send("response.create")


def test_ids_and_events_are_unique() -> None:
    driver = Driver()
    driver.say()
    driver.end(driver.ask())
    ids = [event["event_id"] for event in driver.events]
    assert len(set(ids)) == len(ids)
