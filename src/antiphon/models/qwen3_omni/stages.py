"""The family's decoders as the engine's step runners see them: prompts in core's shapes, tensors out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.facts import Span as PromptSpan
from antiphon.core.facts import StagePrompt
from antiphon.models.qwen3_omni.positions import Span, mrope_positions
from antiphon.models.qwen3_omni.predictor import Pick
from antiphon.models.qwen3_omni.talker import Talker
from antiphon.models.qwen3_omni.talker_prompt import TalkerPrompt
from antiphon.models.qwen3_omni.thinker import Thinker
from antiphon.nn.backends import Attention
from antiphon.nn.graphs import Capture

Positions = tuple[NDArray[np.float32], float]
"""Positions fp32 [3, n] of a prompt, and that of the token after it."""

NO_GRID = 0, 0, 0


@dataclass(frozen=True, slots=True)
class Scale:
    """How a prompt's media become positions: patches a side that make a token, positions of a second, and of
    a chunk (see `positions.Span`)."""

    merge_size: int
    positions_per_second: int
    chunk_ticks: int = 0

    def span(self, span: PromptSpan) -> Span:
        """The span as positions see it."""
        audio = span.length if span.kind == "audio" else span.audio_length
        grid = span.grid or NO_GRID
        return Span(span.start, grid, span.seconds_per_grid, self.merge_size, audio, self.chunk_ticks)


class TextStage:
    """The thinker. Implements `engine.family.TextModel`."""

    keeps_all = False

    def __init__(self, thinker: Thinker) -> None:
        self._thinker = thinker
        self.device = thinker.embedding.device
        self.dtype = thinker.embedding.dtype
        self.vocab_size = thinker.config.thinker_vocab
        self.payload_size = 0 if thinker.capture_layer is None else thinker.decoder.config.hidden_size
        self.capture_layer = thinker.capture_layer or 0
        self.embed, self.new_pages = thinker.embed, thinker.decoder.new_pages
        self.forward, self.logits = thinker.decoder.forward, thinker.decoder.logits

    def use_attention(self, attention: Attention) -> None:
        self._thinker.decoder.attention = attention

    def use_graphs(self, capture: Capture) -> None:
        self._thinker.decoder.use_graphs(capture)

    def positions(self, prompt: StagePrompt) -> Positions:
        config = self._thinker.config
        scale = Scale(config.merge_size, config.positions_per_second)
        return mrope_positions(
            len(prompt.token_ids), [scale.span(span) for span in prompt.spans], scale.positions_per_second
        )


class SpeechStage:
    """The talker with its code predictor. Implements `engine.family.SpeechModel`."""

    streamed_size = 0

    def __init__(self, talker: Talker, pad_id: int, scale: Scale) -> None:
        self._talker = talker
        self._scale = scale
        self.pad_id = pad_id
        self.device, self.dtype = talker.codes_table.device, talker.codes_table.dtype
        self.vocab_size = talker.config.talker_vocab
        self.num_codebooks = talker.config.num_codebooks
        self.hidden_size = talker.decoder.config.hidden_size
        self.suppressed = talker.suppressed
        self.prompt_codes = torch.zeros(0, dtype=torch.int64)
        self.forward, self.logits = talker.decoder.forward, talker.decoder.logits
        self.new_pages = talker.decoder.new_pages

    def use_attention(self, attention: Attention) -> None:
        self._talker.decoder.attention = attention

    def use_graphs(self, capture: Capture) -> None:
        self._talker.decoder.use_graphs(capture)

    def positions(self, prompt: StagePrompt) -> Positions:
        """The reference doesn't tell its talker that videos have sound: it counts those videos as text."""
        spans = [self._scale.span(span) for span in prompt.spans if not (span.grid and span.audio_length)]
        return mrope_positions(len(prompt.token_ids), spans, self._scale.positions_per_second)

    def prompt_inputs(
        self, prompt: StagePrompt, hidden: Tensor | None, first_token: int, voice: str | None
    ) -> Tensor:
        """Inputs [n, Ht]. `hidden` [m, H] are the thinker's states at `prompt.gather`.

        An unknown voice is the checkpoint's first.
        """
        speakers = self._talker.config.speakers
        speaker = speakers.get((voice or "").lower(), next(iter(speakers.values())))
        media = [np.arange(span.start, span.start + span.length) for span in prompt.spans]
        shown = np.concatenate(media) if media else np.zeros(0, np.int64)
        talker_prompt = TalkerPrompt(prompt.token_ids, shown, prompt.gather, ())
        return self._talker.prompt_inputs(talker_prompt, hidden, first_token, speaker)

    def step_inputs(self, frames: Tensor, text_ids: Tensor, states: Tensor | None = None) -> Tensor:
        """The text says all by its ids: no states come with it."""
        return self._talker.step_inputs(frames, text_ids)

    def frame(self, hidden: Tensor, c0: Tensor, pick: Pick) -> Tensor:
        return self._talker.predictor.frame(hidden, c0, pick)
