"""The talker: a mixture-of-experts decoder that speaks what the thinker writes, one codec frame (80 ms) a
step.

What it sees of the text is token ids only. Each id is shown through one fixed function, the text projection
of the thinker's embedding, so that function is computed once for the whole vocabulary when the weights are
loaded, and a step is table look-ups. The end of the text and the silence after it are ids like any other
(tts_eos, tts_pad).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen3_omni.config import SUPPRESSED_IDS, SpeechConfig
from antiphon.models.qwen3_omni.predictor import CodePredictor
from antiphon.models.qwen3_omni.talker_prompt import TalkerPrompt
from antiphon.nn.uploads import upload

PROJECTED_AT_ONCE = 8192


class Talker:
    """Projections, decoder and head, with the code predictor that completes its frames as `predictor`."""

    def __init__(self, config: SpeechConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.decoder = Decoder(config.talker, params, head=params["head"])
        self.hidden_projection = Projection(params, "hidden_projection.")
        self.codes_table = params["codes_table"]
        self.text_table = project_table(params["thinker_embedding"], Projection(params, "text_projection."))
        device = self.codes_table.device
        sizes = [config.talker_vocab] + [config.predictor_vocab] * (config.num_codebooks - 2)
        self.code_offsets = torch.tensor([0, *sizes]).cumsum(0).to(device)
        self.suppressed = suppressed_ids(config).to(device)
        self.predictor = CodePredictor(config, params, self.codes_table)

    def prompt_inputs(
        self, prompt: TalkerPrompt, hidden: Tensor | None, first_reply_token: int | Tensor, speaker_id: int
    ) -> Tensor:
        """The inputs x [p, Ht] of a talker prompt. `hidden` [m, H]: the thinker's captured states at
        `prompt.sources` (None when m is 0). Positions: `mrope_positions(len(prompt), prompt.spans)`."""
        device = self.codes_table.device
        ids = upload(prompt.text_ids.copy(), device)
        ids[-1] = first_reply_token
        x = F.embedding(ids, self.text_table)
        if hidden is not None and len(prompt.media):
            x[upload(prompt.media, device)] = self.hidden_projection(hidden)
        codec = self.config.codec
        track = [codec.nothink, codec.think_bos, codec.think_eos, speaker_id, codec.pad, codec.bos]
        x[-len(track) :] += F.embedding(upload(track, device), self.codes_table)
        return x

    def step_inputs(self, frames: Tensor, text_ids: Tensor) -> Tensor:
        """The next inputs x [r, Ht]: the frame just spoken, int64 [r, codebooks], and the text beside it,
        int64 [r] (tts_eos once when the text has ended, tts_pad from then on).
        """
        spoken = F.embedding(frames + self.code_offsets, self.codes_table).sum(1)
        return spoken + F.embedding(text_ids, self.text_table)


class Projection:
    """Two linear layers with a SiLU between: the thinker's width -> the talker's."""

    def __init__(self, params: Mapping[str, Tensor], prefix: str) -> None:
        self.weights = [params[prefix + name] for name in ("fc1", "fc1_bias", "fc2", "fc2_bias")]

    def __call__(self, x: Tensor) -> Tensor:
        fc1, fc1_bias, fc2, fc2_bias = self.weights
        return F.linear(F.silu(F.linear(x, fc1, fc1_bias)), fc2, fc2_bias)


def project_table(embedding: Tensor, projection: Projection) -> Tensor:
    """The projection of every row of the thinker's embedding, [V, Ht]."""
    return torch.cat([projection(rows) for rows in embedding.split(PROJECTED_AT_ONCE)])


def suppressed_ids(config: SpeechConfig) -> Tensor:
    """bool [V]: ids of codebook 0 that must never be sampled (control ids except the end of speech)."""
    mask = torch.arange(config.talker_vocab) >= config.talker_vocab - SUPPRESSED_IDS
    mask[config.codec.eos] = False
    return mask
