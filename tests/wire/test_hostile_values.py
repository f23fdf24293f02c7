"""Values that are right in JSON and wrong for us: integers without end, endless nesting, endless words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.wire.parsing import decode_json
from wire.harness import Driver, check_event, message
from wire.near_valid import nested

LONG = "x" * (2 << 20)
CONTROL = "\u0001"
"""Six bytes each, once escaped."""


@pytest.mark.parametrize("played_ms", [10**400, 2**64, 1e300])
def test_an_endless_number_of_milliseconds_is_bounded(played_ms: float) -> None:
    driver = Driver()
    response = driver.ask()
    driver.tokens(response, "hello")
    driver.audio(response, 0.1)
    assert driver.send("playback.ack", response_id=response, played_ms=played_ms) == []
    assert 0.0 <= driver.facts[-1].played_s <= 0.1  # type: ignore[union-attr]


@pytest.mark.parametrize("played_ms", [-1, -0.001, -(10**400), -1e300, None, "1", True, []])
def test_what_is_no_time_that_can_have_been_played_is_refused(played_ms: Any) -> None:
    driver = Driver()
    response = driver.ask()
    driver.tokens(response, "hello")
    driver.audio(response, 0.1)
    error = driver.error("playback.ack", response_id=response, played_ms=played_ms)
    assert error["param"] == "played_ms"
    assert "0 or more" in error["message"]


def deep_events(depth: int) -> list[dict[str, Any]]:
    value = nested(depth)
    tools = [{"type": "function", "name": "f", "parameters": value}]
    session = {"type": "realtime"}
    return [
        {"type": "session.update", "session": {**session, "tools": tools}},
        {"type": "session.update", "session": {**session, "tool_choice": value}},
        {"type": "session.update", "session": {**session, "truncation": value}},
        {"type": "session.update", "session": {**session, "audio": {"input": {"turn_detection": value}}}},
        {"type": "response.create", "response": {"tools": tools}},
        {"type": "conversation.item.create", "item": value},
    ]


@pytest.mark.parametrize("depth", [100, 500, 900])
def test_deep_nesting_is_refused(depth: int) -> None:
    driver = Driver()
    for event in deep_events(depth):
        error = driver.error(**{"kind": event.pop("type"), **event})
        assert error["code"] == "invalid_json"
        assert "64 levels" in error["message"]


@pytest.mark.parametrize(
    ("text", "is_deep"),
    [
        ("[" * 64 + "]" * 64, False),
        ("[" * 65 + "]" * 65, True),
        ('{"a":' * 65 + "1" + "}" * 65, True),
        ("[" + ("[" * 63 + "1" + "]" * 63 + ",") * 100 + "1]", False),
        ("[" + ("[" * 64 + "1" + "]" * 64 + ",") * 100 + "1]", True),
        (json.dumps(["[" * 100, '"' + "{" * 100, '\\"[' * 100, "\\", "[" * 100]), False),
        (json.dumps({"[" * 100 + '\\"': 1, "é\n[": "\\" * 101 + '"' + "[" * 100}, ensure_ascii=False), False),
        ('["\\\\",' + "[" * 64 + "]" * 64 + "]", True),
    ],
)
def test_depth_is_that_of_brackets_outside_texts(text: str, is_deep: bool) -> None:
    for form in (text, text.encode()):
        if is_deep:
            with pytest.raises(ProtocolError, match="64 levels"):
                decode_json(form, "text")
        else:
            assert decode_json(form, "text") == json.loads(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("[" + "[]," * 200_000 + "1]", "max_json_brackets"),
        ("[" + '{"a":1},' * 200_000 + "1]", "max_json_brackets"),
        ("[" + "0," * 1_100_000 + "1]", "max_json_commas"),
        ("[" * 200_000, "max_json_brackets"),
    ],
)
def test_a_text_has_a_bounded_number_of_values(text: str, limit: str) -> None:
    with pytest.raises(LimitExceeded, match=limit):
        decode_json(text.encode(), "body")
    error = Driver().frame(text)[0]["error"]
    assert error["code"] == "limit_exceeded"
    assert limit in error["message"]


def test_what_is_echoed_can_be_read_again() -> None:
    tools = [{"type": "function", "name": "f", "parameters": nested(58)}]
    (updated,) = Driver().send("session.update", session={"type": "realtime", "tools": tools})
    assert updated["type"] == "session.updated"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_many_brackets_side_by_side_are_fine(opening: str) -> None:
    closing = "]" if opening == "[" else "1}"
    frame = f'{{"type": "playback.ack", "item_id": "a", "played_ms": 1, "x": [{opening}{closing}]}}'
    assert Driver().frame(frame) == []
    many = ",".join([opening + closing] * 200)
    assert Driver().frame(f'{{"type": "playback.ack", "item_id": "a", "played_ms": 1, "x": [{many}]}}') == []


def test_refusals_do_not_repeat_long_words() -> None:
    part = {"type": "input_image", "image_url": "data:x", "detail": LONG}
    item = {"type": "message", "role": "user", "content": [part]}
    (refusal,) = Driver().frame(json.dumps({"type": "conversation.item.create", "item": item}))
    check_event(refusal)
    assert refusal["type"] == "error"
    assert len(json.dumps(refusal)) < 2000


def test_the_largest_session_object_is_under_a_mebibyte() -> None:
    """Every event is checked against it: clients read no more."""
    driver = Driver()
    described = {"type": "function", "name": "f", "description": CONTROL * 16_000}
    listening = {"transcription": {"model": "m", "prompt": CONTROL * 9_999}}
    session = {"type": "realtime", "instructions": CONTROL * 100_000, "tools": [described]}
    (updated,) = driver.send("session.update", session={**session, "audio": {"input": listening}})
    assert updated["type"] == "session.updated"
    too_long = {"type": "realtime", "audio": {"input": {"transcription": {"prompt": CONTROL * 10_001}}}}
    assert driver.error("session.update", session=too_long)["param"] == "max_transcription_chars"


def test_the_largest_item_is_under_a_mebibyte() -> None:
    added, _ = Driver().send("conversation.item.create", item=message(CONTROL * 100_000))
    assert added["type"] == "conversation.item.added"
