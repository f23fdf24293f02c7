"""Log-probabilities as clients read them: half characters, minus infinity, tokens that read alike."""

from __future__ import annotations

from math import inf, nan

from antiphon.core.logprobs import TokenLog
from antiphon.wire.logprobs import chat_logprobs, completion_logprobs

SPELLED = {0: b"\xf0\x9f", 1: b"\x98", 2: b"hi", 3: b"hi"}.__getitem__


def test_half_a_character_has_bytes() -> None:
    (log,) = chat_logprobs([TokenLog(0, -1.0, ((1, -inf),))], SPELLED).content
    assert (log.token, log.bytes) == ("\ufffd", [0xF0, 0x9F])
    (top,) = log.top_logprobs
    assert (top.token, top.logprob, top.bytes) == ("\ufffd", -9999.0, [0x98])


def test_tokens_that_read_alike_are_told_as_the_likelier() -> None:
    told = completion_logprobs([TokenLog(2, nan, ()), TokenLog(3, -4.0, ((2, -1.0), (0, -2.0)))], SPELLED, 5)
    assert told.tokens == ["hi", "hi"]
    assert told.text_offset == [5, 7]
    assert told.token_logprobs == [None, -4.0]
    assert told.top_logprobs == [None, {"hi": -1.0, "\ufffd": -2.0}]
    assert completion_logprobs([], SPELLED, 3).text_offset == []
