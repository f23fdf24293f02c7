"""A conversation, and one response of it on its way through the stages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon.core.conversation import Item, Media
from antiphon.core.facts import ResponseRequested, Span, StagePrompt
from antiphon.core.ids import content_key
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.core.sampling import Sampling
from antiphon.flow.record import Record
from antiphon.flow.stages import Path
from antiphon.stage.ar import ArScheduler
from antiphon.stage.requests import ArRequest


@dataclass(slots=True)
class Turn:
    """State of a response. `open_units` are the units that still owe output; empty means completed."""

    request: int
    epoch: int
    spec: ResponseRequested
    items: tuple[Item, ...]
    after: str
    """The item that was last when the reply was asked for ("root" if none): the reply comes after it."""
    media: tuple[Media, ...] = ()
    path: Path | None = None
    """Where it runs, once its prompt is rendered."""
    prompts: dict[str, StagePrompt] = field(default_factory=dict[str, StagePrompt])
    pinned: tuple[Media, ...] = ()
    """Media whose features are kept for it until its text is written: those that the KV did not cover."""
    is_shortened: bool = False
    """Its prompt did not fit, and the oldest messages were left behind."""
    waits_for_media: bool = False
    open_units: set[str] = field(default_factory=set[str])
    reply: list[int] = field(default_factory=list[int])
    cut: bool = False
    """The text reached its token limit."""
    entry: ArRequest | None = None
    """The request of the stage that writes the text."""
    num_frames: int = 0
    forced: tuple[int, ...] = ()
    """The reply's first tokens, where they are given and not drawn."""
    is_spoken: bool = False
    """The stage that speaks has it, or had it."""
    payload_source: str = ""
    """The unit that hands over what the stage needs that speaks it."""
    on_the_way: deque[int] = field(default_factory=deque[int])
    """Tokens whose states are on their way to another process."""
    ends_behind: bool = False
    """Once they are there, the text is over."""
    is_mute: bool = False
    """There was something to say, and no unit to say it."""
    is_calling: bool = False
    """A tool call has begun: nothing more is spoken."""

    @property
    def tools(self) -> tuple[str, ...]:
        """What the model is told it may call."""
        return () if self.spec.tool_choice == "none" else self.spec.tools

    @property
    def session(self) -> str:
        return self.spec.session

    def needs(self, unit: str) -> bool:
        """Does the unit owe it something, or keep media for it?"""
        if unit in self.open_units or self.path is None:
            return unit in self.open_units
        if self.path.encode == unit:
            return bool(self.pinned)
        return self.waits_for_media and self.path.entry == unit

    def entry_request(self, entry: ArScheduler) -> ArRequest:
        """The request of the stage that writes the reply's text."""
        sampling = self.sampling(entry)
        if self.spec.max_tokens is not None:
            asked = self.spec.max_tokens - len(self.forced)
            sampling = msgspec.structs.replace(sampling, max_tokens=max(1, min(sampling.max_tokens, asked)))
        return self.ar_request(entry, sampling, media=frozenset())

    def ar_request(self, stage: ArScheduler, sampling: Sampling, **more: Any) -> ArRequest:
        """Its request of one decoder stage, in the class that was asked for."""
        return ArRequest(
            self.request,
            self.session,
            self.prompts[stage.stage],
            sampling,
            is_best_effort=self.spec.tier == "best_effort",
            is_aside=not self.spec.remember,
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
            return Usage()
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


class Session:
    """A conversation: its record, and the responses that are not over."""

    def __init__(self) -> None:
        self.record = Record()
        self.turns: dict[str, Turn] = {}
        self.epoch = 0


def _cached(span: Span, cached: int) -> int:
    """Positions of a span among the first `cached` of its prompt."""
    return min(max(cached - span.start, 0), span.length)


def _cached_audio(span: Span, cached: int) -> int:
    found = _cached(span, cached)
    if span.kind == "audio":
        return found
    return span.audio_length if found == span.length else 0


def gone(spec: ResponseRequested) -> ResponseEnded:
    """The end of a response whose session does not exist."""
    message = "The session does not exist (any more)"
    return ResponseEnded(spec.session, spec.response, 0, "failed", "session_gone", message, Usage())
