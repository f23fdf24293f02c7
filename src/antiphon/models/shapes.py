"""From a decoder's config to the shape that latency models are made from. Free of torch."""

from __future__ import annotations

from antiphon.latency.shapes import DecoderShape
from antiphon.models.decoder_config import DecoderConfig


def decoder_shape(
    config: DecoderConfig,
    vocab: int,
    *,
    payload: int = 0,
    codebooks: int = 1,
    predictor: DecoderShape | None = None,
) -> DecoderShape:
    """`payload`, `codebooks` and `predictor` as in DecoderShape."""
    return DecoderShape(
        layers=config.num_layers,
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab=vocab,
        mlp=config.shared_expert_size if config.is_moe else config.intermediate_size,
        experts=config.num_experts,
        picks=config.num_picks,
        expert=config.expert_size,
        payload=payload,
        codebooks=codebooks,
        predictor=predictor,
    )
