"""Thinker and talker divided among ranks: rank 0 has all that is not a decoder layer, the others only those.

Embeddings, projections, code predictor, encoders and vocoder stay on rank 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from antiphon.models.decoder import Decoder
from antiphon.models.decoder_stage import DecoderStage
from antiphon.models.family import Family
from antiphon.models.layout import Layout, speech_of
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.sharding import cut, divide_rows, keep_params, shard_decoder
from antiphon.nn.shard import Shard
from antiphon.nn.stage_source import Place, StageSource

FOLLOWED = ("layers.", "norm", "head")
"""Parameters that ranks other than 0 have a part of."""


def shard_config(stage: str, config: Qwen3OmniConfig, ranks: int) -> Qwen3OmniConfig:
    """The config of one rank's part of a stage; raises ConfigError."""
    if stage == "thinker":
        return replace(config, thinker=shard_decoder(config.thinker, ranks))
    speech = speech_of(config.speech)
    return replace(config, speech=replace(speech, talker=shard_decoder(speech.talker, ranks)))


def shard_layout(family: Family, stage: str, config: Qwen3OmniConfig, shard: Shard) -> Layout:
    """One rank's parameters of a stage."""
    layout = family.layout(stage, shard_config(stage, config, shard.ranks))
    divide_rows(layout, "head", shard.ranks)
    return layout if shard.rank == 0 else keep_params(layout, FOLLOWED)


def load_shard(family: Family, source: StageSource, place: Place, shard: Shard) -> Any:
    """A rank's part of a stage: on rank 0 the family's module, elsewhere the decoder and its head."""
    stage, config = source.stage, source.config
    layout = shard_layout(family, stage, config, shard)
    whole = family.layout(stage, config).sources
    ours = shard_config(stage, config, shard.ranks)
    with torch.no_grad():
        params = layout.fill(cut(source.tensors, whole, layout.sources, (shard.rank, shard.ranks)), *place)
        if shard.rank == 0:
            model = family.build(stage, ours, params)
        else:
            sizes = ours.thinker if stage == "thinker" else speech_of(ours.speech).talker
            model = DecoderStage(Decoder(sizes, params, head=params["head"]))
    for layer in model.decoder.layers:
        layer.total = shard.total
    return model
