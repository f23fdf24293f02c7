"""A random dense Qwen3 with the demo's tokenizer and chat template: for tests and benchmarks of plain text.

Its replies mean nothing. The files load unchanged in transformers and vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from antiphon.checkpoint.demo_weights import PLAIN_STD, SINGLE_FILE, generator_for

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def text_config(size: TextSize, ids: dict[str, int], vocab_size: int) -> dict[str, Any]:
    """config.json of a Qwen3 checkpoint. `ids` maps special tokens to ids."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
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
        "bos_token_id": None,
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


def write_text_weights(size: TextSize, vocab_size: int, seed: int, directory: Path) -> None:
    """Every tensor from a seed of its own, fp32, in one file."""
    tensors = {name: _tensor(name, shape, seed) for name, shape in text_shapes(size, vocab_size)}
    save_file(tensors, directory / SINGLE_FILE, metadata={"format": "pt"})


def text_shapes(size: TextSize, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names as released, with shapes."""
    width, q, kv = size.width, size.num_heads * size.head_dim, size.num_kv_heads * size.head_dim
    yield "model.embed_tokens.weight", (vocab_size, width)
    for i in range(size.num_layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (width,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{layer}self_attn.{name}_proj.weight", (rows, width)
        yield layer + "self_attn.q_norm.weight", (size.head_dim,)
        yield layer + "self_attn.k_norm.weight", (size.head_dim,)
        yield layer + "self_attn.o_proj.weight", (width, q)
        yield layer + "post_attention_layernorm.weight", (width,)
        yield layer + "mlp.gate_proj.weight", (size.mlp_width, width)
        yield layer + "mlp.up_proj.weight", (size.mlp_width, width)
        yield layer + "mlp.down_proj.weight", (width, size.mlp_width)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (vocab_size, width)


def _tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    mean, deviation = (1.0, 0.1) if len(shape) == 1 else (0.0, PLAIN_STD)
    return torch.empty(shape).normal_(mean, deviation, generator=generator_for(name, seed))
