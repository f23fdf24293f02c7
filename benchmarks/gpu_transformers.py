"""transformers' side of gpu_decode.py: a model of the same sizes with random weights, made on the device.

generate() gives nothing before it has all, so the first packet comes with the last.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

SPREAD = 0.02
"""Of the random weights; the talker's experts and router are left unset by transformers."""


class Transformers:
    """One loaded model, asked as often as wanted."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype) -> None:
        config = Qwen3OmniMoeConfig(**json.loads((directory / "config.json").read_text()))
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                self._model = Qwen3OmniMoeForConditionalGeneration(config).eval()
        finally:
            torch.set_default_dtype(before)
        with torch.no_grad():
            for parameter in self._model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=SPREAD)
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._device = device

    @torch.inference_mode()
    def ask(self, count: int, reply_tokens: int) -> dict[str, Any]:
        """A batch of so many prompts of one length, each answered with so many tokens of text and four times
        as many frames of speech."""
        messages = [
            [{"role": "user", "content": f"Tell me a story, {number % 10}."}] for number in range(count)
        ]
        ids = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self._device)
        frames = 4 * reply_tokens
        started = time.perf_counter()
        _, waves = self._model.generate(
            **ids,
            thinker_max_new_tokens=reply_tokens,
            thinker_min_new_tokens=reply_tokens,
            thinker_do_sample=False,
            talker_max_new_tokens=frames,
            talker_min_new_tokens=frames,
            talker_do_sample=False,
            talker_top_k=None,
            talker_top_p=None,
            talker_temperature=None,
        )
        samples = sum(wave.cpu().shape[-1] for wave in waves)
        taken, seconds = time.perf_counter() - started, samples / 24000
        rtf = round(taken * count / seconds, 3)
        return {"sessions": count, "audio_s": round(seconds, 2), "ttfp_ms": round(1000 * taken), "rtf": rtf}
