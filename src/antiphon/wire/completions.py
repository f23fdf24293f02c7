"""Completions of a prompt as it stands: the request, its meaning, and the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from antiphon.core.errors import ProtocolError
from antiphon.core.facts import ResponseRequested
from antiphon.core.ids import IdSource
from antiphon.core.model_info import ModelInfo
from antiphon.wire.chat_replies import Shown, UsageShown
from antiphon.wire.guides import AskedGuide, guide_of
from antiphon.wire.limits import Limits, check
from antiphon.wire.logprobs import CompletionLogprobs
from antiphon.wire.readers import ReaderRates
from antiphon.wire.sampling_overrides import sampling_of
from antiphon.wire.text_params import (
    NEUTRAL_TEXT,
    NumTop,
    TextParams,
    TextReading,
    check_delivery,
    reading_of,
    refuse,
    wishes_of,
)

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Raw = str | tuple[int, ...]
DEFAULT_MAX_TOKENS = 16
"""As OpenAI's."""


class CompletionRequest(TextParams, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt`: a text, its token ids, or a list of texts or of lists of token ids."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] = DEFAULT_MAX_TOKENS
    echo: bool | None = None
    logprobs: NumTop | None = None
    # refused unless they ask for what is done anyway
    best_of: Any = None
    suffix: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = NEUTRAL_TEXT | {"best_of": (1,), "suffix": ("",)}


class CompletionChoice(Shown, frozen=True, kw_only=True):
    """A text that was written, or, in a stream, more of it. The choices of one prompt follow each other."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Completion(Shown, frozen=True, kw_only=True):
    """The whole answer, or a chunk of a stream; the last chunk may have no choices, and usage."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageShown | msgspec.UnsetType = msgspec.UNSET
    object: Literal["text_completion"] = "text_completion"


@dataclass(frozen=True, slots=True)
class CompletionAsked:
    """requests: one a choice. prompts: of each choice, where it is to be echoed; else none. num_each: of each
    prompt. is_prompt_only: no text is wanted behind it. is_paced: it is sent no faster than it is read."""

    requests: tuple[ResponseRequested, ...]
    prompts: tuple[Raw, ...]
    num_each: int
    reading: TextReading
    stream: bool
    include_usage: bool
    counts_all_along: bool
    is_prompt_only: bool
    guide: AskedGuide | None = None
    is_paced: bool = False


def read_completion(
    asked: CompletionRequest,
    info: ModelInfo,
    limits: Limits,
    ids: IdSource,
    readers: ReaderRates = ReaderRates(),
) -> CompletionAsked:
    """Raises ProtocolError or LimitExceeded for whatever is wrong."""
    refuse(asked, NEUTRAL)
    prompts = tuple(_prompts(asked.prompt, limits))
    longest = max((len(one) for one in prompts if not isinstance(one, str)), default=0)
    if longest > info.max_context_tokens:
        raise ProtocolError(
            f"The prompt has {longest} tokens, and prompt and reply have {info.max_context_tokens} together"
            " at most. Send a shorter one.",
            code="context_length_exceeded",
            param="prompt",
        )
    num_each = asked.n or 1
    check("max_choices", limits.max_choices, num_each * len(prompts), "Send fewer prompts, or a smaller n")
    if not asked.max_tokens and not asked.echo:
        raise ProtocolError(
            "max_tokens is 0, and there is nothing to answer: send 1 or more, or echo: true.",
            param="max_tokens",
        )
    check_delivery(asked, num_each * len(prompts))
    if asked.antiphon is not None and asked.echo:
        raise ProtocolError(
            "antiphon paces what is written, and echo shows what was sent: leave one of them out.",
            param="antiphon",
        )
    tells_prompt = bool(asked.echo) and asked.logprobs is not None
    guide = guide_of(asked, limits)
    wishes = wishes_of(
        asked, info, asked.max_tokens, asked.logprobs, tells_prompt or None, guide and guide.guide
    )
    requests: list[ResponseRequested] = []
    for raw in prompts:
        for choice in range(num_each):
            response = ids.new("resp")
            requests.append(
                ResponseRequested(
                    session=ids.new("sess"),
                    response=response,
                    item_id="reply",
                    speech=False,
                    sampling=sampling_of(wishes, info, response, choice),
                    max_tokens=max(asked.max_tokens, 1),
                    remember=False,
                    items=(),
                    tier="best_effort" if asked.service_tier == "flex" else "latency",
                    rate=readers.of(asked.antiphon and asked.antiphon.rate, is_streamed=bool(asked.stream)),
                    raw=raw,
                    tells_counts=asked.needs_counts or tells_prompt,
                    cache_salt=asked.cache_salt or "",
                )
            )
    return CompletionAsked(
        tuple(requests),
        tuple(raw for raw in prompts for _ in range(num_each)) if asked.echo else (),
        num_each,
        reading_of(asked, asked.logprobs, tells_prompt),
        bool(asked.stream),
        asked.includes_usage,
        asked.counts_all_along,
        asked.max_tokens == 0,
        guide,
        asked.is_paced,
    )


def _prompts(prompt: str | list[str | int | list[int]], limits: Limits) -> Iterator[Raw]:
    if isinstance(prompt, str):
        yield _text(prompt, limits)
    elif all(isinstance(one, str) for one in prompt):
        for one in prompt:
            assert isinstance(one, str)
            yield _text(one, limits)
    elif all(isinstance(one, int) for one in prompt):
        yield tuple(one for one in prompt if isinstance(one, int))
    elif all(isinstance(one, list) for one in prompt):
        for one in prompt:
            assert isinstance(one, list)
            yield tuple(one)
    else:
        raise ProtocolError(
            "prompt has to be a text, a list of texts, a list of token ids, or a list of such lists; this one"
            " mixes them.",
            param="prompt",
        )


def _text(prompt: str, limits: Limits) -> str:
    check("max_text_chars", limits.max_text_chars, len(prompt), "The prompt is too long")
    return prompt
