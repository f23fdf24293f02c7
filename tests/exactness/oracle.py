"""The law: transformers' generate(), batch 1, greedy, fp64, eager experts, on the same checkpoint.

Its inputs are rendered by our prompter and preprocessors, whose own tests hold them against transformers'.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.core.conversation import AudioPart, ImagePart, Item, VideoPart
from antiphon.core.facts import PromptReady
from antiphon.core.plans import RenderPrompt
from antiphon.models.prompt import Prompter
from antiphon.models.qwen_media.preprocess import AudioPreprocessor, ImagePreprocessor, VideoPreprocessor

GREEDY_TALKER = {
    "talker_do_sample": False,
    "talker_top_k": None,
    "talker_top_p": None,
    "talker_temperature": None,
}


@dataclass(frozen=True)
class Expected:
    """text int64 [n], codes int64 [frames, codebooks], wav float64 [samples]."""

    text: np.ndarray
    codes: np.ndarray
    wav: np.ndarray


class Inputs:
    """What transformers is given: rendered by our prompter and preprocessors."""

    def __init__(
        self, prompter: Prompter, audio: Any, image: ImagePreprocessor, video: VideoPreprocessor
    ) -> None:
        """audio: has `mel(samples)`."""
        self._prompter, self._audio, self._image, self._video = prompter, audio, image, video

    def of(self, items: tuple[Item, ...]) -> dict[str, Any]:
        ready = self._prompter.render(RenderPrompt(0, items, speech=False))
        assert isinstance(ready, PromptReady), ready
        ids = torch.from_numpy(ready.prompts["thinker"].token_ids)[None]
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        parts = [part for item in items for part in item.parts]
        sounds = [p.samples if isinstance(p, AudioPart) else getattr(p, "audio", None) for p in parts]
        mels = [self._audio.mel(np.frombuffer(s, np.float32)) for s in sounds if s is not None]
        images = [self._image.patches_of(p.rgb, p.width, p.height) for p in parts if isinstance(p, ImagePart)]
        if mels:
            length = max(mel.shape[1] for mel in mels)
            pad = torch.nn.functional.pad
            features = torch.stack([pad(mel, (0, length - mel.shape[1])) for mel in mels])
            inputs["input_features"] = features.double()
            mask = [torch.arange(length) < mel.shape[1] for mel in mels]
            inputs["feature_attention_mask"] = torch.stack(mask).long()
        if images:
            inputs["pixel_values"] = torch.cat([patches for patches, _ in images]).double()
            inputs["image_grid_thw"] = torch.tensor([grid for _, grid in images])
        return inputs | self._of_videos([p for p in parts if isinstance(p, VideoPart)])

    def _of_videos(self, videos: list[VideoPart]) -> dict[str, Any]:
        """As transformers' processor names them; sound is in all of the videos, or in none."""
        if not videos:
            return {}
        shown = [self._video.patches_of(p.frames, p.width, p.height, p.num_frames) for p in videos]
        return {
            "pixel_values_videos": torch.cat([patches for patches, _ in shown]).double(),
            "video_grid_thw": torch.tensor([grid for _, grid in shown]),
            "video_second_per_grid": torch.tensor([2 / p.fps for p in videos]),
            "use_audio_in_video": any(p.audio is not None for p in videos),
        }


class Oracle:
    """One loaded reference model; `answer` runs one request alone."""

    def __init__(self, checkpoint: Path, prompter: Prompter) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration

        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float64, experts_implementation="eager"
        ).eval()
        # transformers 5.23 reads this from the talker's config when audio and images come together.
        model.talker.config.audio_config = model.config.thinker_config.audio_config
        self._model = model
        media = AudioPreprocessor(checkpoint), ImagePreprocessor(checkpoint), VideoPreprocessor(checkpoint)
        self._inputs = Inputs(prompter, *media)
        self._codes: torch.Tensor | None = None
        self._watch_codes()

    def answer(
        self, items: tuple[Item, ...], *, max_text: int, max_codes: int, eos: int, penalty: float = 1.05
    ) -> Expected:
        inputs = self._inputs.of(items)
        sequence, wav = self._model.generate(
            **inputs,
            thinker_max_new_tokens=max_text,
            thinker_eos_token_id=eos,
            talker_max_new_tokens=max_codes,
            talker_repetition_penalty=penalty,
            thinker_do_sample=False,
            **GREEDY_TALKER,
        )
        assert self._codes is not None
        text = sequence[0, inputs["input_ids"].shape[1] :]
        return Expected(text.numpy(), self._codes.numpy(), wav.reshape(-1).numpy())

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """codes int64 [frames, codebooks] -> waveform of one full decode, whatever its length."""
        with torch.inference_mode():
            return self._model.code2wav(torch.from_numpy(codes.T)[None].clone()).reshape(-1).numpy()

    def _watch_codes(self) -> None:
        """Keep the talker's frames, which generate() only turns into sound."""
        generate = self._model.talker.generate

        def watched(*args: Any, **kwargs: Any) -> Any:
            out = generate(*args, **kwargs)
            frames = [state[-1] for state in out.hidden_states if state[-1] is not None]
            self._codes = torch.stack(frames, 1)[0]
            return out

        self._model.talker.generate = watched
