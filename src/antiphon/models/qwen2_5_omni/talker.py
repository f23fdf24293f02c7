"""The talker: a dense decoder that speaks what the thinker writes, one code (20 ms) a step.

Of every token it is shown the thinker's final state and the token's embedding, summed; of media the state
alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen2_5_omni.config import SpeechConfig


class Talker:
    """Tables, projection, decoder and head."""

    def __init__(self, config: SpeechConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.decoder = Decoder(config.talker, params, head=params["head"])
        self.text_table, self.codes_table = params["text_table"], params["codes_table"]
        self._projection, self._projection_bias = params["projection"], params["projection_bias"]
        codec = config.codec
        device = self.codes_table.device
        self.suppressed = suppressed_ids(config).to(device)
        self.prompt_codes = torch.tensor([codec.mask, codec.pad, codec.bos], device=device)

    def prompt_inputs(self, ids: Tensor, media: Tensor, states: Tensor) -> Tensor:
        """The inputs [p, Ht] of a talker prompt: int64 [p] ids of the thinker's prompt, of the voice's start
        and of the reply's first token; bool [p] where media stand; the thinker's states [p - 1, E] of all of
        them but the voice's start.
        """
        x = F.embedding(ids, self.text_table).masked_fill(media[:, None], 0)
        x[:-2] = states[:-1] + x[:-2]
        x[-1] = states[-1] + x[-1]
        codec = self.config.codec
        x[-1] += self.codes_table[codec.bos]
        x[-2] += self.codes_table[codec.pad]
        return self._project(x)

    def step_inputs(self, frames: Tensor, text_ids: Tensor, states: Tensor) -> Tensor:
        """The next inputs [r, Ht]: the code just spoken, int64 [r, 1], and the text beside it: int64 [r] with
        the thinker's states [r, E] (zeros for the end of the text, and for the padding after it).
        """
        shown = states + F.embedding(text_ids, self.text_table)
        return self._project(F.embedding(frames[:, 0], self.codes_table) + shown)

    def _project(self, x: Tensor) -> Tensor:
        return F.linear(x, self._projection, self._projection_bias)


def suppressed_ids(config: SpeechConfig) -> Tensor:
    """bool [V]: the start of speech, as in the reference, and ids that are neither a code nor an end.

    The reference would draw those as well, and then fail to decode them.
    """
    codec = config.codec
    mask = torch.arange(config.talker_vocab) >= config.num_codes
    mask[codec.bos] = True
    mask[[codec.pad, codec.eos]] = False
    return mask
