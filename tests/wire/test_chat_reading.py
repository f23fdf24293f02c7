"""A chat completion is read without a server: what the engine is asked for, and what is refused, by name."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Part,
    TextPart,
    TokensPart,
    ToolCallPart,
    ToolOutputPart,
    VideoPart,
)
from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.sampling import Sampling
from antiphon.wire.chat import ChatRequest
from antiphon.wire.chat_reading import ChatAsked, ChatScope, read_chat, speaker
from antiphon.wire.errors import error_object
from antiphon.wire.limits import Limits, MediaRoom
from antiphon.wire.media_urls import bytes_of, remote_urls
from antiphon.wire.parsing import converted, decode_json
from antiphon.wire.readers import ReaderRates
from antiphon.wire.text_params import TextReading, wishes_of
from wire.harness import INFO

OWN = {"thinker": Sampling(temperature=0.7, top_k=40), "talker": Sampling(temperature=0.9)}
HI = {"role": "user", "content": "hi"}
CALL = {"id": "call-1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
NOW = {"type": "function", "function": {"name": "now"}}
REMOTE = "https://pictures.example/a.png"


class Files:
    """Says what it was given."""

    def audio_file(self, data: bytes) -> AudioPart:
        if data == b"broken":
            raise ProtocolError("The sound is broken.")
        return AudioPart.of(data)

    def image_file(self, data: bytes, room: MediaRoom) -> ImagePart:
        if data == b"odd":
            raise ProtocolError("The picture is odd.", param="elsewhere")
        return ImagePart.of(data, 1, 1)

    def video_file(self, data: bytes, room: MediaRoom) -> VideoPart:
        return VideoPart.of(data, (1, 1), 1, 5.0)

    def video_frames(self, frames: list[bytes], fps: float, room: MediaRoom) -> VideoPart:
        return VideoPart.of(b"".join(frames), (1, 1), len(frames), fps)


def inline(data: bytes) -> str:
    return f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"


def read(
    *messages: dict[str, Any],
    limits: Limits = Limits(),
    readers: ReaderRates = ReaderRates(),
    **fields: Any,
) -> ChatAsked:
    body = msgspec.json.encode({"messages": [*messages] or [HI], **fields})
    asked = converted(decode_json(body, "body"), ChatRequest)
    info = msgspec.structs.replace(INFO, sampling=OWN)
    known = {"audio-1": (5, 6)}
    scope = ChatScope(info, limits, Files(), known.get, {REMOTE: b"far"}, readers)
    return read_chat(asked, scope, "session", "reply-1")


def parts(*content: dict[str, Any], **how: Any) -> tuple[Part, ...]:
    (item,) = read({"role": "user", "content": [*content]}, **how).request.items or ()
    return item.parts


def refused(*messages: dict[str, Any], **fields: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read(*messages, **fields)
    return caught.value


def too_much(limit: str, *messages: dict[str, Any], **fields: Any) -> None:
    with pytest.raises(LimitExceeded) as caught:
        read(*messages, **fields)
    assert caught.value.limit == limit


def test_a_plain_question() -> None:
    asked = read()
    assert (asked.format, asked.stream, asked.include_usage, asked.speech) == ("wav", False, False, False)
    request = asked.request
    assert (request.session, request.response, request.tier) == ("session", "reply-1", "latency")
    assert (request.sampling, request.tools, request.tool_choice) == ({}, (), "auto")
    assert not request.remember, "the server keeps no conversation for HTTP"
    assert request.items is not None
    assert [(item.role, item.parts) for item in request.items] == [("user", (TextPart("hi"),))]


def test_sound_of_a_model_that_has_no_voice() -> None:
    scope = ChatScope(msgspec.structs.replace(INFO, voices=()), Limits(), Files(), {}.get, {})
    asked = converted({"messages": [HI], "modalities": ["text", "audio"], "audio": {}}, ChatRequest)
    with pytest.raises(
        ProtocolError, match="test-omni has no voice: leave audio out of modalities"
    ) as refused:
        read_chat(asked, scope, "session", "response")
    assert refused.value.param == "modalities"


def test_an_answer_without_its_call() -> None:
    answer = {"role": "tool", "content": "noon", "tool_call_id": "call-2"}
    with pytest.raises(ProtocolError, match="No assistant message before it has a call 'call-2'") as refused:
        read(HI, {"role": "assistant", "tool_calls": [CALL]}, answer)
    assert (refused.value.code, refused.value.param) == ("invalid_tool_call_id", "messages[2].tool_call_id")


def test_every_role() -> None:
    spoken = {"role": "assistant", "audio": {"id": "audio-1"}, "content": "what it said"}
    messages = (
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "developer", "content": "be kind"},
        HI,
        {"role": "assistant", "content": "soon", "tool_calls": [CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "call-1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "refusal": "never"},
        {"role": "assistant", "tool_calls": [CALL]},
        spoken,
    )
    items = read(*messages).request.items or ()
    called = ToolCallPart("call-1", "now", "{}")
    assert [(item.role, item.parts) for item in items] == [
        ("system", (TextPart("be brief"),)),
        ("system", (TextPart("be kind"),)),
        ("user", (TextPart("hi"),)),
        ("assistant", (TextPart("soon"), called)),
        ("tool", (ToolOutputPart("call-1", "noon"),)),
        ("assistant", (TextPart("no"),)),
        ("assistant", (TextPart("never"),)),
        ("assistant", (called,)),
        ("assistant", (TokensPart((5, 6)),)),
    ]
    assert len({item.id for item in items}) == len(items)


def test_media_inline_and_fetched() -> None:
    sound = {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(b"wav").decode(), "format": "wav"},
    }
    frames = [inline(b"one"), REMOTE]
    found = parts(
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": REMOTE}},
        {"type": "image_url", "image_url": {"url": "data:text/plain,a%20b"}},
        sound,
        {"type": "audio_url", "audio_url": {"url": inline(b"ogg")}},
        {"type": "video_url", "video_url": {"url": inline(b"gif")}},
        {"type": "video", "video": frames, "fps": 4},
    )
    assert found == (
        TextPart("look"),
        ImagePart.of(b"far", 1, 1),
        ImagePart.of(b"a b", 1, 1),
        AudioPart.of(b"wav"),
        AudioPart.of(b"ogg"),
        VideoPart.of(b"gif", (1, 1), 1, 5.0),
        VideoPart.of(b"onefar", (1, 1), 2, 4.0),
    )


def test_what_has_to_be_fetched() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in (inline(b"x"), REMOTE)]
    frames = {"type": "video", "video": ["HTTP://a.example/1.png", REMOTE]}
    others = [
        {"type": f"{kind}_url", f"{kind}_url": {"url": f"http://b/{kind}"}} for kind in ("audio", "video")
    ]
    content = [{"type": "text", "text": "http://not.asked.for"}, *pictures, frames, *others]
    body = {"messages": [HI, {"role": "user", "content": content}, {"role": "system", "content": "x"}]}
    assert remote_urls(converted(body, ChatRequest)) == {
        REMOTE: "messages[1].content[2]",
        "HTTP://a.example/1.png": "messages[1].content[3]",
        "http://b/audio": "messages[1].content[4]",
        "http://b/video": "messages[1].content[5]",
    }


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://a/b", "A media URL is a data: URL"),
        (REMOTE, "A media URL is a data: URL"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,???", "valid base64"),
    ],
)
def test_urls_that_hold_nothing(url: str, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        bytes_of(url, {}, 100, "here")
    assert caught.value.param == "here"


@pytest.mark.parametrize("url", [inline(bytes(101)), inline(bytes(200)), "data:," + "x" * 101])
def test_urls_that_hold_too_much(url: str) -> None:
    with pytest.raises(LimitExceeded, match="max_file_bytes"):
        bytes_of(url, {}, 100, "here")
    assert len(bytes_of(inline(bytes(100)), {}, 100, "here")) == 100


def test_a_broken_medium_is_named_by_its_place() -> None:
    sound = {"type": "audio_url", "audio_url": {"url": inline(b"broken")}}
    assert refused(HI, {"role": "user", "content": [{"type": "text", "text": ""}, sound]}).param == (
        "messages[1].content[1]"
    )
    odd = {"type": "image_url", "image_url": {"url": inline(b"odd")}}
    assert refused({"role": "user", "content": [odd]}).param == "elsewhere"


def test_drawing_is_laid_over_the_checkpoints_own() -> None:
    asked = read(temperature=0.1, top_p=0.5, top_k=-1, repetition_penalty=1.2).request.sampling
    assert asked.keys() == {"thinker"}, "the voice stays as it is"
    text = asked["thinker"]
    assert (text.temperature, text.top_p, text.top_k, text.repetition_penalty) == (0.1, 0.5, 0, 1.2)
    assert text.seed != read(temperature=0.1, seed=3).request.sampling["thinker"].seed
    seeded = read(seed=3).request.sampling
    assert {name: one.seed for name, one in seeded.items()} == {"thinker": 3, "talker": 3}
    assert (seeded["thinker"].temperature, seeded["thinker"].top_k) == (0.7, 40)


def test_limits_of_a_reply_and_its_class() -> None:
    assert read(max_tokens=3).request.max_tokens == 3
    assert read(max_tokens=3, max_completion_tokens=5).request.max_tokens == 5
    assert read(service_tier="flex").request.tier == "best_effort"
    assert read(service_tier="priority").request.tier == "latency"
    assert read(stream=True, stream_options={"include_usage": True}).include_usage
    assert not read(stream=True, stream_options={}).include_usage


def test_how_a_streamed_text_is_read() -> None:
    asked = read(stream=True, antiphon={"rate": 20, "deliver": "paced"})
    assert (asked.request.rate, asked.is_paced) == (20, True)
    asked = read(stream=True, antiphon={})
    assert (asked.request.rate, asked.is_paced) == (12, False)
    assert read(stream=True).request.rate is None, "nobody knows how it is read"
    asked = read(stream=True, antiphon={"rate": "auto"})
    assert (asked.request.rate, asked.is_paced) == ("auto", False)
    assert refused(stream=True, antiphon={"rate": "auto", "deliver": "paced"}).param == "antiphon.rate"
    assert read(antiphon={"rate": "auto"}).request.rate == "auto", "an agent need not have it streamed"
    for rate in ({}, {"rate": 20}, {"rate": "listening"}):
        assert refused(antiphon=rate).param == "antiphon"
    assert refused(antiphon={}, stream=True, modalities=["text", "audio"]).param == "antiphon"


def test_who_reads_where_only_the_operator_knows() -> None:
    """By class, or where the request says nothing; a number wins, and a spoken reply has no reader."""
    readers = ReaderRates(reading=8.0, listening=3.0, streamed="listening", whole="auto")
    said = {None: 3.0, "reading": 8.0, "listening": 3.0, "auto": "auto", 20: 20}
    for rate, expected in said.items():
        how = {} if rate is None else {"antiphon": {"rate": rate}}
        assert read(stream=True, readers=readers, **how).request.rate == expected
    assert read(stream=True, readers=readers, antiphon={}).request.rate == 8.0
    assert read(stream=True, readers=ReaderRates(most=20.0), antiphon={"rate": 100}).request.rate == 20.0
    assert read(stream=True, antiphon={"rate": "listening", "deliver": "paced"}).request.rate == 3.3
    assert read(readers=readers).request.rate == "auto"
    assert read(readers=ReaderRates(streamed="reading")).request.rate is None
    several = read(stream=True, readers=readers, n=2)
    assert [one.rate for one in several.requests] == [3.0, 3.0]
    assert read(stream=True, readers=readers, modalities=["text", "audio"]).request.rate is None


@pytest.mark.parametrize("rate", [0, -1, 1e9, 0.9, 100.5, "fast", "", "inf", True, None, [12], {"tokens": 1}])
def test_a_rate_that_is_none_is_a_typed_error(rate: Any) -> None:
    assert refused(stream=True, antiphon={"rate": rate}).param == "antiphon.rate"


def test_speech() -> None:
    asked = read(modalities=["text", "audio"], audio={"voice": {"id": "Chelsie"}, "format": "flac"})
    assert (asked.speech, asked.format, asked.request.voice) == (True, "flac", "chelsie")
    assert read(stream=True).format == "pcm16"
    assert speaker("alloy", INFO) == "ethan", "clients may ask for other servers' voices"
    assert speaker(None, msgspec.structs.replace(INFO, voices=())) is None
    wrong = refused(stream=True, audio={"format": "mp3"})
    assert (wrong.param, "pcm16" in str(wrong)) == ("audio.format", True)
    unheard = refused(audio={"format": "aac"})
    assert unheard.param == "audio.format"
    assert "allowed are 'flac', 'mp3', 'opus', 'pcm16', 'wav'." in str(unheard)


def test_tools() -> None:
    asked = read(tools=[NOW], tool_choice={"type": "function", "function": {"name": "now"}}).request
    assert (asked.tools, asked.tool_choice) == (('{"type":"function","function":{"name":"now"}}',), "now")
    assert read(tools=[NOW], tool_choice="required").request.tool_choice == "required"
    assert refused(tool_choice="required").param == "tool_choice"
    other = {"type": "function", "function": {"name": "then"}}
    assert "'then'" in str(refused(tools=[NOW], tool_choice=other))


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("min_p", 0.5, "send 0"),
        ("prediction", {}, ""),
    ],
)
def test_what_is_not_done_is_refused_by_name(name: str, value: object, hint: str) -> None:
    error = refused(**{name: value})
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert hint in str(error)


def test_what_ends_a_text() -> None:
    assert read(stop="x").reading == TextReading(("x",), 0)
    assert read(stop=["x", "y"], min_tokens=3).reading == TextReading(("x", "y"), 3)
    assert read(stop=[]).reading.stops() is None
    six = ["\nclass", "\ndef", "\n#", "\nif", "\nprint", "<|im_end|>"]
    assert read(stop=six).reading.stop == tuple(six), "what lm-evaluation-harness' HumanEval sends"
    assert read(stop="x").request.tells_counts
    assert not read(stop=[]).request.tells_counts
    for wrong in ("", [""], ["x"] * 17, "x" * 257, 5):
        assert refused(stop=wrong).param in ("stop", "stop[0]")
    assert refused(stop="x", modalities=["text", "audio"]).param == "stop"


def test_several_replies_differ_in_seed_and_session() -> None:
    asked = read(n=3, seed=(1 << 63) - 2, temperature=1)
    assert [one.sampling["thinker"].seed for one in asked.requests] == [
        (1 << 63) - 2,
        (1 << 63) - 1,
        -(1 << 63),
    ]
    assert len({one.session for one in asked.requests}) == len({one.response for one in asked.requests}) == 3
    assert {one.items for one in asked.requests} == {asked.request.items}
    own = read(n=2, temperature=1).requests
    assert own[0].sampling["thinker"].seed != own[1].sampling["thinker"].seed
    assert refused(n=0).param == refused(n=17).param == "n"
    assert refused(n=2, modalities=["text", "audio"]).param == "n"
    assert refused(n=2, stream=True, antiphon={}).param == "antiphon"


def test_biases() -> None:
    asked = read(logit_bias={"5": -100, "07": 0.5})
    assert asked.request.sampling["thinker"].bias == ((5, -100.0), (7, 0.5))
    assert read(logit_bias={}).request.sampling == {}
    for wrong in (
        {"x": 1},
        {"-1": 1},
        {"²": 1},
        {"5": 101},
        {"1" * 10: 1},
        {str(at): 1 for at in range(1025)},
    ):
        assert (refused(logit_bias=wrong).param or "").startswith("logit_bias")
    known = msgspec.structs.replace(INFO, vocab_size=50)
    with pytest.raises(ProtocolError, match="0 to 49"):
        wishes_of(ChatRequest(messages=[], logit_bias={"50": 1.0}), known, None, None)


def test_what_a_text_has_to_match() -> None:
    wanted = {"response_format": {"type": "json_object"}}
    asked = read(**wanted, n=2)
    assert asked.guide is not None
    assert [one.sampling["thinker"].guide for one in asked.requests] == [asked.guide.guide] * 2
    assert refused(**wanted, modalities=["text", "audio"]).param == "response_format"


def test_a_call_that_is_asked_for_follows_the_tools_schemas() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    free, forced = read(tools=tools), read(tools=tools, tool_choice="required")
    assert free.guide is None
    assert forced.guide is not None
    assert "look" in forced.guide.guide.text
    spoken = read(tools=tools, tool_choice="required", modalities=["text", "audio"])
    assert spoken.guide == forced.guide, "a call is never spoken"


def test_what_is_told_of_tokens() -> None:
    asked = read(logprobs=True, top_logprobs=3)
    assert asked.request.sampling["thinker"].logprobs == 3
    assert asked.reading.num_top == 3
    assert read(logprobs=True).request.sampling["thinker"].logprobs == 0
    assert read(logprobs=False, top_logprobs=0).request.sampling == {}
    assert refused(top_logprobs=3).param == "top_logprobs"
    assert refused(logprobs=True, top_logprobs=21).param == "top_logprobs"


def test_what_asks_for_nothing_special_is_taken() -> None:
    neutral = {"n": 1, "stop": [], "logprobs": False, "logit_bias": {}, "response_format": {"type": "text"}}
    assert read(**neutral, user="somebody", store=True).request == read().request


def test_messages_that_say_nothing() -> None:
    gone = refused({"role": "assistant", "audio": {"id": "audio-9"}})
    assert (gone.code, gone.param) == ("audio_not_found", "messages[0].audio.id")
    empty = refused(HI, {"role": "assistant", "content": ""})
    assert (empty.code, empty.param) == ("missing_required_parameter", "messages[1].content")


@pytest.mark.parametrize("arguments", ["[" * 500 + "]" * 500, '{"a":' * 65 + "1" + "}" * 65, "[" * 90_000])
def test_arguments_are_nested_no_deeper_than_requests(arguments: str) -> None:
    call = {**CALL, "function": {"name": "now", "arguments": arguments}}
    error = refused(HI, {"role": "assistant", "tool_calls": [CALL, call]})
    assert (error.code, error.param) == (
        "invalid_json",
        "messages[1].tool_calls[1].function.arguments",
    )
    assert "64 levels" in str(error)


def test_limits_are_named() -> None:
    texts = [{"type": "text", "text": "12345"}] * 3
    user = {"role": "user", "content": texts}
    system = {"role": "system", "content": texts}
    sound = {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(bytes(9)).decode(), "format": "wav"},
    }
    picture = {"type": "image_url", "image_url": {"url": inline(bytes(9))}}
    video = {"type": "video", "video": [inline(b"one")] * 3}
    too_much("max_items", HI, HI, limits=Limits(max_items=1))
    too_much("max_text_chars", user, limits=Limits(max_text_chars=14))
    too_much("max_text_chars", {"role": "user", "content": "12345"}, limits=Limits(max_text_chars=4))
    too_much("max_text_chars", system, limits=Limits(max_text_chars=14))
    too_much("max_parts", user, limits=Limits(max_parts=2))
    too_much("max_parts", system, limits=Limits(max_parts=2))
    too_much("max_parts", {"role": "assistant", "tool_calls": [CALL] * 3}, limits=Limits(max_parts=2))
    long = {**CALL, "function": {"name": "now", "arguments": "12345"}}
    too_much("max_text_chars", {"role": "assistant", "tool_calls": [long]}, limits=Limits(max_text_chars=7))
    too_much("max_file_bytes", {"role": "user", "content": [sound]}, limits=Limits(max_file_bytes=8))
    too_much("max_video_frames", {"role": "user", "content": [video]}, limits=Limits(max_video_frames=2))
    for medium in (sound, picture, video):
        both = {"role": "user", "content": [medium, medium]}
        too_much("max_media_bytes", both, limits=Limits(max_media_bytes=17))
    assert len(parts(picture, picture, limits=Limits(max_media_bytes=18))) == 2
    twice = {"role": "user", "content": [picture]}
    too_much("max_media_bytes", twice, n=2, limits=Limits(max_media_bytes=17))


def test_media_are_counted_part_by_part_and_no_more_are_decoded() -> None:
    """The one that is over the limit is named."""
    picture = {"type": "image_url", "image_url": {"url": inline(bytes(9))}}
    broken = {"type": "image_url", "image_url": {"url": inline(b"odd")}}
    two, three = {"role": "user", "content": [picture] * 2}, {"role": "user", "content": [picture, broken]}
    with pytest.raises(LimitExceeded) as caught:
        read(two, three, limits=Limits(max_media_bytes=26))
    assert (caught.value.limit, caught.value.param) == ("max_media_bytes", "messages[1].content[0]")
    assert error_object(caught.value)["param"] == "messages[1].content[0]"


def test_strings_that_end_a_text_end_no_call_that_was_asked_for() -> None:
    tool = {"type": "function", "function": {"name": "sky"}}
    named = {"type": "function", "function": {"name": "sky"}}
    for choice, stops in (("auto", ("city",)), ("none", ("city",)), ("required", ()), (named, ())):
        assert read(tools=[tool], tool_choice=choice, stop="city").reading.stop == stops


def test_variables_for_the_chat_template() -> None:
    asked = {"enable_thinking": False, "mood": ["calm"]}
    assert json.loads(read(chat_template_kwargs=asked).request.template) == asked
    assert read(chat_template_kwargs={}).request.template == read().request.template == ""
    two = read(chat_template_kwargs=asked, n=2)
    assert {request.template for request in two.requests} == {two.request.template}
    error = refused(chat_template_kwargs=asked | {"messages": []})
    assert (error.code, error.param) == ("unsupported_parameter", "chat_template_kwargs.messages")
    assert refused(chat_template_kwargs=[1]).param == "chat_template_kwargs"
