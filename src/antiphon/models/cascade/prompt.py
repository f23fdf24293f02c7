"""A cascade's prompts: what was said stands in them as its transcript."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

import msgspec
import numpy as np

from antiphon.core.conversation import AudioPart, Item, Part, TextPart, TranscriptOptions
from antiphon.core.errors import ProtocolError
from antiphon.core.facts import NO_INTS, PromptFailed, PromptReady, StagePrompt
from antiphon.core.plans import RenderPrompt
from antiphon.models.cascade.whisper import WhisperConfig
from antiphon.models.prompt import NoMedia, Prompter
from antiphon.models.vocabulary import Vocabulary, load_template, load_tokenizer

TRANSCRIBER = "transcriber"
PREVIOUS = "<|startofprev|>"


class CascadePrompter:
    """Implements `core.ports.Prompter` over that of the text model."""

    def __init__(self, thinker: Prompter, transcriber: Vocabulary, config: WhisperConfig) -> None:
        """config: of the transcriber."""
        self._thinker = thinker
        self._transcriber = transcriber
        self._config = config
        named = transcriber.special(PREVIOUS)
        self._previous = named if config.previous is None else config.previous

    @property
    def takes_tools(self) -> bool:
        return self._thinker.takes_tools

    @property
    def json_call_ids(self) -> tuple[int, ...]:
        return self._thinker.json_call_ids

    @property
    def blank_ids(self) -> tuple[int, ...]:
        return self._thinker.blank_ids

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed:
        """Recordings stand in the text model's prompt as what was said in them."""
        if order.options is not None:
            return self._before(order.request, order.options)
        items = tuple(
            self._written(item, order.transcripts)
            for item in order.items
            if not _is_unheard(item, order.transcripts)
        )
        return self._thinker.render(msgspec.structs.replace(order, items=items, transcripts={}))

    def _before(self, request: int, options: TranscriptOptions) -> PromptReady | PromptFailed:
        """What a transcript begins with, as Whisper's own code has it."""
        text = (options.prompt or "").strip()
        if text and self._previous is None:
            return PromptFailed(request, "prompt: this model's transcripts follow no text; leave it out")
        if options.language is not None and options.language not in self._config.languages:
            known = ", ".join(self._config.languages)
            return PromptFailed(request, f"language: this model hears {known}; got {options.language!r}")
        before: tuple[int, ...] = ()
        if text and self._previous is not None:
            try:
                spelled = self._transcriber.encode(f" {text}")
            except ProtocolError as error:
                return PromptFailed(request, str(error))
            before = self._previous, *spelled[-(self._config.targets // 2 - 1) :]
        ids = np.array((*before, *self._config.prompt_of(options.language)), np.int64)
        return PromptReady(request, {TRANSCRIBER: StagePrompt(ids, ids, (), 0, NO_INTS)})

    def _written(self, item: Item, transcripts: Mapping[int, tuple[int, ...]]) -> Item:
        """Recordings that follow each other are one text, as the pieces of a long one are."""
        parts: list[Part] = []
        tokens: tuple[int, ...] = ()
        for part, following in zip_longest(item.parts, item.parts[1:]):
            if not isinstance(part, AudioPart):
                parts.append(part)
                continue
            tokens += transcripts[part.transcript_key]
            if not isinstance(following, AudioPart):
                parts.append(TextPart(self._transcriber.decode(tokens).strip()))
                tokens = ()
        return msgspec.structs.replace(item, parts=tuple(parts))


def _is_unheard(item: Item, transcripts: Mapping[int, tuple[int, ...]]) -> bool:
    """Is it nothing but recordings in which nobody speaks?"""
    return bool(item.parts) and all(
        isinstance(part, AudioPart) and not transcripts[part.transcript_key] for part in item.parts
    )


def load_prompter(
    parts: Mapping[str, Path], config: WhisperConfig, rows: int, max_prompt_tokens: int
) -> CascadePrompter:
    """From the parts' directories by name, the transcriber's config and the rows of the thinker's
    embedding; raises CheckpointError."""
    transcriber, thinker = parts["transcriber"], parts["thinker"]
    tokenizer = load_tokenizer(thinker)
    vocabulary = Vocabulary(tokenizer.backend_tokenizer, rows)
    template = load_template(thinker, tokenizer, enable_thinking=False)  # all of a reply is spoken
    prompter = Prompter(vocabulary, template, NoMedia(), max_prompt_tokens, has_voice=True)
    return CascadePrompter(prompter, Vocabulary(load_tokenizer(transcriber).backend_tokenizer), config)
