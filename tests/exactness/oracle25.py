"""transformers' Qwen2.5-Omni, batch 1, greedy, fp64; its inputs come from our prompter and preprocessors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.core.conversation import Item
from antiphon.models.prompt import Prompter
from antiphon.models.qwen2_5_omni.audio import AudioFeatures
from antiphon.models.qwen2_5_omni.config import FRAME_PIXELS
from antiphon.models.qwen2_5_omni.flow import start_noise
from antiphon.models.qwen_media.preprocess import ImagePreprocessor, VideoPreprocessor
from antiphon.models.qwen_media.preprocess_shapes import video_shape
from exactness.oracle import GREEDY_TALKER, Expected, Inputs

VOICE = "Ethan"


def with_mask(_: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """transformers 5.23 drops a mask that hides nothing before its talker is asked, and without one the
    talker shows neither the start of speech nor where pictures stand.
    """
    given = kwargs["input_ids"] if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
    length = kwargs["past_key_values"].get_seq_length() + given.shape[1]
    return args, kwargs | {"attention_mask": torch.ones(1, length, dtype=torch.int64)}


def _prefixed(name: str) -> str:
    """Without the prefix transformers 5.23 hands the pixels to its talker as well, which refuses them."""
    return f"thinker_{name}" if name.startswith("pixel_values") else name


class Oracle25:
    """One loaded reference model; `answer` runs one request alone."""

    def __init__(self, checkpoint: Path, prompter: Prompter) -> None:
        from transformers import Qwen2_5OmniForConditionalGeneration

        load = Qwen2_5OmniForConditionalGeneration.from_pretrained
        self._model = load(checkpoint, dtype=torch.float64).eval()
        self._sound = load(checkpoint, dtype=torch.float32).eval().token2wav
        video = VideoPreprocessor(checkpoint, video_shape(checkpoint, FRAME_PIXELS))
        self._inputs = Inputs(prompter, AudioFeatures(checkpoint), ImagePreprocessor(checkpoint), video)
        self._codes: torch.Tensor | None = None
        self._model.token2wav.forward = self._hear
        self._model.talker.register_forward_pre_hook(with_mask, with_kwargs=True)

    def answer(self, items: tuple[Item, ...], *, max_text: int, max_codes: int, eos: int) -> Expected:
        """Text and codes; no waveform."""
        inputs = {_prefixed(name): value for name, value in self._inputs.of(items).items()}
        talker = self._model.config.talker_config
        ends = [talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id]
        known = self._model.config.token2wav_config.dit_config.num_embeds + 1
        sequence, _ = self._model.generate(
            **inputs,
            speaker=VOICE,
            thinker_max_new_tokens=max_text,
            thinker_eos_token_id=eos,
            thinker_do_sample=False,
            talker_max_new_tokens=max_codes,
            talker_eos_token_id=ends,
            talker_bad_words_ids=[[i] for i in range(known, talker.vocab_size) if i not in ends],
            **GREEDY_TALKER,
        )
        assert self._codes is not None
        text = sequence[0, inputs["input_ids"].shape[1] :]
        return Expected(text.numpy(), self._codes.numpy().reshape(-1, 1), np.zeros(0))

    def mel(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [n] -> mel fp32 [frames, bins] of one sample over all of them, from our noise."""
        voice, dit = self._model.speaker_map[VOICE], self._sound.code2wav_dit_model
        noise = start_noise(0, len(codes) * dit.repeats, dit.mel_dim)[None]
        with pytest.MonkeyPatch.context() as patched, torch.inference_mode():
            patched.setattr(torch, "randn", lambda *_, **__: noise)
            mel = dit.sample(voice["cond"].float(), voice["ref_mel"].float(), torch.from_numpy(codes)[None])
        return mel[0].T.numpy()

    def wave(self, mel: np.ndarray) -> np.ndarray:
        """mel fp32 [frames, bins] -> pcm fp32 [samples]."""
        with torch.inference_mode():
            return self._sound.code2wav_bigvgan_model(torch.from_numpy(mel.T.copy())[None]).numpy()

    def _hear(self, code: torch.Tensor, **_: Any) -> torch.Tensor:
        self._codes = code[0]
        return torch.zeros(1)
