"""token2wav: codes to mel frames by flow matching (DiT), mel frames to sound by BigVGAN; window by window.

The networks are transformers' own modules. In one evaluation of the DiT a block of 24 mel frames (12 codes,
0.24 s) sees itself, and in some layers the block before or after it; the solver chains 36 evaluations.
BigVGAN sees some 40 mel frames to each side. So what a block sounds like depends, ever more weakly, on all
blocks: a window of BLOCKS_BACK blocks before it and BLOCKS_AHEAD behind it says it almost exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.initialization import no_init_weights
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniBigVGANConfig,
    Qwen2_5OmniDiTConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)

from antiphon.models.qwen2_5_omni.config import SpeechConfig
from antiphon.models.qwen2_5_omni.flow import Flow, Speaker, start_noise
from antiphon.models.qwen2_5_omni.voices import Voice
from antiphon.models.qwen2_5_omni.windows import BLOCKS_BACK, Window, next_window
from antiphon.models.qwen3_omni.encoders import fill_tower


@dataclass(slots=True)
class Stream:
    """A reply's: codes that later windows may see, the place of the first of them, and how many sounded."""

    speaker: Speaker
    codes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    first: int = 0
    done: int = 0

    def shorten(self, done: int, back: int) -> None:
        """So many codes have sounded; `back` of them are still seen."""
        keep = max(0, done - back)
        self.codes, self.first, self.done = self.codes[keep - self.first :], keep, done


class Token2Wav:
    """Implements `engine.family.WindowedVocoder`."""

    def __init__(self, config: SpeechConfig, params: Mapping[str, Tensor]) -> None:
        self.flow = Flow(fill_tower(dit(config.dit), params, "dit."))
        self.bigvgan: Any = fill_tower(bigvgan(config.bigvgan), params, "bigvgan.")
        self.codes_per_block = self.flow.block_size // self.flow.repeats
        self.samples_per_code = self.flow.repeats * prod(self.bigvgan.config.upsample_rates)
        self._voices: dict[str, Speaker] = {}

    def add_voices(self, voices: Mapping[str, Voice]) -> None:
        """What a stream may be opened with; the first is that of unknown names."""
        self._voices = {name: self.flow.speaker(voice) for name, voice in voices.items()}

    def open(self, voice: str | None) -> Stream:
        """A reply begins."""
        known = self._voices
        return Stream(known.get((voice or "").lower(), next(iter(known.values()))))

    def decode(
        self, streams: Sequence[Stream], codes: Sequence[NDArray[np.int64]], ends: Sequence[bool]
    ) -> list[Tensor]:
        """The next codes [n, 1] of each stream -> fp32 [samples] of those that are sure by now; of all that
        is left where the stream ends.
        """
        windows = [self._extended(*one) for one in zip(streams, codes, ends, strict=True)]
        sounds = [torch.zeros(0)] * len(streams)
        groups: dict[int, list[int]] = defaultdict(list)
        for i, window in enumerate(windows):
            if window is not None:
                groups[window.end - window.start].append(i)
        for members in groups.values():
            due = [(streams[i], window) for i in members if (window := windows[i]) is not None]
            for i, sound in zip(members, self._sounds(due), strict=True):
                sounds[i] = sound
        for stream, window in zip(streams, windows, strict=True):
            if window is not None:
                stream.shorten(window.upto, BLOCKS_BACK * self.codes_per_block)
        return sounds

    def _extended(self, stream: Stream, codes: NDArray[np.int64], is_last: bool) -> Window | None:
        """Take over a stream's next codes [n, 1]; says what is sure now."""
        stream.codes = np.concatenate([stream.codes, codes[:, 0]])
        known = stream.first + len(stream.codes)
        return next_window(stream.done, known, self.codes_per_block, is_last=is_last)

    def _sounds(self, due: Sequence[tuple[Stream, Window]]) -> list[Tensor]:
        """fp32 [samples] of the middles of windows that are equally long."""
        repeats, per_code, device = self.flow.repeats, self.samples_per_code, self.flow.device
        seen = np.stack([s.codes[w.start - s.first : w.end - s.first] for s, w in due])
        noise = torch.stack(
            [start_noise(w.start * repeats, w.end * repeats, self.flow.mel_dim) for _, w in due]
        )
        speakers = [stream.speaker for stream, _ in due]
        mel = self.flow.sample(torch.from_numpy(seen).to(device), speakers, noise.to(device))
        pcm = self.bigvgan(mel).view(len(due), -1)
        cuts = [((w.done - w.start) * per_code, (w.upto - w.start) * per_code) for _, w in due]
        return [row[first:end] for row, (first, end) in zip(pcm, cuts, strict=True)]


def dit(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        known = Qwen2_5OmniDiTConfig(**config)
        return Qwen2_5OmniToken2WavDiTModel._from_config(known, attn_implementation="sdpa").eval()


def bigvgan(config: Mapping[str, Any]) -> nn.Module:
    with no_init_weights():
        return Qwen2_5OmniToken2WavBigVGANModel._from_config(Qwen2_5OmniBigVGANConfig(**config)).eval()
