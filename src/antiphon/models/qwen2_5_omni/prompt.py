"""Prompts of a Qwen2.5-Omni checkpoint: the thinker's with its media, and what the talker is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.core.facts import StagePrompt
from antiphon.models.prompt import Prompter, keys_of_request
from antiphon.models.qwen2_5_omni.audio import AudioFeatures
from antiphon.models.qwen2_5_omni.config import FRAME_PIXELS, TALKER_HEADER, Qwen25OmniConfig
from antiphon.models.qwen_media.media_spans import MediaSpans
from antiphon.models.qwen_media.preprocess_shapes import video_shape
from antiphon.models.vocabulary import Vocabulary, load_template, load_tokenizer


class Places(MediaSpans):
    """As Qwen3-Omni's, with other sizes."""

    def __init__(self, path: Path, config: Qwen25OmniConfig) -> None:
        video = video_shape(path, FRAME_PIXELS)
        super().__init__(path, config.tokens, config.positions_per_second, video, config.chunk_ticks)
        self._sounds = AudioFeatures(path)

    def tokens_of(self, num_samples: int) -> int:
        return self._sounds.tokens(num_samples)


def load_prompter(path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
    """From a checkpoint's directory and its parsed config.json; raises CheckpointError."""
    known = Qwen25OmniConfig.from_dict(config)
    tokenizer = load_tokenizer(path)
    return Prompter(
        Vocabulary(tokenizer.backend_tokenizer, known.thinker_vocab),
        load_template(path, tokenizer),
        Places(path, known),
        max_prompt_tokens,
        None if known.speech is None else talker_prompt,
        reads_aloud=False,
    )


def talker_prompt(thinker: StagePrompt, request: int) -> StagePrompt:
    """The whole prompt, and two positions that the voice and the reply's first token fill in.

    What it is shown of a token is the thinker's state, which follows from the tokens up to it: equal keys
    from the front, equal states.
    """
    length = len(thinker.token_ids)
    header = np.zeros(TALKER_HEADER, np.int64)
    return StagePrompt(
        np.concatenate([thinker.token_ids, header]),
        np.concatenate([thinker.keys, keys_of_request(request, TALKER_HEADER)]),
        thinker.spans,
        length,
        np.arange(length + 1),
    )
