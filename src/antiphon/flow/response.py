"""The state of one response on its way through the stages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from antiphon.core.conversation import Item, Media
from antiphon.core.facts import ResponseRequested, Span, StagePrompt
from antiphon.core.ids import content_key
from antiphon.core.plans import Usage
from antiphon.core.sampling import Sampling
from antiphon.flow.stages import Path
from antiphon.policy.base import Tier
from antiphon.stage.ar import ArScheduler
from antiphon.stage.requests import ArRequest, private_keys, salted_keys

TIERS = {"latency": Tier.LATENCY, "best_effort": Tier.BEST_EFFORT}


class Phase(StrEnum):
    """How far a response is. Each names what it waits for; the orchestrator ends it in any of them.

    RENDERING --PromptReady--> ENCODING --its media are at hand--> ANSWERING
        └------------ the reply was given (say) ----------------------^
    ANSWERING --a waiting request lost KV that had spared it media--> ENCODING
    """

    RENDERING = "rendering"
    """Its prompt is being made, or what it shows is being written down first."""
    ENCODING = "encoding"
    """Media that its KV does not cover are being encoded, or are on their way to where they are read."""
    ANSWERING = "answering"
    """Its requests are with the stages (`open_units`)."""


class SpeechPhase(StrEnum):
    """What becomes of a response's text as speech.

    PENDING --first token, and more to say--> OPEN --end of the text, or a tool call--> CLOSED
       |                                       └--the same, and tokens are on their way--> CLOSING --> CLOSED
       ├--a tool call--> SILENT
       └--no talker is there--> LOST
    """

    PENDING = "pending"
    """Nothing has been given to the talker."""
    OPEN = "open"
    """The talker has the prompt, and is given each token."""
    CLOSING = "closing"
    """The text is over for the talker once all tokens on their way are there."""
    CLOSED = "closed"
    """The talker has all of the text."""
    SILENT = "silent"
    """It is not spoken: it is a written reply, or begins with a tool call."""
    LOST = "lost"
    """There is something to say and no talker to say it."""


@dataclass(slots=True)
class ResponseState:
    """One response on its way through the stages. Written by the orchestrator's parts, each its own fields.

    Preparation writes `phase`, `items`, `media`, `prompts`, `forced`, `path`, `pinned`, `is_shortened` and
    `entry`; the reply route `voice`, `reply`, `is_blank`, `is_cut`, `num_frames`, `payload_source` and
    `on_the_way`; everyone that starts or ends its work in a unit `open_units`.
    """

    request: int
    spec: ResponseRequested
    items: tuple[Item, ...]
    slot: int
    """Where the frontier knows it."""
    after: str
    """The item that was last when the reply was asked for ("root" if none): the reply comes after it."""
    media: tuple[Media, ...] = ()
    voice: SpeechPhase = SpeechPhase.PENDING
    phase: Phase = Phase.RENDERING
    path: Path | None = None
    """The units that it runs on, once its prompt is rendered."""
    prompts: dict[str, StagePrompt] = field(default_factory=dict[str, StagePrompt])
    pinned: tuple[Media, ...] = ()
    """Media whose features are kept for it until its text is written: those that the KV did not cover."""
    is_shortened: bool = False
    """Its prompt did not fit, and the oldest messages were left behind."""
    open_units: set[str] = field(default_factory=set[str])
    """Units that still owe output; none left: it is completed."""
    reply: list[int] = field(default_factory=list[int])
    is_blank: bool = True
    """Nothing but white space is written yet."""
    is_cut: bool = False
    """The text reached its token limit."""
    entry: ArRequest | None = None
    """The request of the stage that writes the text."""
    num_frames: int = 0
    forced: tuple[int, ...] = ()
    """The reply's first tokens, where they are given and not drawn."""
    payload_source: str = ""
    """The unit that hands over what the talker needs."""
    on_the_way: deque[int] = field(default_factory=deque[int])
    """Tokens whose states are on their way to another process."""
    is_ahead: bool = False
    """It reads what there is of a turn before its reply is asked for: nothing of it goes out."""
    transcribes: Media | None = None
    """It writes down what is said there, for prompts: nothing of it goes out."""
    draft: tuple[int, ...] = ()
    """Tokens that it is expected to write."""
    failure: tuple[str, str, float | None] = ("", "", None)
    """Of one of which nothing goes out: code, message, and after how long to try again."""

    @property
    def route(self) -> Path:
        """The units that it runs on; of one whose prompt is rendered."""
        assert self.path is not None
        return self.path

    @property
    def writing(self) -> ArRequest:
        """The request of the stage that writes the text; of one that was queued there."""
        assert self.entry is not None
        return self.entry

    @property
    def is_internal(self) -> bool:
        """No client asked for it, nor hears how it ends."""
        return self.is_ahead or self.transcribes is not None

    @property
    def tier(self) -> Tier:
        return Tier.PREPARATORY if self.is_ahead else TIERS[self.spec.tier]

    @property
    def is_spoken(self) -> bool:
        """The talker has it, or had it."""
        return self.voice in (SpeechPhase.OPEN, SpeechPhase.CLOSING, SpeechPhase.CLOSED)

    @property
    def tools(self) -> tuple[str, ...]:
        """What the model is told it may call."""
        return () if self.spec.tool_choice == "none" else self.spec.tools

    @property
    def session(self) -> str:
        return self.spec.session

    @property
    def owing(self) -> set[str]:
        """Units that have work for it, or will have once its media are there."""
        if self.phase is not Phase.ENCODING or self.path is None:
            return self.open_units
        return self.open_units | {self.path.entry}

    def needs(self, unit: str) -> bool:
        """Does the unit owe it something, or keep media for it?"""
        is_read = self.path is not None and self.path.encode == unit and bool(self.pinned)
        return is_read or unit in self.owing

    def entry_request(self, entry: ArScheduler) -> ArRequest:
        """The request of the stage that writes the reply's text."""
        sampling = self.sampling(entry)
        if self.spec.max_tokens is not None:
            asked = self.spec.max_tokens - len(self.forced)
            sampling = msgspec.structs.replace(sampling, max_tokens=max(1, min(sampling.max_tokens, asked)))
        return self.ar_request(entry, sampling, media=frozenset())

    def ar_request(self, stage: ArScheduler, sampling: Sampling, **more: Any) -> ArRequest:
        """Its request of one decoder stage, in the class that was asked for."""
        prompt = self.prompts[stage.stage]
        if sampling.prompt_logprobs:
            prompt = msgspec.structs.replace(prompt, keys=private_keys(self.request, len(prompt.keys)))
        elif self.spec.cache_salt:
            prompt = msgspec.structs.replace(prompt, keys=salted_keys(self.spec.cache_salt, prompt.keys))
        return ArRequest(
            self.request,
            self.session,
            prompt,
            sampling,
            tier=self.tier,
            slot=self.slot,
            is_aside=not self.spec.remember,
            draft=self.draft,
            **more,
        )

    def sampling(self, stage: ArScheduler) -> Sampling:
        """What the request asked for, or the stage's defaults with a seed of the response's own."""
        asked = self.spec.sampling.get(stage.stage)
        if asked is not None:
            return asked
        seed = content_key(self.spec.response.encode())
        return msgspec.structs.replace(stage.config.sampling, seed=seed)

    def usage(self, entry_stage: str) -> Usage:
        """Counts so far. Media tokens are told apart by their spans; a video's frames count as images."""
        prompt = self.prompts.get(entry_stage)
        if prompt is None:
            return Usage(output_text_tokens=len(self.reply))
        audio = sum(s.length if s.kind == "audio" else s.audio_length for s in prompt.spans)
        image = sum(s.length for s in prompt.spans) - audio
        cached = (self.entry.cached or 0) if self.entry else 0
        cached_audio = sum(_cached_audio(span, cached) for span in prompt.spans)
        cached_media = sum(_cached(span, cached) for span in prompt.spans)
        return Usage(
            input_text_tokens=len(prompt.token_ids) - len(self.forced) - audio - image,
            input_audio_tokens=audio,
            input_image_tokens=image,
            cached_tokens=cached,
            cached_audio_tokens=cached_audio,
            cached_image_tokens=cached_media - cached_audio,
            output_text_tokens=len(self.reply),
            output_audio_tokens=self.num_frames,
        )


def _cached(span: Span, cached: int) -> int:
    """Positions of a span among the first `cached` of its prompt."""
    return min(max(cached - span.start, 0), span.length)


def _cached_audio(span: Span, cached: int) -> int:
    found = _cached(span, cached)
    if span.kind == "audio":
        return found
    return span.audio_length if found == span.length else 0
