"""The family's decoders as the engine's step runners see them: prompts in core's shapes, tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from antiphon.core.facts import StagePrompt
from antiphon.models.decoder_stage import DecoderStage
from antiphon.models.qwen2_5_omni.talker import Talker
from antiphon.models.qwen2_5_omni.voices import Voice
from antiphon.models.qwen_media.positions import Scale
from antiphon.nn.uploads import upload


class SpeechStage(DecoderStage):
    """The talker. Implements `engine.family.SpeechModel`."""

    num_codebooks = 1

    def __init__(self, talker: Talker, voices: Mapping[str, Voice], scale: Scale) -> None:
        super().__init__(talker.decoder)
        self._talker = talker
        self._voices = voices
        self.positions = scale.positions
        self.vocab_size = talker.config.talker_vocab
        self.hidden_size = talker.decoder.config.hidden_size
        self.streamed_size = talker.config.embedding_size
        self.pad_id = talker.config.text_pad
        self.suppressed, self.prompt_codes = talker.suppressed, talker.prompt_codes

    def prompt_inputs(
        self, prompt: StagePrompt, hidden: Tensor | None, first_token: int, voice: str | None
    ) -> Tensor:
        """Inputs [n, Ht]. `hidden` [n - 1, E] are the thinker's states at `prompt.gather`.

        An unknown voice is the checkpoint's first.
        """
        assert hidden is not None, "every token is shown with its state"
        ids = prompt.token_ids.copy()
        ids[-2:] = pick_voice(self._voices, voice).start, first_token
        media = np.zeros(len(ids), np.bool_)
        for span in prompt.spans:
            media[span.start : span.start + span.length] = True
        shown, hides = (upload(column, self.device) for column in (ids, media))
        return self._talker.prompt_inputs(shown, hides, hidden)

    def step_inputs(self, frames: Tensor, text_ids: Tensor, states: Tensor | None = None) -> Tensor:
        assert states is not None, "every token is shown with its state"
        return self._talker.step_inputs(frames, text_ids, states)

    def frame(self, hidden: Tensor, c0: Tensor, pick: Callable[[Tensor, int], Tensor]) -> Tensor:
        """One code is the whole frame."""
        return c0[:, None]


def pick_voice(voices: Mapping[str, Voice], name: str | None) -> Voice:
    """An unknown name is the checkpoint's first voice."""
    return voices.get((name or "").lower(), next(iter(voices.values())))
