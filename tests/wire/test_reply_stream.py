"""A reply in pieces: text, calls, sound, and exactly one end with what it means."""

from __future__ import annotations

from time import process_time

import msgspec
import numpy as np
import pytest

from antiphon.core.errors import Overloaded, ProtocolError
from antiphon.core.ids import IdSource
from antiphon.core.logprobs import PAIR, TokenLog, read_logs
from antiphon.core.plans import AudioOut, ResponseEnded, TokensOut, Usage, ints
from antiphon.wire.errors import error_object
from antiphon.wire.reply_stream import (
    ArgumentsPiece,
    CallPiece,
    EndPiece,
    ReplyAccumulator,
    ReplyStream,
    SoundPiece,
    TextPiece,
    error_of,
)
from antiphon.wire.text_params import TextReading
from wire.harness import HalfDetokeniser


def tokens(text: str) -> TokensOut:
    return TokensOut("s", "r", "thinker", ints(list(map(ord, text))).reshape(-1, 1))


def ended(status: str = "completed", reason: str = "", message: str = "") -> ResponseEnded:
    return ResponseEnded("s", "r", status, reason, message, Usage())


def test_text_and_sound() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0)
    assert pieces.take(tokens("a")) == []
    assert pieces.take(tokens("bc")) == [TextPiece("ab")]
    assert pieces.take(AudioOut("s", "r", b"1234")) == [SoundPiece(b"1234")]
    end = ended()
    assert pieces.take(end) == [TextPiece("c"), EndPiece(end)]
    assert pieces.token_ids == list(map(ord, "abc"))


def test_a_call_and_one_that_breaks_off() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), ("a",), 5.0)
    whole = ReplyAccumulator()
    call = '<tool_call>\n{"name": "a", "arguments": {"b": 1}}\n</tool_call>'
    for piece in (
        *pieces.take(tokens("hm ")),
        *pieces.take(tokens(call)),
        *pieces.take(tokens('<tool_call>{"name": "c", "arguments": {"d')),
        *pieces.take(ended("incomplete", "max_output_tokens")),
    ):
        whole.add(piece)
        assert not isinstance(piece, EndPiece) or piece.error is None
    first, second = whole.shown_calls()
    assert (first.function.name, first.function.arguments) == ("a", '{"b": 1}')
    assert (second.function.name, second.function.arguments) == ("c", '{"d')
    assert first.id != second.id
    assert whole.text.strip() == "hm"
    assert pieces.num_calls == 2


def test_tokens_of_calls_are_no_text_that_is_read() -> None:
    """A reader who had to read them would wait for the next words as long as that takes."""
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), ("a",), 5.0)
    text = "hm. "
    call = '<tool_call>\n{"name": "a", "arguments": {"b": 1}}\n</tool_call>'
    end = f"{call}{call}so."
    took = [piece for char in f"{text}{end}" for piece in pieces.take(tokens(char))]
    took += pieces.take(ended())
    told = [piece for piece in took if isinstance(piece, TextPiece)]
    assert "".join(piece.text for piece in told) == "hm.so."
    assert sum(piece.num_read for piece in told) <= len("hm. so.") + 1
    assert max(piece.num_tokens for piece in told) > 2 * len(call), "as usage counts them"


def test_what_only_looks_like_a_call_is_read() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), ("a",), 5.0)
    text = "hm <tool_call>no JSON</tool_call> so."
    told = [piece for char in text for piece in pieces.take(tokens(char))]
    assert sum(piece.num_read for piece in told if isinstance(piece, TextPiece)) == len(text)


@pytest.mark.parametrize(
    ("text", "stop"), [("hm <tool_call> no JSON", ()), ("hm it goes on", ("it goes on for ever",))]
)
def test_what_is_held_back_to_the_end_is_read(text: str, stop: tuple[str, ...]) -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), ("a",), 5.0, TextReading(stop=stop))
    told = [piece for char in text for piece in pieces.take(tokens(char))]
    late = [piece for piece in pieces.take(ended()) if isinstance(piece, TextPiece)]
    assert sum(len(piece.text) for piece in late) > len("no JSON")
    counts = [(piece.num_tokens, piece.num_read) for piece in (*told, *late) if isinstance(piece, TextPiece)]
    assert tuple(map(sum, zip(*counts, strict=True))) == (len(text), len(text))


def test_a_whole_reply_takes_every_piece() -> None:
    whole = ReplyAccumulator()
    for piece in (SoundPiece(b"12"), SoundPiece(b"3"), CallPiece(0, "i", "n"), ArgumentsPiece(0, "{}")):
        whole.add(piece)
    assert bytes(whole.sound) == b"123"
    assert whole.calls == [("i", "n", "{}")]


