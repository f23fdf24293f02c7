"""What the deciding half must know of a Qwen3-Omni checkpoint: stop ids, end inputs, sampling defaults.

Reads config.json and generation_config.json as dicts; free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.core.sampling import Sampling
from antiphon.models.geometry import Json, layer_groups, stage_sizes, text_stage
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig

TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}
TALKER_MAX_TOKENS = 4096
"""What transformers' generate() uses where generation_config.json is silent."""


def read_geometry(config: Qwen3OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
    """The node's configuration for this checkpoint under these options."""
    thinker = text_stage(generation, options, config.thinker.num_layers, (config.tokens.im_end,))
    ar, codec = {"thinker": thinker}, {}
    if config.speech is not None:
        ar["talker"] = ArConfig(
            **stage_sizes(options, "talker"),
            stop_ids=(config.speech.codec.eos,),
            width=config.speech.num_codebooks,
            sampling=talker_sampling(generation),
            layer_groups=layer_groups(config.speech.talker.num_layers, options.layer_groups),
        )
        codec["code2wav"] = CodecConfig(options.of("code2wav").max_rows)
    return NodeConfig(
        graph="qwen3_omni_moe",
        ar=ar,
        codec=codec,
        encoder={"encoders": EncoderConfig()},
        end_inputs={"talker": config.tokens.tts_eos},
        preset=options.preset,
    )


def talker_sampling(generation: Json, defaults: Mapping[str, float] = TALKER_DEFAULTS) -> Sampling:
    """Sampled unless the generation config says greedy; keys are those of the thinker behind `talker_`."""
    values = {key: generation.get(f"talker_{key}", default) for key, default in defaults.items()}
    greedy = not generation.get("talker_do_sample", True)
    return Sampling(
        temperature=0.0 if greedy else float(values["temperature"]),
        top_k=0 if greedy else int(values["top_k"] or 0),
        top_p=1.0 if greedy else float(values["top_p"]),
        repetition_penalty=float(values["repetition_penalty"]),
        max_tokens=int(generation.get("talker_max_new_tokens") or TALKER_MAX_TOKENS),
    )
