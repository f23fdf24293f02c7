"""A decoder of text: its config, and the checkpoint tensors it is of. How the families differ is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from antiphon.core.errors import CheckpointError
from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.geometry import token_ids
from antiphon.models.layout import Layout, decoder_layout

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


def text_layout(layout: Layout, config: TextConfig) -> None:
    """Parameters by the names of released checkpoints."""
    table = config.vocab, config.decoder.hidden_size
    layout.whole("embedding", "model.embed_tokens.weight", *table)
    decoder_layout(layout, "", "model.", config.decoder)
    if not config.is_tied:
        layout.whole("head", "lm_head.weight", *table)