@pytest.mark.parametrize(
    ("end", "code", "kind"),
    [
        (ended("failed", "invalid_prompt", "m"), "invalid_prompt", "invalid_request_error"),
        (ended("failed", "context_length_exceeded", "m"), "context_length_exceeded", "invalid_request_error"),
        (ended("cancelled", "no_speech", "m"), "no_speech", "invalid_request_error"),
        (ended("failed", "stage_failed", "m"), "stage_failed", "server_error"),
        (ended("cancelled", "session_closed"), "session_closed", "server_error"),
        (ended("failed", "server_shutting_down", "m"), "server_shutting_down", "server_error"),
        (ended("failed", "server_overloaded", "m"), "server_overloaded", "server_error"),
        (ended("failed", "stage_lost", "m"), "stage_lost", "server_error"),
    ],
)
def test_what_an_end_means(end: ResponseEnded, code: str, kind: str) -> None:
    error = error_of(end, 5.0)
    assert isinstance(error, ProtocolError | Overloaded)
    shown = error_object(error)
    assert (shown["code"], shown["type"]) == (code, kind)
    assert shown["message"]


def test_a_text_that_has_come_to_its_stop_string_is_over() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0, TextReading((" end",)))
    assert pieces.take(tokens("so e")) == [TextPiece("so")]
    assert pieces.take(tokens("ndless")) == []
    assert pieces.is_stopped
    assert pieces.token_ids == list(map(ord, "so endl")), "the token that shows the end of it is the last"
    end = ended()
    assert pieces.take(end) == [EndPiece(end)]


def test_what_a_call_might_have_begun_with_is_told_where_a_stop_string_ends_the_text() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), ("a",), 5.0, TextReading(("END",)))
    text = [*pieces.take(tokens("so \nENDx")), *pieces.take(ended())]
    assert "".join(piece.text for piece in text if isinstance(piece, TextPiece)) == "so \n"


def test_a_stop_string_that_the_end_of_the_reply_shows() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0, TextReading(("o.",)))
    assert pieces.take(tokens("so.")) == [TextPiece("s")]
    assert pieces.take(ended("incomplete", "max_output_tokens")) == [EndPiece(ended())]
    held = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0, TextReading(("o.!",)))
    assert held.take(tokens("so.")) == [TextPiece("s")]
    assert held.take(ended()) == [TextPiece("o."), EndPiece(ended())]


def told(text: str, prompt: str = "") -> bytes:
    """A token a character, with one other each."""
    pairs = [[(ord(char), -0.5), (ord("x"), -0.25)] for char in prompt + text]
    return np.array(pairs, PAIR).tobytes()


def logs(text: str) -> list[TokenLog]:
    return [TokenLog(ord(char), -0.5, ((ord("x"), -0.25),)) for char in text]


def test_what_is_told_of_tokens_goes_with_their_text() -> None:
    """Tokens whose text is held back wait with it, and those without any come with the end."""
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0, TextReading((), 0, 1, True))
    first = msgspec.structs.replace(tokens("a"), usage=Usage(2), logprobs=told("a", "pq"))
    assert pieces.take(first) == []
    assert read_logs(pieces.prompt_logs, 1) == logs("pq")
    assert pieces.take(msgspec.structs.replace(tokens("b"), logprobs=told("b"))) == [
        TextPiece("a", told=told("ab"))
    ]
    assert pieces.take(msgspec.structs.replace(tokens(""), logprobs=told("c"))) == []
    end = ended()
    assert pieces.take(end) == [TextPiece("b"), EndPiece(end)], "what ended it is no token of it"
    silent = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0, TextReading((), 0, 1))
    assert silent.take(msgspec.structs.replace(tokens("a"), usage=Usage(2), logprobs=told("a"))) == []
    silent._detokeniser.flush()
    late = TextPiece("", told=told("a"), num_top=1)
    assert silent.take(end) == [late, EndPiece(end)]
    assert late.logs == logs("a")


def test_what_is_told_where_the_text_is_over() -> None:
    """Of the token that shows the stop string too, and of none behind it."""
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), (), 5.0, TextReading(("b",), 0, 1))
    assert pieces.take(msgspec.structs.replace(tokens("abc"), logprobs=told("abc"))) == [
        TextPiece("a", told=told("abc"))
    ]
    assert pieces.take(msgspec.structs.replace(tokens("d"), logprobs=told("d"))) == []
    assert pieces.take(ended()) == [EndPiece(ended())]


def test_what_is_told_of_a_long_call_takes_time_in_proportion() -> None:
    def seconds(num_tokens: int) -> float:
        pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), ("a",), 5.0, TextReading((), 0, 20))
        output = tokens("a")
        output = msgspec.structs.replace(output, logprobs=bytes(21 * PAIR.itemsize))
        pieces.take(tokens('<tool_call>{"name": "a", "arguments": {"b": "'))
        begun = process_time()
        for _ in range(num_tokens):
            pieces.take(output)
        assert pieces.num_held_bytes == num_tokens * 21 * PAIR.itemsize
        return process_time() - begun

    seconds(100)
    assert seconds(16_000) < 24 * seconds(2_000), "8 times as long; the square would be 64"
