"""What the deciding half must know of a Qwen3-Omni checkpoint: stop ids, end inputs, sampling defaults.

Reads config.json and generation_config.json as dicts; free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, EngineOptions, NodeConfig
from antiphon.core.sampling import Sampling
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig

Json = Mapping[str, Any]

TALKER_DEFAULTS = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}
TALKER_MAX_TOKENS = 4096
THINKER_MAX_TOKENS = 1024
"""What transformers' generate() uses where generation_config.json is silent."""


def read_geometry(config: Qwen3OmniConfig, generation: Json, options: EngineOptions) -> NodeConfig:
    """The node's configuration for this checkpoint under these options."""
    sizes: Json = {
        "max_rows": options.max_rows,
        "block_size": options.block_size,
        "num_blocks": options.kv_tokens // options.block_size,
        "step_tokens": options.step_tokens,
    }
    thinker = ArConfig(
        **sizes,
        stop_ids=_ids(generation.get("eos_token_id")) or (config.tokens.im_end,),
        sampling=thinker_sampling(generation),
        max_context_tokens=options.max_context_tokens,
        layer_groups=layer_groups(config.thinker.num_layers, options.layer_groups),
    )
    ar, codec = {"thinker": thinker}, {}
    if config.speech is not None:
        ar["talker"] = ArConfig(
            **sizes,
            stop_ids=(config.speech.codec.eos,),
            width=config.speech.num_codebooks,
            sampling=talker_sampling(generation),
            layer_groups=layer_groups(config.speech.talker.num_layers, options.layer_groups),
        )
        codec["code2wav"] = CodecConfig(options.max_rows)
    return NodeConfig(
        graph="qwen3_omni_moe",
        ar=ar,
        codec=codec,
        encoder={"encoders": EncoderConfig()},
        end_inputs={"talker": config.tokens.tts_eos},
        preset=options.preset,
    )


def layer_groups(num_layers: int, count: int) -> tuple[tuple[str, int, int], ...]:
    """`count` KV groups of nearly equal size, at most one a layer; a single one is the graph's own."""
    if count == 1:
        return ()
    count = min(count, num_layers)
    ends = [round(i * num_layers / count) for i in range(count + 1)]
    return tuple((f"layers-{first}", first, end) for first, end in pairwise(ends))


def thinker_sampling(generation: Json) -> Sampling:
    """Greedy unless the generation config samples."""
    greedy = not generation.get("do_sample", False)
    return Sampling(
        temperature=0.0 if greedy else float(generation.get("temperature") or 1.0),
        top_k=0 if greedy else int(generation.get("top_k") or 0),
        top_p=1.0 if greedy else float(generation.get("top_p") or 1.0),
        repetition_penalty=float(generation.get("repetition_penalty") or 1.0),
        max_tokens=int(generation.get("max_new_tokens") or THINKER_MAX_TOKENS),
    )


def talker_sampling(generation: Json) -> Sampling:
    """Sampled unless the generation config says greedy; keys are those of the thinker behind `talker_`."""
    values = {key: generation.get(f"talker_{key}", default) for key, default in TALKER_DEFAULTS.items()}
    greedy = not generation.get("talker_do_sample", True)
    return Sampling(
        temperature=0.0 if greedy else float(values["temperature"]),
        top_k=0 if greedy else int(values["top_k"] or 0),
        top_p=1.0 if greedy else float(values["top_p"]),
        repetition_penalty=float(values["repetition_penalty"]),
        max_tokens=int(generation.get("talker_max_new_tokens") or TALKER_MAX_TOKENS),
    )


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
