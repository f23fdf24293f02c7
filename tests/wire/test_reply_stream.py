"""A reply in pieces: text, calls, sound, and exactly one end with what it means."""

from __future__ import annotations

import pytest

from antiphon.core.errors import Overloaded, ProtocolError
from antiphon.core.ids import IdSource
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
from antiphon.wire.stopping import StopStrings
from wire.harness import HalfDetokeniser


def tokens(text: str) -> TokensOut:
    return TokensOut("s", "r", "thinker", ints(list(map(ord, text))).reshape(-1, 1))


def ended(status: str = "completed", reason: str = "", message: str = "") -> ResponseEnded:
    return ResponseEnded("s", "r", status, reason, message, Usage())


def test_text_and_sound() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), False, 5.0)
    assert pieces.take(tokens("a")) == []
    assert pieces.take(tokens("bc")) == [TextPiece("ab")]
    assert pieces.take(AudioOut("s", "r", b"1234")) == [SoundPiece(b"1234")]
    end = ended()
    assert pieces.take(end) == [TextPiece("c"), EndPiece(end)]
    assert pieces.token_ids == list(map(ord, "abc"))


def test_a_call_and_one_that_breaks_off() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), True, 5.0)
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
        (ended("failed", "server_shutting_down", "m"), "server_overloaded", "server_error"),
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
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), False, 5.0, StopStrings((" end",)))
    assert pieces.take(tokens("so e")) == [TextPiece("so")]
    assert pieces.take(tokens("ndless")) == []
    assert pieces.is_stopped
    assert pieces.token_ids == list(map(ord, "so endl")), "the token that shows the end of it is the last"
    end = ended()
    assert pieces.take(end) == [EndPiece(end)]


def test_a_stop_string_that_the_end_of_the_reply_shows() -> None:
    pieces = ReplyStream(HalfDetokeniser(), IdSource("x"), False, 5.0, StopStrings(("o.",)))
    assert pieces.take(tokens("so.")) == [TextPiece("s")]
    assert pieces.take(ended("incomplete", "max_output_tokens")) == [EndPiece(ended())]
    held = ReplyStream(HalfDetokeniser(), IdSource("x"), False, 5.0, StopStrings(("o.!",)))
    assert held.take(tokens("so.")) == [TextPiece("s")]
    assert held.take(ended()) == [TextPiece("o."), EndPiece(ended())]
