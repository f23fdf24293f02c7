"""What completions and chat completions share: how a text is drawn, and how it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from antiphon.core.errors import ProtocolError
from antiphon.core.logprobs import MOST_TOP
from antiphon.core.model_info import ModelInfo
from antiphon.core.sampling import Guide
from antiphon.wire.client_events import Strict
from antiphon.wire.errors import shown
from antiphon.wire.guides import Guided
from antiphon.wire.readers import Delivery
from antiphon.wire.sampling_overrides import Wishes
from antiphon.wire.stopping import StopStrings

Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
NumTop = Annotated[int, Meta(ge=0, le=MOST_TOP)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
MAX_BIASES = 1024
MAX_DIGITS = 9
MAX_EACH = 16
"""Choices of one prompt."""
MAX_STOPS = 16
"""More than OpenAI's 4: evaluations of code name 6."""
MAX_STOP_CHARS = 256
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class StreamOptions(Strict, frozen=True, kw_only=True):
    """`include_usage`: the last chunk counts tokens. `continuous_usage_stats`: every chunk does.
    `include_obfuscation` is without effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class TextParams(Guided, frozen=True, kw_only=True):
    """Fields of every request for a text."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Seed | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    ignore_eos: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_EACH)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    antiphon: Delivery | None = None
    # refused unless they ask for what is done anyway
    frequency_penalty: Any = None
    presence_penalty: Any = None
    min_p: Any = None
    # without effect
    user: Any = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_all_along(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def is_paced(self) -> bool:
        """Is the text sent no faster than it is read?"""
        return self.antiphon is not None and self.antiphon.deliver == "paced"

    @property
    def needs_counts(self) -> bool:
        """Before the engine's end of the reply: what ends at a stop string is counted without that."""
        return self.counts_all_along or bool(self.stop)


@dataclass(frozen=True, slots=True)
class TextReading:
    """How a text is read off its tokens: it ends before one of these strings, after so many tokens.

    num_top       how many others are told with each token; None: nothing is told
    tells_prompt  the prompt's tokens are told too
    """

    stop: tuple[str, ...] = ()
    after: int = 0
    num_top: int | None = None
    tells_prompt: bool = False

    def stops(self) -> StopStrings | None:
        """For one reply."""
        return StopStrings(self.stop, self.after) if self.stop else None


def reading_of(asked: TextParams, num_top: int | None, tells_prompt: bool = False) -> TextReading:
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    return TextReading(stop, asked.min_tokens or 0, num_top, tells_prompt)


NEUTRAL_TEXT: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "min_p": (0,),
}
"""Fields that are refused, with the values (beside null) that ask for nothing special."""


def refuse(asked: TextParams, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises ProtocolError for what is not done, by name."""
    for name, values in neutral.items():
        value = getattr(asked, name)
        if value is not None and value not in values:
            allowed = f"; leave it out or send {shown(values[0])}" if values else ""
            raise ProtocolError(
                f"{name} is not supported by this server{allowed}.", code="unsupported_parameter", param=name
            )


def check_delivery(asked: TextParams, num_replies: int) -> None:
    """Raises ProtocolError where the request says how a text is read, and there is none that is read so."""
    if asked.antiphon is None:
        return
    if not asked.stream and asked.antiphon.rate != "auto":
        raise ProtocolError(
            "antiphon is for a text that is streamed, or for an agent: send stream: true, or rate: 'auto'.",
            param="antiphon",
        )
    if num_replies > 1:
        raise ProtocolError(
            f"antiphon is for one text that is read as it comes, and this asks for {num_replies}: send one"
            " prompt, and n: 1.",
            param="antiphon",
        )
    if asked.is_paced and asked.antiphon.rate == "auto":
        raise ProtocolError(
            "A text is paced at its reader's rate: send a number, or deliver: 'asap'.", param="antiphon.rate"
        )


def wishes_of(
    asked: TextParams,
    info: ModelInfo,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: bool | None = None,
    guide: Guide | None = None,
) -> Wishes:
    """How the text is drawn. Raises ProtocolError where the fields contradict each other, or name tokens that
    the model has not."""
    if max_tokens is not None and (asked.min_tokens or 0) > max_tokens:
        raise ProtocolError(
            f"min_tokens is {asked.min_tokens}, more than the {max_tokens} tokens that the reply may have;"
            " send a smaller min_tokens, or a larger max_tokens.",
            param="min_tokens",
        )
    return Wishes(
        asked.temperature,
        asked.top_p,
        None if asked.top_k is None else max(asked.top_k, 0),
        asked.repetition_penalty,
        asked.seed,
        asked.min_tokens,
        asked.ignore_eos,
        logprobs,
        prompt_logprobs,
        tuple(_biases(asked.logit_bias, info)) or None,
        max_tokens,
        guide,
    )


def _biases(asked: Mapping[str, float] | None, info: ModelInfo) -> Iterator[tuple[int, float]]:
    for name, value in (asked or {}).items():
        is_id = name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS
        if not is_id or (info.vocab_size and int(name) >= info.vocab_size):
            which = f"0 to {info.vocab_size - 1}" if info.vocab_size else "0 or more"
            raise ProtocolError(
                f"logit_bias names the token {shown(name)}; its keys have to be token ids, {which}.",
                param="logit_bias",
            )
        yield int(name), value
