"""What the deciding half must know of a decoder, whatever its family: sizes, stop ids and sampling defaults
of one that writes text, and the shape from which latency models are made. Reads generation_config.json as a
dict; free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from antiphon.core.config import ArConfig, EngineOptions
from antiphon.core.sampling import Sampling
from antiphon.latency.shapes import DecoderShape
from antiphon.models.decoder_config import DecoderConfig

Json = Mapping[str, Any]

MAX_TOKENS = 1024
"""What transformers' generate() uses for a thinker where generation_config.json is silent."""
TALKER_MAX_TOKENS = 4096
"""And for a talker."""


def stage_sizes(options: EngineOptions, stage: str) -> Json:
    """Fields of a stage's ArConfig that an operator chooses."""
    options = options.of(stage)
    return {
        "max_rows": options.max_rows,
        "step_rows": options.step_rows,
        "block_size": options.block_size,
        "num_blocks": options.kv_tokens // options.block_size,
        "step_tokens": options.step_tokens,
        "step_s": options.step_s,
        "host_blocks": options.host_kv_tokens // options.block_size,
    }


def text_stage(
    generation: Json, options: EngineOptions, num_layers: int, stop_ids: tuple[int, ...]
) -> ArConfig:
    """The thinker, a decoder that writes text; `stop_ids` where the generation config names none."""
    return ArConfig(
        **stage_sizes(options, "thinker"),
        stop_ids=token_ids(generation.get("eos_token_id")) or stop_ids,
        sampling=text_sampling(generation),
        max_context_tokens=options.max_context_tokens,
        layer_groups=layer_groups(num_layers, options.layer_groups),
    )


def layer_groups(num_layers: int, count: int) -> tuple[tuple[str, int, int], ...]:
    """`count` KV groups of nearly equal size, at most one a layer; a single one is the graph's own."""
    if count == 1:
        return ()
    count = min(count, num_layers)
    ends = [round(i * num_layers / count) for i in range(count + 1)]
    return tuple((f"layers-{first}", first, end) for first, end in pairwise(ends))


def text_sampling(generation: Json) -> Sampling:
    """Greedy unless the generation config samples."""
    greedy = not generation.get("do_sample", False)
    return Sampling(
        temperature=0.0 if greedy else float(generation.get("temperature") or 1.0),
        top_k=0 if greedy else int(generation.get("top_k") or 0),
        top_p=1.0 if greedy else float(generation.get("top_p") or 1.0),
        repetition_penalty=float(generation.get("repetition_penalty") or 1.0),
        max_tokens=int(generation.get("max_new_tokens") or MAX_TOKENS),
    )


def talker_sampling(generation: Json, defaults: Mapping[str, float]) -> Sampling:
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


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """None, one id or several, as the files have it."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


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
