"""Log-probabilities as clients read them: of chat completions, and of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

import msgspec

from antiphon.core.logprobs import TokenLog

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
Spelled = Callable[[int], bytes]
"""What a token stands for by itself."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON object that the server writes."""


class TopShown(Shown, frozen=True, kw_only=True):
    """A token that was likely. Half a character has bytes, and U+FFFD for a text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenShown(Shown, frozen=True, kw_only=True):
    """A token that was written, and the likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopShown]


class ChatLogprobs(Shown, frozen=True, kw_only=True):
    """Of the tokens of a message, special ones included, or, in a stream, of more of them."""

    content: list[TokenShown]
    refusal: None = None


class CompletionLogprobs(Shown, frozen=True, kw_only=True):
    """Of tokens in order. A prompt's first one has none. text_offset: where each begins, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_logprobs(logs: Sequence[TokenLog], spelled: Spelled) -> ChatLogprobs:
    return ChatLogprobs(content=[_token(log, spelled) for log in logs])


def completion_logprobs(logs: Sequence[TokenLog], spelled: Spelled, offset: int) -> CompletionLogprobs:
    """`offset`: where the first of them begins. Of tokens that read alike the likelier one is told."""
    texts = [_text(spelled(log.token)) for log in logs]
    offsets = [offset]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    return CompletionLogprobs(
        tokens=texts,
        token_logprobs=[None if isnan(log.logprob) else _value(log.logprob) for log in logs],
        top_logprobs=[None if isnan(log.logprob) else _tops(log, spelled) for log in logs],
        text_offset=offsets[: len(texts)],
    )


def _tops(log: TokenLog, spelled: Spelled) -> dict[str, float]:
    tops: dict[str, float] = {}
    for token, logprob in (*log.top, (log.token, log.logprob)):
        tops.setdefault(_text(spelled(token)), _value(logprob))
    return tops


def _token(log: TokenLog, spelled: Spelled) -> TokenShown:
    spelling = spelled(log.token)
    top = [_top(token, logprob, spelled) for token, logprob in log.top]
    return TokenShown(
        token=_text(spelling), logprob=_value(log.logprob), bytes=list(spelling), top_logprobs=top
    )


def _top(token: int, logprob: float, spelled: Spelled) -> TopShown:
    spelling = spelled(token)
    return TopShown(token=_text(spelling), logprob=_value(logprob), bytes=list(spelling))


def _text(spelling: bytes) -> str:
    return spelling.decode(errors="replace")


def _value(logprob: float) -> float:
    return max(logprob, LEAST)
