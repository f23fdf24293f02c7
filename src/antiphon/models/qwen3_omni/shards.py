"""Thinker and talker divided among ranks: rank 0 has all that is not a decoder layer, the others only those.

Embeddings, projections, code predictor, encoders and vocoder stay on rank 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.layout import Layout
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.weights import builder_for, layout_for, speech_of
from antiphon.models.sharding import cut, divide_rows, keep_params, shard_decoder
from antiphon.nn.backends import Attention
from antiphon.nn.shard import Shard

FOLLOWED = ("layers.", "norm", "head")
"""Parameters that ranks other than 0 have a part of."""

Place = tuple[torch.device, torch.dtype]


def shard_config(stage: str, config: Qwen3OmniConfig, ranks: int) -> Qwen3OmniConfig:
    """The config of one rank's part of a stage; raises ConfigError."""
    if stage == "thinker":
        return replace(config, thinker=shard_decoder(config.thinker, ranks))
    speech = speech_of(config)
    return replace(config, speech=replace(speech, talker=shard_decoder(speech.talker, ranks)))


def shard_layout(stage: str, config: Qwen3OmniConfig, shard: Shard) -> Layout:
    """One rank's parameters of a stage."""
    layout = layout_for(stage, shard_config(stage, config, shard.ranks))
    divide_rows(layout, "head", shard.ranks)
    return layout if shard.rank == 0 else keep_params(layout, FOLLOWED)


def load_shard(
    stage: str, tensors: Iterable[tuple[str, Tensor]], config: Qwen3OmniConfig, place: Place, shard: Shard
) -> Any:
    """A rank's part of the thinker or the talker: on rank 0 the model itself, elsewhere a Follower."""
    layout = shard_layout(stage, config, shard)
    whole = layout_for(stage, config).sources
    ours = shard_config(stage, config, shard.ranks)
    with torch.no_grad():
        params = layout.fill(cut(tensors, whole, layout.sources, (shard.rank, shard.ranks)), *place)
        if shard.rank == 0:
            model = builder_for(stage)(ours, params)
        else:
            model = Follower(ours.thinker if stage == "thinker" else speech_of(ours).talker, params)
    for layer in model.decoder.layers:
        layer.total = shard.total
    return model


class Follower:
    """Decoder and head of a rank that knows no ids. Implements `engine.family.FollowerModel`."""

    def __init__(self, config: DecoderConfig, params: Mapping[str, Tensor]) -> None:
        self.decoder = Decoder(config, params, head=params["head"])
        self.forward, self.logits = self.decoder.forward, self.decoder.logits
        self.new_pages = self.decoder.new_pages

    def use_attention(self, attention: Attention) -> None:
        self.decoder.attention = attention
