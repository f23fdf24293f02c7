"""A cascade's prompts: what was said stands in them as its transcript."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from antiphon.core.conversation import AudioPart, Item, Part, TextPart
from antiphon.core.facts import PromptFailed, PromptReady
from antiphon.core.plans import RenderPrompt
from antiphon.models.prompt import NoMedia, Prompter
from antiphon.models.vocabulary import Vocabulary, load_template, load_tokenizer


class CascadePrompter:
    """Implements `core.ports.Prompter` over that of the text model."""

    def __init__(self, thinker: Prompter, transcriber: Vocabulary) -> None:
        self._thinker = thinker
        self._transcriber = transcriber

    def render(self, order: RenderPrompt) -> PromptReady | PromptFailed:
        """What was said is the reply to an order that asks for it; it needs no prompt."""
        if order.transcribe:
            text = " ".join(self._text(tokens) for tokens in order.transcripts.values())
            return PromptReady(order.request, {}, reply=np.array(self._thinker.encode(text), np.int64))
        items = tuple(self._written(item, order.transcripts) for item in order.items)
        return self._thinker.render(msgspec.structs.replace(order, items=items, transcripts={}))

    def _written(self, item: Item, transcripts: dict[int, tuple[int, ...]]) -> Item:
        return msgspec.structs.replace(
            item, parts=tuple(self._heard(part, transcripts) for part in item.parts)
        )

    def _heard(self, part: Part, transcripts: dict[int, tuple[int, ...]]) -> Part:
        if not isinstance(part, AudioPart):
            return part
        return TextPart(self._text(transcripts[part.key]))

    def _text(self, tokens: tuple[int, ...]) -> str:
        return self._transcriber.decode(tokens).strip()


def load_prompter(transcriber: Path, thinker: Path, max_prompt_tokens: int) -> CascadePrompter:
    """From the parts' directories; raises CheckpointError."""
    tokenizer = load_tokenizer(thinker)
    vocabulary = Vocabulary(tokenizer.backend_tokenizer)
    template = load_template(thinker, tokenizer)
    prompter = Prompter(vocabulary, template, NoMedia(), max_prompt_tokens, has_voice=True)
    return CascadePrompter(prompter, Vocabulary(load_tokenizer(transcriber).backend_tokenizer))
