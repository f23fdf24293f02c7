"""Tools over the wire: declared, called, answered; every event as the official SDK types it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.core.conversation import ToolCallPart, ToolOutputPart
from antiphon.core.facts import ItemAdded, ItemRemoved, ResponseRequested
from antiphon.core.sampling import Sampling
from antiphon.wire.guides import Guided, guide_of
from antiphon.wire.limits import Limits
from wire.harness import INFO, Driver, kinds, message

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather at a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SCHEMA = (
    '{"type":"function","function":{"name":"get_weather","description":"Weather at a place.",'
    '"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}'
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CALLED = [
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "conversation.item.done",
    "response.output_item.done",
]


def configured(**fields: Any) -> Driver:
    driver = Driver()
    driver.send("session.update", session={"type": "realtime", "tools": [TOOL], **fields})
    return driver


def merged(events: list[dict[str, Any]]) -> list[str]:
    """Kinds, with deltas that follow one another as one."""
    found = kinds(events)
    return [kind for i, kind in enumerate(found) if not (i and kind == found[i - 1] and "delta" in kind)]


def test_tools_are_echoed_and_reach_the_engine() -> None:
    driver = configured(tool_choice="required")
    session = driver.events[-1]["session"]
    assert session["tools"] == [TOOL]
    assert session["tool_choice"] == "required"
    driver.ask()
    assert (driver.request.tools, driver.request.tool_choice) == ((SCHEMA,), "required")
    named = {"type": "function", "name": "get_weather"}
    (event,) = driver.send("session.update", session={"type": "realtime", "tool_choice": named})
    assert event["session"]["tool_choice"] == named
    (event,) = driver.send("session.update", session=event["session"])
    assert event["session"]["tools"] == [TOOL]
    error = driver.error("session.update", session={"type": "realtime", "tools": None})
    assert error["param"] == "session.tool_choice", "the chosen tool would be gone"
    (event,) = driver.send("session.update", session={"type": "realtime", "tools": None, "tool_choice": None})
    assert (event["session"]["tools"], event["session"]["tool_choice"]) == ([], "auto")


def test_a_model_that_is_shown_no_tools_is_given_none() -> None:
    """That is said where tools are, and not of every response; nothing else of the update is taken."""
    driver = Driver(info=msgspec.structs.replace(INFO, takes_tools=False))
    asked = {"type": "realtime", "tools": [TOOL], "instructions": "Be brief."}
    error = driver.error("session.update", session=asked)
    assert (error["param"], error["code"]) == ("session.tools", "unsupported_parameter")
    assert "test-omni has no place for tools: leave session.tools out" in error["message"]
    assert driver.error("response.create", response={"tools": [TOOL]})["param"] == "response.tools"
    (event,) = driver.send("session.update", session={"type": "realtime", "tools": []})
    assert (event["type"], event["session"]["instructions"]) == ("session.updated", "")
    nothing = {"type": "realtime", "tools": [TOOL], "tool_choice": "none", "instructions": "Be brief."}
    (event,) = driver.send("session.update", session=nothing)
    assert event["session"]["instructions"] == "Be brief.", "none of them would be called"
    assert driver.error("response.create", response={"tool_choice": "auto"})["param"] == "response.tools"
    call = {"type": "function_call", "call_id": "c", "name": "sky", "arguments": "{}"}
    error = driver.error("conversation.item.create", item=call)
    assert (error["param"], error["code"]) == ("item", "unsupported_parameter")
    assert driver.error("response.create", response={"input": [call]})["param"] == "response.input[0]"
    driver.ask()
    assert driver.request.tool_choice == "none"


def test_a_response_has_tools_of_its_own() -> None:
    driver = configured()
    driver.ask(tools=[{"type": "function", "name": "clock"}], tool_choice="none", conversation="none")
    assert driver.request.tools == ('{"type":"function","function":{"name":"clock"}}',)
    assert driver.request.tool_choice == "none"
    driver.ask(tools=[], conversation="none")
    assert driver.request.tools == ()
    driver.ask(conversation="none")
    assert driver.request.tools == (SCHEMA,)


def test_a_call_that_is_asked_for_follows_its_schema() -> None:
    """Where that cannot be followed, or none is asked for, the model calls as it likes."""
    info = msgspec.structs.replace(INFO, sampling={"thinker": Sampling(top_k=9), "talker": Sampling()})
    driver, odd = Driver(info=info), TOOL | {"parameters": {"type": "string"}}
    for tools, choice in (([TOOL], "required"), ([TOOL], "auto"), ([TOOL], "none"), ([odd], "required")):
        driver.ask(tools=tools, tool_choice=choice, conversation="none")
    guided, *free = [asked.sampling for asked in driver.facts_of(ResponseRequested)]
    (own,) = guided.values()
    assert own.top_k == 9
    assert own.guide == guide_of(Guided(), Limits(), (SCHEMA,), "required").guide
    assert free == [{}, {}, {}]


def test_a_call_alone() -> None:
    driver = configured()
    response = driver.ask()
    events = driver.tokens(response, CALL) + driver.end(response)
    assert merged(events) == [*CALLED, "response.done"]
    added, kept = events[0]["item"], events[1]["item"]
    assert added == kept
    assert (added["type"], added["arguments"], added["status"]) == ("function_call", "", "in_progress")
    assert added["id"] == driver.request.item_id
    done = next(e for e in events if e["type"] == "response.function_call_arguments.done")
    assert (done["name"], done["arguments"]) == ("get_weather", '{"city": "Paris"}')
    assert done["call_id"] == added["call_id"]
    (item,) = events[-1]["response"]["output"]
    assert (item["status"], item["arguments"]) == ("completed", '{"city": "Paris"}')
    (retrieved,) = driver.send("conversation.item.retrieve", item_id=item["id"])
    assert retrieved["item"] == item


def test_arguments_stream_as_they_come() -> None:
    driver = configured()
    response = driver.ask()
    deltas = [
        event["delta"]
        for chunk in (CALL[:40], CALL[40:60], CALL[60:])
        for event in driver.tokens(response, chunk)
        if event["type"] == "response.function_call_arguments.delta"
    ]
    assert len(deltas) > 1
    assert "".join(deltas) == '{"city": "Paris"}'


def test_words_and_two_calls_spoken() -> None:
    """The message stays open beside the calls, because its audio still comes."""
    driver = configured()
    driver.say(id="before")
    response = driver.ask()
    events = driver.tokens(response, "Let me see.\n" + CALL + "\n" + CALL + "\n")
    events += driver.audio(response) + driver.end(response)
    assert merged(events) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        *CALLED,
        *CALLED,
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "output_audio", "transcript": "Let me see."}]
    assert output[0]["id"] == driver.request.item_id
    assert len({item["id"] for item in output}) == 3
    assert len({item["call_id"] for item in output[1:]}) == 2
    before = [e["previous_item_id"] for e in events if e["type"] == "conversation.item.added"]
    assert before == ["before", output[0]["id"], output[1]["id"]]
    indices = {e["item_id"]: e["output_index"] for e in events if "item_id" in e}
    assert list(indices.values()) == [0, 1, 2]


def test_in_text_the_words_are_closed_before_the_call_and_may_come_again() -> None:
    driver = configured(output_modalities=["text"])
    response = driver.ask()
    events = driver.tokens(response, "Let me see." + CALL + "So.") + driver.end(response)
    assert merged(events)[3:10] == [
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        *CALLED[:2],
    ]
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert output[2]["content"] == [{"type": "output_text", "text": "So."}]


def test_a_malformed_call_is_text() -> None:
    driver = configured(output_modalities=["text"])
    response = driver.ask()
    events = driver.tokens(response, "<tool_call>get weather</tool_call>") + driver.end(response)
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == "<tool_call>get weather</tool_call>"


def test_without_tools_a_call_is_text() -> None:
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        driver = Driver()
        response = driver.ask(output_modalities=["text"], **fields)
        events = driver.tokens(response, CALL) + driver.end(response)
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == CALL


def test_a_call_that_is_cut_is_incomplete() -> None:
    driver = configured()
    response = driver.ask()
    driver.tokens(response, CALL[:-20])
    driver.send("response.cancel")
    events = driver.end(response, "cancelled", "client_cancelled")
    assert merged(events)[-4:] == [*CALLED[3:], "response.done"]
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_the_client_s_own_calls_and_outputs() -> None:
    driver = Driver()
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c1", "id": "a"}
    events = driver.send("conversation.item.create", item=call)
    assert kinds(events) == ["conversation.item.added", "conversation.item.done"]
    assert events[0]["item"] == {**call, "object": "realtime.item", "status": "completed"}
    assert driver.fact(ItemAdded).item.parts == (ToolCallPart("c1", "f", "{}"),)
    assert driver.fact(ItemAdded).item.role == "assistant"
    answer = {"type": "function_call_output", "call_id": "c1", "output": "noon", "id": "b"}
    events = driver.send("conversation.item.create", item=answer)
    assert events[0]["item"] == {**answer, "object": "realtime.item", "status": "completed"}
    assert driver.fact(ItemAdded).item.parts == (ToolOutputPart("c1", "noon"),)
    assert driver.fact(ItemAdded).item.role == "tool"
    (event,) = driver.send("conversation.item.retrieve", item_id="b")
    assert event["item"] == events[0]["item"]
    assert kinds(driver.send("conversation.item.delete", item_id="a")) == ["conversation.item.deleted"]
    nameless = {"type": "function_call", "name": "f", "arguments": "{}"}
    assert driver.send("conversation.item.create", item=nameless)[0]["item"]["call_id"]


def test_the_output_of_a_call_that_is_not_there_is_refused() -> None:
    driver = configured()
    answer = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
    for item in (None, {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c2"}):
        if item is not None:
            driver.send("conversation.item.create", item=item)
        error = driver.error("conversation.item.create", item=answer)
        assert (error["code"], error["param"]) == ("invalid_tool_call_id", "item.call_id")
        assert "'c1' not found" in error["message"]
    driver.ask(conversation="none", input=[answer])
    response = driver.ask()
    (added, *_) = driver.tokens(response, CALL)
    answer["call_id"] = added["item"]["call_id"]
    assert driver.send("conversation.item.create", item=answer)[0]["type"] == "conversation.item.added"


def test_a_call_that_is_required_needs_tools() -> None:
    driver = Driver()
    error = driver.error("response.create", response={"tool_choice": "required"})
    assert (error["code"], error["param"]) == ("invalid_value", "response.tool_choice")
    driver.send("session.update", session={"type": "realtime", "tool_choice": "required"})
    assert driver.error("response.create")["param"] == "response.tool_choice"
    driver.send("session.update", session={"type": "realtime", "tools": [TOOL]})
    driver.ask()
    assert driver.request.tool_choice == "required"


@pytest.mark.parametrize("arguments", ["[" * 500 + "]" * 500, '{"a":' * 65 + "1" + "}" * 65, "[" * 90_000])
def test_arguments_are_nested_no_deeper_than_events(arguments: str) -> None:
    driver = configured()
    call = {"type": "function_call", "name": "f", "arguments": arguments}
    error = driver.error("conversation.item.create", item=call)
    assert (error["code"], error["param"]) == ("invalid_json", "item.arguments")
    error = driver.error("response.create", response={"input": [call]})
    assert (error["code"], error["param"]) == ("invalid_json", "response.input[0].arguments")


@pytest.mark.parametrize("arguments", ["[" * 64 + "]" * 64, '{"half', "see [1"])
def test_arguments_that_are_no_json_or_less_deep_are_taken(arguments: str) -> None:
    driver = configured()
    driver.send(
        "conversation.item.create", item={"type": "function_call", "name": "f", "arguments": arguments}
    )
    (part,) = driver.fact(ItemAdded).item.parts
    assert isinstance(part, ToolCallPart)
    assert part.arguments == arguments


def test_the_record_s_item_goes_with_the_last_of_what_shows_it() -> None:
    driver = configured()
    response = driver.ask()
    driver.tokens(response, "Well." + CALL)
    first, second = (item["id"] for item in driver.end(response)[-1]["response"]["output"])
    driver.send("conversation.item.create", item=message(id="after"), previous_item_id=second)
    assert driver.fact(ItemAdded).after == first, "the record knows the reply by one id"
    num_facts = len(driver.facts)
    driver.send("conversation.item.delete", item_id=first)
    assert len(driver.facts) == num_facts
    driver.send("conversation.item.delete", item_id=second)
    assert driver.fact(ItemRemoved).item_id == first


def test_input_may_refer_to_items() -> None:
    driver = configured()
    driver.say(id="a")
    response = driver.ask()
    driver.tokens(response, "Well." + CALL)
    words, call = (item["id"] for item in driver.end(response)[-1]["response"]["output"])
    inputs = [{"type": "item_reference", "id": name} for name in ("a", words, call)]
    driver.ask(conversation="none", input=[*inputs, message("and?")])
    assert driver.request.items is not None
    assert [item.id for item in driver.request.items[:2]] == ["a", words]
    assert [len(item.parts) for item in driver.request.items] == [0, 0, 1]


def test_a_bare_call_is_a_call_where_the_template_asks_for_such() -> None:
    text = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    for json_calls, kind in ((True, "function_call"), (False, "message")):
        driver = Driver(info=msgspec.structs.replace(INFO, json_calls=json_calls))
        driver.send("session.update", session={"type": "realtime", "tools": [TOOL]})
        response = driver.ask()
        events = driver.tokens(response, text) + driver.end(response)
        (item,) = events[-1]["response"]["output"]
        assert item["type"] == kind
    sampling = {"thinker": Sampling()}
    driver = Driver(info=msgspec.structs.replace(INFO, json_calls=True, sampling=sampling))
    required = {"type": "realtime", "tools": [TOOL], "tool_choice": "required"}
    driver.send("session.update", session=required)
    driver.ask()
    guide = driver.request.sampling["thinker"].guide
    assert guide == guide_of(Guided(), Limits(), (SCHEMA,), "required", json_calls=True).guide
