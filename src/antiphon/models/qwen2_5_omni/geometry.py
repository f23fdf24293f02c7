"""What the deciding half must know of a Qwen2.5-Omni checkpoint. Free of torch."""

from __future__ import annotations

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.models.geometry import Json, layer_groups, stage_sizes, text_stage, token_ids
from antiphon.models.qwen2_5_omni.config import Qwen25OmniConfig
from antiphon.models.qwen3_omni.geometry import talker_sampling

TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}
"""What transformers' generate() uses where generation_config.json is silent."""


def read_geometry(config: Qwen25OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
    """The node's configuration for this checkpoint under these options."""
    ar = {"thinker": text_stage(generation, options, config.thinker.num_layers, config.stop_ids)}
    codec: dict[str, CodecConfig] = {}
    ends: dict[str, int] = {}
    if config.speech is not None:
        ids = config.speech.codec
        ar["talker"] = ArConfig(
            **stage_sizes(options, "talker"),
            stop_ids=token_ids(generation.get("talker_eos_token_id")) or (ids.pad, ids.eos),
            sampling=talker_sampling(generation, TALKER_DEFAULTS),
            layer_groups=layer_groups(config.speech.talker.num_layers, options.layer_groups),
        )
        codec["token2wav"] = CodecConfig(options.of("token2wav").max_rows)
        ends["talker"] = config.speech.text_eos
    encoder = {"encoders": EncoderConfig()}
    return NodeConfig("qwen2_5_omni", ar, codec, encoder, ends, options.preset)
