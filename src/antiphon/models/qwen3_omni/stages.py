"""The family's stages as the engine's step runners see them: prompts in core's shapes, tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.conversation import AudioPart, ImagePart, Media
from antiphon.core.facts import StagePrompt
from antiphon.models.qwen3_omni.encoders import Encoders
from antiphon.models.qwen3_omni.positions import Span, mrope_positions
from antiphon.models.qwen3_omni.predictor import Pick
from antiphon.models.qwen3_omni.preprocess import AudioPreprocessor, ImagePreprocessor
from antiphon.models.qwen3_omni.talker import Talker
from antiphon.models.qwen3_omni.talker_prompt import TalkerPrompt
from antiphon.models.qwen3_omni.thinker import Thinker
from antiphon.nn.attention import LayerKv

Positions = tuple[NDArray[np.float32], float]
"""Positions fp32 [3, n] of a prompt, and that of the token after it."""

Encoded = tuple[Tensor, tuple[Tensor, ...]]
"""Embeddings [tokens, H] of one medium, and its deepstack rows, each [tokens, H]."""


class MediaStage:
    """Both encoders with their preprocessing."""

    def __init__(self, encoders: Encoders, checkpoint: Path) -> None:
        self._encoders = encoders
        self._audio = AudioPreprocessor(checkpoint)
        self._image = ImagePreprocessor(checkpoint)

    def encode(self, media: Sequence[Media]) -> list[Encoded]:
        """Each medium as if alone, in order."""
        out: dict[int, Encoded] = {}
        audio = [(i, part) for i, part in enumerate(media) if isinstance(part, AudioPart)]
        images = [(i, part) for i, part in enumerate(media) if isinstance(part, ImagePart)]
        if audio:
            mels = [self._audio.mel(np.frombuffer(part.samples, np.float32)) for _, part in audio]
            for (i, _), rows in zip(audio, self._encoders.audio.encode(mels), strict=True):
                out[i] = rows, ()
        if images:
            prepared = [self._image.patches_of(part.rgb, part.width, part.height) for _, part in images]
            patches, grids = zip(*prepared, strict=True)
            for (i, _), (rows, deep) in zip(
                images, self._encoders.vision.encode(patches, grids), strict=True
            ):
                out[i] = rows, tuple(deep)
        return [out[i] for i in range(len(media))]


class TextStage:
    """The thinker. Implements `engine.family.TextModel`."""

    def __init__(self, thinker: Thinker) -> None:
        self._thinker = thinker
        self.device = thinker.head.device
        self.dtype = thinker.head.dtype
        self.vocab_size = thinker.head.shape[0]
        self.payload_size = 0 if thinker.capture_layer is None else thinker.decoder.config.hidden_size
        self.embed, self.forward, self.logits = thinker.embed, thinker.forward, thinker.logits
        self.new_pages = thinker.decoder.new_pages

    def positions(self, prompt: StagePrompt) -> Positions:
        return prompt_positions(prompt, self._thinker.config.merge_size)


class SpeechStage:
    """The talker with its code predictor. Implements `engine.family.SpeechModel`."""

    def __init__(self, talker: Talker, pad_id: int, merge_size: int) -> None:
        self._talker = talker
        self._merge_size = merge_size
        self.pad_id = pad_id
        self.device = talker.head.device
        self.vocab_size = talker.config.talker_vocab
        self.num_codebooks = talker.config.num_codebooks
        self.hidden_size = talker.decoder.config.hidden_size
        self.suppressed = talker.suppressed
        self.step_inputs, self.logits = talker.step_inputs, talker.logits
        self.new_pages = talker.decoder.new_pages

    def positions(self, prompt: StagePrompt) -> Positions:
        return prompt_positions(prompt, self._merge_size)

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

    def forward(self, x: Tensor, positions: Tensor, kv: Sequence[LayerKv]) -> Tensor:
        return self._talker.forward(x, positions, kv)

    def frame(self, hidden: Tensor, c0: Tensor, pick: Pick) -> Tensor:
        return self._talker.predictor.frame(hidden, c0, pick)


def prompt_positions(prompt: StagePrompt, merge_size: int) -> Positions:
    """M-RoPE positions of a prompt with its images."""
    spans = [
        Span(span.start, span.grid, merge_size=merge_size) for span in prompt.spans if span.grid is not None
    ]
    return mrope_positions(len(prompt.token_ids), spans)
