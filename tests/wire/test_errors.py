"""Every refusal: its code, its param, the client's event id; and the session goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.core.errors import AntiphonError, Overloaded, ProtocolError
from antiphon.wire.advisories import AdvisoryRequest
from antiphon.wire.chat import ChatRequest
from antiphon.wire.errors import error_object, shown
from antiphon.wire.limits import Limits
from antiphon.wire.parsing import converted
from wire.harness import Driver, message, pcm

UPDATE = "session.update"
CREATE = "conversation.item.create"


def content(*parts: dict, role: str = "user") -> dict:
    return {"item": {"type": "message", "role": role, "content": list(parts)}}


def settings(**fields: object) -> dict:
    return {"session": {"type": "realtime", **fields}}


def audio_input(**fields: object) -> dict:
    return settings(audio={"input": fields})


IN = "session.audio.input"
CASES: list[tuple[str, dict, str, str | None]] = [
    ("nonsense", {}, "invalid_value", "type"),
    ("conversation.item.forget", {"item_id": "x"}, "invalid_value", "type"),
    ("playback.seek", {}, "invalid_value", "type"),
    (UPDATE, {}, "missing_required_parameter", "session"),
    (UPDATE, {"session": {}}, "missing_required_parameter", "session.type"),
    (UPDATE, {"session": {"type": "transcription"}}, "invalid_value", "session.type"),
    (UPDATE, {"session": 3}, "invalid_type", "session"),
    (UPDATE, settings(modalities=["text"]), "unknown_parameter", "session.modalities"),
    (UPDATE, settings(model=7), "invalid_type", "session.model"),
    (UPDATE, settings(output_modalities=["audio", "text"]), "invalid_value", "session.output_modalities"),
    (UPDATE, settings(max_output_tokens=0), "invalid_value", "session.max_output_tokens"),
    (UPDATE, settings(max_output_tokens="all"), "invalid_value", "session.max_output_tokens"),
    (
        UPDATE,
        settings(tools=[{"type": "function"}]),
        "missing_required_parameter",
        "session.tools[0].name",
    ),
    (UPDATE, settings(tools=["f"]), "invalid_type", "session.tools[0]"),
    (UPDATE, settings(tools=[{"name": "auto"}]), "invalid_value", "session.tools[0].name"),
    (UPDATE, settings(tools=[{"name": "f()"}]), "invalid_value", "session.tools[0].name"),
    (UPDATE, settings(tools=[{"type": "mcp"}]), "invalid_value", "session.tools[0].type"),
    (UPDATE, settings(tools=[{"name": f"f{n}"} for n in range(129)]), "limit_exceeded", "max_tools"),
    (
        UPDATE,
        settings(tools=[{"name": "f", "parameters": "x"}]),
        "invalid_type",
        "session.tools[0].parameters",
    ),
    (UPDATE, settings(tool_choice="sometimes"), "invalid_value", "session.tool_choice"),
    (
        UPDATE,
        settings(tool_choice={"type": "function", "name": "f"}),
        "invalid_value",
        "session.tool_choice",
    ),
    (UPDATE, settings(tool_choice={"type": "mcp"}), "invalid_value", "session.tool_choice"),
    (UPDATE, settings(tracing=3), "invalid_value", "session.tracing"),
    (UPDATE, settings(prompt={"id": "p"}), "invalid_value", "session.prompt"),
    (UPDATE, settings(reasoning={"effort": "low"}), "invalid_value", "session.reasoning"),
    (UPDATE, settings(include=["x"]), "invalid_value", "session.include"),
    (UPDATE, settings(truncation={"type": "ratio"}), "invalid_value", "session.truncation"),
    (UPDATE, audio_input(turn_detection={"type": "none"}), "invalid_value", f"{IN}.turn_detection.type"),
    (UPDATE, audio_input(transcription={"model": 3}), "invalid_type", f"{IN}.transcription.model"),
    (UPDATE, audio_input(noise_reduction={"type": "all"}), "invalid_value", f"{IN}.noise_reduction.type"),
    (UPDATE, audio_input(format={"type": "audio/opus"}), "invalid_value", f"{IN}.format.type"),
    (UPDATE, audio_input(format={"type": "audio/pcmu", "rate": 16000}), "invalid_value", f"{IN}.format.rate"),
    (UPDATE, audio_input(format={"rate": 16000}), "invalid_value", f"{IN}.format.rate"),
    (UPDATE, settings(audio={"output": {"speed": 1.2}}), "invalid_value", "session.audio.output.speed"),
    (
        UPDATE,
        settings(audio={"output": {"voice": {"id": "v"}}}),
        "invalid_value",
        "session.audio.output.voice",
    ),
    (UPDATE, settings(audio={"output": {"voice": "v" * 65}}), "limit_exceeded", "max_voice_chars"),
    ("input_audio_buffer.append", {}, "missing_required_parameter", "audio"),
    ("input_audio_buffer.append", {"audio": 3}, "invalid_type", "audio"),
    ("input_audio_buffer.append", {"audio": "not base64!"}, "invalid_value", "audio"),
    ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty", None),
    (CREATE, {}, "missing_required_parameter", "item"),
    (CREATE, {"item": {"type": "mcp_call"}}, "invalid_value", "item.type"),
    (CREATE, {"item": {"type": 3}}, "invalid_value", "item.type"),
    (CREATE, {"item": {"type": "function_call"}}, "missing_required_parameter", "item.name"),
    (
        CREATE,
        {"item": {"type": "function_call_output", "output": "x"}},
        "missing_required_parameter",
        "item.call_id",
    ),
    (
        CREATE,
        {"item": {"type": "function_call_output", "call_id": "c", "output": "x" * 100_001}},
        "limit_exceeded",
        "max_text_chars",
    ),
    (CREATE, {"item": {"type": "message"}}, "missing_required_parameter", "item.role"),
    (CREATE, {"item": message(id="x" * 200)}, "invalid_value", "item.id"),
    (CREATE, {"item": message(id="root")}, "invalid_value", "item.id"),
    (CREATE, {"item": message(), "previous_item_id": "gone"}, "invalid_value", "previous_item_id"),
    (CREATE, content({"type": "input_scent"}), "invalid_value", "item.content[0].type"),
    (CREATE, content({"type": "input_video"}), "missing_required_parameter", "item.content[0].video"),
    (
        CREATE,
        content({"type": "input_video", "video": ["data:x", "https://example.org/a.png"]}),
        "invalid_value",
        "item.content[0].video[1]",
    ),
    (
        CREATE,
        content({"type": "input_video", "video": ["data:broken"]}),
        "invalid_value",
        "item.content[0].video",
    ),
    (
        CREATE,
        content({"type": "input_video", "video": ["data:x"], "fps": 0}),
        "invalid_value",
        "item.content[0].fps",
    ),
    (CREATE, content({"type": "input_text"}), "missing_required_parameter", "item.content[0].text"),
    (CREATE, content({"type": "input_audio"}), "missing_required_parameter", "item.content[0].audio"),
    (CREATE, content({"type": "input_audio", "audio": ""}), "audio_too_short", "item.content[0].audio"),
    (
        CREATE,
        content({"type": "input_audio", "audio": pcm(0.09)}),
        "audio_too_short",
        "item.content[0].audio",
    ),
    (
        CREATE,
        content({"type": "input_text", "text": "x"}, role="assistant"),
        "invalid_value",
        "item.content[0].type",
    ),
    (
        CREATE,
        content({"type": "input_image", "image_url": "https://example.org/a.png"}),
        "invalid_value",
        "item.content[0].image_url",
    ),
    (
        CREATE,
        content({"type": "input_image", "image_url": "file:///etc/passwd"}),
        "invalid_value",
        "item.content[0].image_url",
    ),
    (
        CREATE,
        content({"type": "input_image", "image_url": "data:broken"}),
        "invalid_value",
        "item.content[0].image_url",
    ),
    ("conversation.item.retrieve", {"item_id": "gone"}, "item_retrieve_invalid_item_id", "item_id"),
    ("conversation.item.delete", {"item_id": "gone"}, "item_delete_invalid_item_id", "item_id"),
    ("response.cancel", {}, "response_cancel_not_active", None),
    ("response.cancel", {"response_id": "gone"}, "response_cancel_not_active", "response_id"),
    ("response.create", {"response": {"conversation": "mine"}}, "invalid_value", "response.conversation"),
    (
        "response.create",
        {"response": {"tools": [{}]}},
        "missing_required_parameter",
        "response.tools[0].name",
    ),
    ("response.create", {"response": {"metadata": {"a": 1}}}, "invalid_type", "response.metadata[...]"),
    (
        "response.create",
        {"response": {"metadata": {str(n): "" for n in range(17)}}},
        "limit_exceeded",
        "max_metadata_pairs",
    ),
    (
        "response.create",
        {"response": {"input": [{"type": "item_reference", "id": "a"}]}},
        "invalid_value",
        "response.input[0].id",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "code", "param"), CASES)
def test_refusals(kind: str, fields: dict, code: str, param: str | None) -> None:
    driver = Driver()
    error = driver.error(kind, event_id="mine", **fields)
    assert (error["code"], error["param"], error["event_id"]) == (code, param, "mine")
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 800
    assert driver.say()
    assert len(driver.facts) == 2, "a refusal tells the engine nothing"


def test_the_unsupported_type_is_told_what_is_supported() -> None:
    error = Driver().error("output_audio_buffer.clear")
    assert "response.create" in error["message"]


@pytest.mark.parametrize(
    ("kind", "fields", "allowed"),
    [
        ("antiphon.advise", {"prepare": "everything"}, "'history', 'turn'"),
        (CREATE, {"item": {"type": "message", "role": "robot"}}, "'assistant', 'system', 'user'"),
        (UPDATE, audio_input(turn_detection={"type": "semantic_vad", "eagerness": "very"}), "'high', 'low'"),
    ],
)
def test_a_wrong_choice_is_told_what_is_allowed(kind: str, fields: dict, allowed: str) -> None:
    assert allowed in Driver().error(kind, **fields)["message"]


def test_choices_are_found_in_lists_and_unions() -> None:
    spoken = {"model": "m", "messages": [{"role": "user", "content": "a"}], "modalities": ["text", "smell"]}
    with pytest.raises(ProtocolError, match=r"'modalities\[1\]'.*'smell'; allowed are 'audio', 'text'"):
        converted(spoken, ChatRequest)


def test_what_is_wrong_as_a_whole_has_no_name() -> None:
    with pytest.raises(ProtocolError, match=r"^Invalid value: an object is expected; got a list") as raised:
        converted([], AdvisoryRequest)
    assert raised.value.param is None


TEXTS = {"role": "user", "content": [{"type": "picture"}]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "'messages': a list of at least 1 entry is expected."),
        ({"stop": ["a"] * 17}, "'stop': a list of at most 16 entries is expected."),
        ({"stop": ""}, "'stop': a string of at least 1 character is expected."),
        ({"stop": 5}, "'stop': a string, a list or null is expected; got a whole number."),
        ({"stream": "yes"}, "'stream': true, false or null is expected; got a string."),
        ({"n": 1.5}, "'n': a whole number or null is expected; got a number."),
        ({"n": 0}, "'n': a whole number of at least 1 is expected."),
        ({"temperature": 9}, "'temperature': a number of at most 2 is expected."),
        ({"top_p": 0}, "'top_p': a number of more than 0 is expected."),
        ({"messages": [{"role": None}]}, "'messages[0].role': a string is expected; got null."),
        ({"messages": [{"role": ["user"]}]}, "'messages[0].role': a string is expected; got a list."),
        ({"messages": [{"role": {}}]}, "'messages[0].role': a string is expected; got an object."),
        ({"messages": [{"role": "x"}]}, "'messages[0].role': got 'x'; allowed are 'system', 'developer', "),
        (
            {"messages": [{"role": "user", "content": "a"}, TEXTS]},
            "'messages[1].content[0].type': got 'picture'; allowed are 'text', 'image_url', 'input_audio', "
            "'audio_url', 'video_url', 'video'.",
        ),
    ],
)
def test_what_is_expected_is_told_in_words(fields: dict, said: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        converted({**SPOKEN, **fields}, ChatRequest)
    assert str(raised.value).startswith(f"Invalid {said}")


def test_a_choice_among_words_and_numbers_names_both() -> None:
    asked = {**SPOKEN, "stream": True, "antiphon": {"rate": "5"}}
    allowed = "'auto', 'listening', 'reading', a number from 1 to 100"
    with pytest.raises(ProtocolError, match=f"'antiphon.rate'.*'5'; allowed are {allowed}"):
        converted(asked, ChatRequest)


HOSTILE = " - at `$.x[0]` field `y` - at `$" + "[" * 100_000
SPOKEN = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"service_tier": HOSTILE}, "invalid_value", "service_tier"),
        ({"messages": [{"role": HOSTILE}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user", "content": "a", HOSTILE: 1}]}, "unknown_parameter", "messages[0]."),
        ({HOSTILE: 1}, "unknown_parameter", ""),
        ({"response_format": {HOSTILE: 1}}, "missing_required_parameter", "response_format.type"),
    ],
)
def test_a_value_that_reads_like_a_place_is_none(fields: dict, code: str, param: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        converted({**SPOKEN, **fields}, ChatRequest)
    error = raised.value
    assert error.param is not None
    assert (error.code, error.param[: len(param)]) == (code, param)
    assert len(error.param) <= 200
    assert len(str(error)) < 500
    if code != "unknown_parameter":
        assert error.param == param


def test_a_value_is_shown_by_its_beginning() -> None:
    values = ["x", 'a"b', b"x", [], {}, [1, "x", [2, {}]], {"a": {"b": [1.5, 3]}, "c": "d"}]
    assert [shown(value) for value in values] == [repr(value) for value in values]
    assert [shown(value) for value in (None, [True], {"a": False})] == ["null", "[true]", "{'a': false}"]
    assert shown("x" * 100) == "'" + "x" * 78 + "…"
    endless: list[object] = []
    endless.append(endless)
    assert shown(endless) == "[" * 79 + "…"
    assert shown({"a": [0] * 100}) == "{'a': [" + "0, " * 24 + "…"


def test_no_error_is_endless() -> None:
    shown_error = error_object(ProtocolError("x" * 10_000, param="y" * 10_000))
    assert shown_error["message"] == "x" * 1999 + "…"
    assert shown_error["param"] == "y" * 200


def test_remote_urls_are_refused_by_the_rule_s_name() -> None:
    image = {"type": "input_image", "image_url": "http://example.org/a.png"}
    assert "safety rule" in Driver().error(CREATE, **content(image))["message"]


def test_errors_that_are_not_the_client_s() -> None:
    assert error_object(Overloaded("Full.", 1.0))["code"] == "server_overloaded"
    assert error_object(AntiphonError("Oh.")) == {
        "type": "server_error",
        "code": "internal_error",
        "message": "Oh.",
        "param": None,
    }


def test_one_response_at_a_time() -> None:
    driver = Driver()
    response = driver.ask()
    error = driver.error("response.create")
    assert error["code"] == "conversation_already_has_active_response"
    assert response in error["message"]


def test_cancel_says_cancellation_failed() -> None:
    assert Driver().error("response.cancel")["message"].startswith("Cancellation failed")


def test_duplicate_ids_also_of_replies_to_come() -> None:
    driver = Driver()
    driver.say(id="a")
    assert driver.error(CREATE, item=message(id="a"))["code"] == "item_create_duplicate_item_id"
    driver.ask()
    taken = driver.request.item_id
    assert driver.error(CREATE, item=message(id=taken))["code"] == "item_create_duplicate_item_id"


def test_a_reply_in_progress_cannot_be_deleted() -> None:
    driver = Driver()
    driver.tokens(driver.ask(), "abc")
    error = driver.error("conversation.item.delete", item_id=driver.request.item_id)
    assert "cancel" in error["message"]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "invalid_json"),
        ('{"type": "response.create", "x": 1e999}', "invalid_json"),
        ('{"type": "\\ud800"}', "invalid_json"),
        ("[]", "invalid_type"),
        ("null", "invalid_type"),
        (b"\x00\x01", "invalid_type"),
        ("{}", "missing_required_parameter"),
        ('{"type": 3}', "invalid_value"),
        ('{"type": {"type": "x"}}', "invalid_value"),
        (json.dumps({"type": "x" * 100_000}), "invalid_value"),
        (json.dumps({"type": "response.cancel", "y" * 100_000: 1}), "unknown_parameter"),
    ],
)
def test_garbage(frame: str | bytes, code: str) -> None:
    driver = Driver()
    (event,) = driver.frame(frame)
    assert event["error"]["code"] == code
    assert len(json.dumps(event)) < 2000
    assert driver.say()


def test_an_absurd_event_id_is_not_echoed() -> None:
    assert Driver().error("nonsense", event_id="x" * 1000)["event_id"] is None
    assert Driver().error("response.cancel", event_id=["x"])["event_id"] is None


SMALL = Limits(
    max_frame_bytes=100_000,
    max_append_bytes=20_000,
    max_audio_s=0.5,
    max_items=3,
    max_text_chars=10,
    max_parts=2,
    max_media_bytes=30_000,
    max_open_responses=2,
)


@pytest.mark.parametrize(
    ("kind", "fields", "limit"),
    [
        ("response.create", {"event_id": "x" * 100_000}, "max_frame_bytes"),
        ("input_audio_buffer.append", {"audio": pcm(0.45)}, "max_append_bytes"),
        (CREATE, {"item": message("x" * 11)}, "max_text_chars"),
        (UPDATE, settings(instructions="x" * 11), "max_text_chars"),
        (CREATE, content(*[{"type": "input_text", "text": "x"}] * 3), "max_parts"),
        (CREATE, content({"type": "input_audio", "audio": pcm(0.6)}), "max_audio_s"),
        (CREATE, content({"type": "input_audio", "audio": pcm(0.4)}), "max_media_bytes"),
        ("response.create", {"response": {"input": [message()] * 3}}, "max_parts"),
    ],
)
def test_limits_are_named_with_their_value(kind: str, fields: dict, limit: str) -> None:
    driver = Driver(SMALL)
    error = driver.error(kind, **fields)
    assert error["code"] == "limit_exceeded"
    assert limit in error["message"]
    assert f"limit of {getattr(SMALL, limit):g}" in error["message"]
    assert driver.say()


def test_media_are_counted_part_by_part_and_no_more_are_decoded() -> None:
    """The one that is over the limit is named: the broken one after it is not reached."""
    image, broken = ({"type": "input_image", "image_url": url} for url in ("data:x", "data:broken"))
    driver = Driver(Limits(max_media_bytes=30))
    error = driver.error(CREATE, **content(image, image, image, broken))
    assert (error["code"], error["param"]) == ("limit_exceeded", "item.content[2]")
    assert "max_media_bytes: 36 is over the limit of 30" in error["message"]
    asked = [{"type": "message", "role": "user", "content": [image, one]} for one in (image, broken)]
    error = driver.error("response.create", response={"input": asked})
    assert (error["code"], error["param"]) == ("limit_exceeded", "response.input[1].content[0]")
    driver.send(CREATE, **content(image, image))
    error = driver.error("response.create", response={"input": asked[::-1]})
    assert (error["code"], error["param"]) == ("limit_exceeded", "response.input[0].content[0]")
    assert driver.say()


def test_limits_that_fill_up() -> None:
    driver = Driver(SMALL)
    driver.send("input_audio_buffer.append", audio=pcm(0.3))
    assert "max_audio_s" in driver.error("input_audio_buffer.append", audio=pcm(0.3))["message"]
    driver.send("input_audio_buffer.commit")
    driver.send("input_audio_buffer.append", audio=pcm(0.1))
    assert "max_media_bytes" in driver.error("input_audio_buffer.commit")["message"]
    driver.say()
    item = driver.say()
    assert "max_items" in driver.error(CREATE, item=message())["message"]
    assert "max_items" in driver.error("response.create")["message"]
    driver.send("conversation.item.delete", item_id=item)
    driver.ask()


def test_open_responses_are_limited() -> None:
    driver = Driver(SMALL)
    driver.ask(conversation="none")
    driver.ask(conversation="none")
    assert (
        "max_open_responses" in driver.error("response.create", response={"conversation": "none"})["message"]
    )


def test_what_is_not_supported_is_told_in_whole_sentences() -> None:
    told = {
        "include": "Log probabilities are",
        "prompt": "Stored prompts are",
        "reasoning": "Reasoning control is",
    }
    values: dict[str, Any] = {"include": ["x"], "prompt": {"id": "p"}, "reasoning": {"effort": "low"}}
    for name, words in told.items():
        error = Driver().error(UPDATE, session={"type": "realtime", name: values[name]})
        assert error["message"] == f"{words} not supported by this version."
