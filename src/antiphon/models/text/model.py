"""A decoder of text: its config, the checkpoint tensors it is made of, and what lies between embedding and
head. In which ways the families differ is data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from antiphon.core.errors import CheckpointError
from antiphon.core.facts import StagePrompt
from antiphon.models.decoder import Decoder
from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.geometry import token_ids
from antiphon.models.layout import Layout, decoder_layout
from antiphon.nn.backends import Attention
from antiphon.nn.graphs import Capture

HAS: dict[str, dict[str, bool]] = {
    "llama": {"qk_norm": False},
    "qwen2": {"qk_norm": False, "qkv_bias": True},
}
"""Fields of a DecoderConfig by `model_type`, where they are not the usual ones."""


@dataclass(frozen=True, slots=True)
class TextConfig:
    """A checkpoint's sizes. `is_tied`: the head is the embedding; `stop_ids` end a reply."""

    decoder: DecoderConfig
    vocab: int
    is_tied: bool
    stop_ids: tuple[int, ...]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], **has: bool) -> Self:
        """From the parsed config.json; raises CheckpointError. `has`: what a family that is not in HAS has
        otherwise."""
        if "vocab_size" not in config:
            raise CheckpointError("config.json: the file has no 'vocab_size'")
        has = has or HAS.get(config.get("model_type", ""), {})
        return cls(
            decoder=DecoderConfig.from_hf(config, "the file", None, **has),
            vocab=config["vocab_size"],
            is_tied=config.get("tie_word_embeddings", False),
            stop_ids=token_ids(config.get("eos_token_id")),
        )

    @property
    def layout(self) -> Layout:
        """Parameters by the names of released checkpoints."""
        layout, table = Layout(), (self.vocab, self.decoder.hidden_size)
        layout.whole("embedding", "model.embed_tokens.weight", *table)
        decoder_layout(layout, "", "model.", self.decoder)
        if not self.is_tied:
            layout.whole("head", "lm_head.weight", *table)
        return layout


class TextDecoder:
    """Embedding, decoder and head. Implements `engine.family.TextModel`; keeps nothing for a stage that
    speaks.
    """

    payload_size = capture_layer = 0
    keeps_all = False

    def __init__(self, config: TextConfig, params: Mapping[str, Tensor]) -> None:
        self.embedding = params["embedding"]
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        self.vocab_size = config.vocab
        self._decoder = Decoder(config.decoder, params, head=params.get("head", self.embedding))
        self.forward, self.logits = self._decoder.forward, self._decoder.logits
        self.new_pages = self._decoder.new_pages

    @classmethod
    def load(
        cls,
        config: TextConfig,
        tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> TextDecoder:
        """From a checkpoint's tensors, in any order. Raises CheckpointError that names all that don't fit."""
        with torch.no_grad():
            return cls(config, config.layout.fill(tensors, device, dtype))

    def use_attention(self, attention: Attention) -> None:
        self._decoder.attention = attention

    def use_graphs(self, capture: Capture) -> None:
        self._decoder.use_graphs(capture)

    def positions(self, prompt: StagePrompt) -> tuple[NDArray[np.float32], float]:
        """One position a token, in three equal rows fp32 [3, n]; and that of the token after them."""
        length = len(prompt.token_ids)
        return np.broadcast_to(np.arange(length, dtype=np.float32), (3, length)), float(length)

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, H]."""
        return F.embedding(ids, self.embedding)
