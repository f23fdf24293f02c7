"""The family's decoders as the engine's step runners see them: prompts in core's shapes, tensors out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.core.facts import StagePrompt
from antiphon.models.decoder_stage import DecoderStage, Positions
from antiphon.models.qwen3_omni.predictor import Pick
from antiphon.models.qwen3_omni.talker import Talker
from antiphon.models.qwen3_omni.talker_prompt import TalkerPrompt
from antiphon.models.qwen_media.positions import Scale


class SpeechStage(DecoderStage):
    """The talker with its code predictor. Implements `engine.family.SpeechModel`."""

    streamed_size = 0

    def __init__(self, talker: Talker, pad_id: int, scale: Scale) -> None:
        super().__init__(talker.decoder)
        self._talker = talker
        self._scale = scale
        self.pad_id = pad_id
        self.vocab_size = talker.config.talker_vocab
        self.num_codebooks = talker.config.num_codebooks
        self.hidden_size = talker.decoder.config.hidden_size
        self.suppressed = talker.suppressed
        self.prompt_codes = torch.zeros(0, dtype=torch.int64)

    def positions(self, prompt: StagePrompt) -> Positions:
        """The reference doesn't tell its talker that videos have sound: it counts those videos as text."""
        return self._scale.positions(prompt, (s for s in prompt.spans if not (s.grid and s.audio_length)))

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
