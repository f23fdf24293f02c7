"""Reading aloud and writing down, read without a server; and replies of chat completions as shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.core.conversation import AudioPart, TextPart, TranscriptOptions
from antiphon.core.errors import LimitExceeded, ProtocolError
from antiphon.core.facts import ResponseRequested
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.core.sampling import Sampling
from antiphon.wire.audio_api import (
    READ_ALOUD,
    SpeechRequest,
    TranscriptionRequest,
    flat_usage,
    read_speech,
    read_transcription,
)
from antiphon.wire.chat_replies import Heading, Shown, finish_reason, usage_shown
from antiphon.wire.limits import Limits
from antiphon.wire.parsing import converted
from antiphon.wire.reply_stream import (
    ArgumentsPiece,
    CallPiece,
    EndPiece,
    ReplyAccumulator,
    SoundPiece,
    TextPiece,
)
from wire.harness import INFO, USAGE

SOUND = AudioPart.of(bytes(8))
LIMITS = Limits(max_spoken_chars=10, max_text_chars=20)


def aloud(**fields: Any) -> ResponseRequested:
    asked = converted({"input": "good day", **fields}, SpeechRequest)
    return read_speech(asked, INFO, LIMITS, "session", "reply")


def written(**fields: Any) -> ResponseRequested:
    info = msgspec.structs.replace(INFO, sampling={"thinker": Sampling(temperature=0.7)})
    return read_transcription(
        converted(fields, TranscriptionRequest), (SOUND,), info, LIMITS, "session", "reply"
    )


def test_a_text_is_read_aloud_word_for_word() -> None:
    request = aloud(voice="chelsie", instructions="slowly")
    assert (request.say, request.voice, request.instructions) == ("good day", "chelsie", "slowly")
    assert (request.speech, request.remember) == (True, False)
    assert [item.parts for item in request.items or ()] == [(TextPart(READ_ALOUD + "good day"),)]
    assert aloud(speed=1).say == "good day"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": 1.5}, "speed"),
        ({"input": " \n"}, "input"),
        ({"response_format": "aac"}, "response_format"),
    ],
)
def test_what_cannot_be_read_aloud(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        aloud(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"input": "x" * 11}, "max_spoken_chars"), ({"instructions": "x" * 21}, "max_text_chars")],
)
def test_what_is_too_long_to_read_aloud(fields: dict[str, Any], limit: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        aloud(**fields)
    assert caught.value.limit == limit


def test_speech_is_written_down_greedily_while_somebody_waits() -> None:
    request = written()
    assert (request.tier, request.speech) == ("latency", False)
    assert request.sampling["thinker"].temperature == 0.0
    assert written(temperature=0.4).sampling["thinker"].temperature == 0.4
    assert SOUND in (request.items or ())[0].parts
    hinted = written(language="de", prompt="Antiphon")
    assert hinted.items != request.items or hinted.instructions != request.instructions


def heard(info_languages: tuple[str, ...] = ("en", "de"), **fields: Any) -> TranscriptOptions | None:
    info = msgspec.structs.replace(INFO, languages=info_languages)
    asked = converted(fields, TranscriptionRequest)
    (item,) = read_transcription(asked, (SOUND,), info, LIMITS, "session", "reply").items or ()
    (part,) = (part for part in item.parts if isinstance(part, AudioPart))
    return part.options


def test_a_transcriber_is_told_of_the_language_the_text_before_and_the_temperature() -> None:
    assert heard() is heard(language="en") is heard(language="EN-us", temperature=0, prompt=" ") is None
    assert heard(language="de-AT", prompt=" Ada ") == TranscriptOptions("de", "Ada")
    warm = heard(temperature=0.5)
    assert warm is not None
    assert (warm.language, warm.temperature) == (None, 0.5)
    assert warm == heard(temperature=0.5), "one reply's name, one seed"
    assert heard((), language="xx", temperature=0.5) is None, "another model is told in words"


@pytest.mark.parametrize(("languages", "language"), [(("en",), "de"), (("en", "de"), "xx")])
def test_a_language_that_is_not_heard(languages: tuple[str, ...], language: str) -> None:
    with pytest.raises(ProtocolError, match="writes down only en") as caught:
        heard(languages, language=language)
    assert (caught.value.code, caught.value.param) == ("unsupported_language", "language")


@pytest.mark.parametrize("temperature", [-0.1, 1.1, "hot"])
def test_a_temperature_that_cannot_be(temperature: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        heard(temperature=temperature)
    assert caught.value.param == "temperature"


@pytest.mark.parametrize("name", ["include", "timestamp_granularities"])
def test_times_and_probabilities_are_not_given(name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        written(**{name: ["word"]})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"prompt": "x" * 21}, "max_text_chars"), ({"language": "x" * 65}, "max_name_chars")],
)
def test_hints_that_are_too_long(fields: dict[str, Any], limit: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        written(**fields)
    assert caught.value.limit == limit


def test_tokens_are_counted_by_kind() -> None:
    counts = Usage(7, 13, 2, 4, 5, 6)
    flat = flat_usage(counts)
    assert (flat.input_tokens, flat.output_tokens, flat.total_tokens) == (22, 11, 33)
    told = usage_shown(counts)
    assert (told.prompt_tokens, told.completion_tokens, told.total_tokens) == (22, 11, 33)
    assert told.prompt_tokens_details.cached_tokens == 4
    assert told.completion_tokens_details.audio_tokens == 6


def shown(one: Shown) -> dict[str, Any]:
    return msgspec.to_builtins(one)


def test_chunks_of_a_written_reply() -> None:
    heading = Heading("c", 1, "m")
    deltas = [shown(one)["choices"][0]["delta"] for one in (heading.opening(), heading.text("hi"))]
    assert deltas == [{"role": "assistant", "content": "", "refusal": None}, {"content": "hi"}]
    (call,) = shown(heading.call(1, "call-1", "now"))["choices"][0]["delta"]["tool_calls"]
    assert (call["index"], call["id"], call["function"]) == (1, "call-1", {"name": "now", "arguments": ""})
    (more,) = shown(heading.arguments(1, "{}"))["choices"][0]["delta"]["tool_calls"]
    assert more == {"index": 1, "function": {"arguments": "{}"}}
    last = shown(heading.usage(USAGE))
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 33)
    assert "modality" not in last


def test_chunks_of_a_spoken_reply() -> None:
    heading = Heading("c", 1, "m", audio_id="a")
    opening = shown(heading.opening())["choices"][0]["delta"]
    assert (opening["content"], opening["audio"]) == (None, {"id": "a"})
    said = shown(heading.text("hi"))
    assert (said["modality"], said["choices"][0]["delta"]) == (
        "text",
        {"audio": {"id": "a", "transcript": "hi"}},
    )
    sound = shown(heading.sound("AAAA"))
    assert (sound["modality"], sound["choices"][0]["delta"]["audio"]["data"]) == ("audio", "AAAA")
    assert shown(heading.expiry(9))["choices"][0]["delta"]["audio"]["expires_at"] == 9


def test_why_a_reply_is_over() -> None:
    assert [finish_reason("completed", 0), finish_reason("completed", 2)] == ["stop", "tool_calls"]
    assert finish_reason("incomplete", 1) == "length"


def test_a_reply_is_put_together_from_its_pieces() -> None:
    whole = ReplyAccumulator()
    end = ResponseEnded("s", "r", "completed", "", "", Usage())
    pieces = (
        TextPiece("So"),
        SoundPiece(b"12"),
        CallPiece(0, "call-1", "now"),
        ArgumentsPiece(0, '{"a"'),
        TextPiece("on"),
        CallPiece(1, "call-2", "then"),
        ArgumentsPiece(0, ":1}"),
        SoundPiece(b"34"),
        EndPiece(end),
    )
    for piece in pieces:
        whole.add(piece)
    assert (whole.text, whole.sound) == ("Soon", b"1234")
    calls = [(call.id, call.function.name, call.function.arguments) for call in whole.shown_calls()]
    assert calls == [("call-1", "now", '{"a":1}'), ("call-2", "then", "")]


def test_a_voice_of_latin_letters_says_no_others() -> None:
    asked = converted({"input": "こんにちは 🎉"}, SpeechRequest)
    latin = msgspec.structs.replace(INFO, latin_only=True)
    with pytest.raises(ProtocolError, match="no Latin letter") as caught:
        read_speech(asked, latin, LIMITS, "session", "reply")
    assert caught.value.param == "input"
    assert read_speech(asked, INFO, LIMITS, "session", "reply").say == asked.input
    mixed = converted({"input": "こんにちは 2"}, SpeechRequest)
    assert read_speech(mixed, latin, LIMITS, "session", "reply").say == mixed.input
