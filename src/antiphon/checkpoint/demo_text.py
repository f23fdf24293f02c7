"""Random decoders of text with the demo's tokenizer and chat template: for tests and benchmarks.

Their replies mean nothing. The files load unchanged in transformers and vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from antiphon.checkpoint.demo_weights import PLAIN_STD, generator_for
from antiphon.checkpoint.weights_out import save

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TextSize:
    """Widths in features, `num_*` are counts."""

    width: int
    num_layers: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


TEXT_SIZES = {
    "tiny": TextSize(64, 3, 160, 4, 2, 32),
    "small": TextSize(256, 4, 768, 8, 2, 32),
    "medium": TextSize(512, 8, 1536, 8, 4, 64),
}


Shape = tuple[str, tuple[int, ...]]
"""A tensor's name and its shape."""

LLAMA_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""As Llama 3.1 has it, but for a context so short that a test reaches beyond it."""

TIED_SCALE = 0.1
NUM_EXPERTS, NUM_PICKS = 8, 3

TEXT_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_scaling": LLAMA_ROPE},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "attention_bias": None,
        "tie_word_embeddings": True,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": NUM_PICKS,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
"""What of config.json is each family's own."""


def text_config(
    own: Mapping[str, Any], size: TextSize, ids: dict[str, int], vocab_size: int
) -> dict[str, Any]:
    """config.json of a checkpoint. `own` is the family's, None for what it lacks; `ids` of special tokens."""
    config = common_config(size, ids, vocab_size) | dict(own)
    if "num_experts" in config:
        config["moe_intermediate_size"] = size.mlp_width // NUM_PICKS // 4 * 4
    return {key: value for key, value in config.items() if value is not None}


def common_config(size: TextSize, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """What all these families name alike."""
    return {
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": size.width,
        "intermediate_size": size.mlp_width,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "num_key_value_heads": size.num_kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }


def text_generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """Greedy replies of 128 tokens."""
    return {
        "do_sample": False,
        "max_new_tokens": 128,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }


def write_tensors(shapes: Iterable[Shape], seed: int, directory: Path, *, is_tied: bool = False) -> None:
    """Every tensor from a seed of its own, fp32, in one file. With `is_tied` the embedding is the head: a
    large one would have every token follow itself.
    """
    tensors = {name: _tensor(name, shape, seed) for name, shape in shapes}
    if is_tied:
        tensors["model.embed_tokens.weight"] *= TIED_SCALE
    save(tensors, directory)


def text_shapes(config: dict[str, Any]) -> Iterator[Shape]:
    """Names as released, with shapes, of a checkpoint with this config.json."""
    width, table = config["hidden_size"], (config["vocab_size"], config["hidden_size"])
    yield "model.embed_tokens.weight", table
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (width,)
        yield from _attention_shapes(layer + "self_attn.", config)
        yield layer + "post_attention_layernorm.weight", (width,)
        if "num_experts" not in config:
            yield from _mlp_shapes(layer + "mlp.", width, config["intermediate_size"])
            continue
        yield layer + "mlp.gate.weight", (config["num_experts"], width)
        for expert in range(config["num_experts"]):
            yield from _mlp_shapes(f"{layer}mlp.experts.{expert}.", width, config["moe_intermediate_size"])
    yield "model.norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", table


def _attention_shapes(prefix: str, config: dict[str, Any]) -> Iterator[Shape]:
    width, head_dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        yield f"{prefix}{name}_proj.weight", (rows, width)
        if config["model_type"] == "qwen2":
            yield f"{prefix}{name}_proj.bias", (rows,)
    if config["model_type"].startswith("qwen3"):
        yield prefix + "q_norm.weight", (head_dim,)
        yield prefix + "k_norm.weight", (head_dim,)
    yield prefix + "o_proj.weight", (width, q)


def _mlp_shapes(prefix: str, width: int, inner: int) -> Iterator[Shape]:
    yield prefix + "gate_proj.weight", (inner, width)
    yield prefix + "up_proj.weight", (inner, width)
    yield prefix + "down_proj.weight", (width, inner)


def _tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    mean, deviation = (1.0, 0.1) if len(shape) == 1 else (0.0, PLAIN_STD)
    if name.endswith(".bias"):
        mean, deviation = 0.0, 0.5
    return torch.empty(shape).normal_(mean, deviation, generator=generator_for(name, seed))
