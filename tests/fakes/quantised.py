"""GGUF files of small text models, and the plain quantising of a weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from antiphon.checkpoint.gguf import ENCODINGS
from fakes.model_files import gguf

NUMBERS = {encoding.name: number for number, encoding in ENCODINGS.items()}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def quantise(weight: np.ndarray, encoding: str) -> bytes:
    """fp32 [out, in] in these blocks; those of five and six bits, and Q4_K, are drawn, not fitted."""
    if encoding == "F32":
        return weight.astype("<f4").tobytes()
    blocks = weight.reshape(-1, 256 if encoding.endswith("K") else 32)
    if encoding.endswith("K") or encoding.startswith("Q5"):
        return _drawn(blocks, encoding)
    if encoding == "Q8_0":
        scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
        return _with_scales([scale], np.rint(_over(blocks, scale)).astype(np.int8).view(np.uint8))
    low, high = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
    if encoding == "Q4_0":
        farthest = np.where(np.abs(low) > np.abs(high), low, high)
        scale = (farthest / -8).astype("<f2")
        return _with_scales([scale], _packed(np.clip(np.rint(_over(blocks, scale)) + 8, 0, 15)))
    scale, least = ((high - low) / 15).astype("<f2"), low.astype("<f2")
    return _with_scales([scale, least], _packed(np.clip(np.rint(_over(blocks - least, scale)), 0, 15)))


def _over(blocks: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return blocks / np.where(scale == 0, 1, scale).astype(np.float32)


def _packed(numbers: np.ndarray) -> np.ndarray:
    """The first half of a block in the low bits."""
    whole = numbers.astype(np.uint8)
    return whole[:, :16] | whole[:, 16:] << 4


def _with_scales(scales: list[np.ndarray], numbers: np.ndarray) -> bytes:
    return np.concatenate([*(scale.view(np.uint8) for scale in scales), numbers], 1).tobytes()


def _drawn(blocks: np.ndarray, encoding: str) -> bytes:
    rng = np.random.default_rng(len(blocks))
    size = ENCODINGS[NUMBERS[encoding]].block_bytes
    data = rng.integers(0, 256, (len(blocks), size), dtype=np.uint8)
    spread = blocks.std(1, keepdims=True)
    if encoding == "Q6_K":
        data[:, 192:208] = rng.integers(8, 64, (len(blocks), 16), dtype=np.uint8)
        data[:, 208:] = (spread / 600).astype("<f2").view(np.uint8)
    elif encoding == "Q5_0":
        data[:, :2] = (spread / 9).astype("<f2").view(np.uint8)
    elif encoding == "Q5_1":
        heads = [(spread / 9).astype("<f2").view(np.uint8), (-1.7 * spread).astype("<f2").view(np.uint8)]
        data[:, :4] = np.concatenate(heads, 1)
    else:
        data[:, :4] = np.concatenate([(spread / d).astype("<f2").view(np.uint8) for d in (140, 20)], 1)
    return data.tobytes()


def write_gguf(checkpoint: Path, file: Path, encodings: dict[str, str] | str) -> Path:
    """A text checkpoint of safetensors as llama.cpp's converter writes it, its matrices in these encodings:
    one for all, or by the converter's name of the part ("attn_v"), "" for all others."""
    config = json.loads((checkpoint / "config.json").read_text())
    chosen = {"": encodings} if isinstance(encodings, str) else encodings
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    for name, value in load_file(checkpoint / "model.safetensors").items():
        array, stem, kind = value.float().numpy(), *name.rsplit(".", 1)
        theirs = WHOLE.get(stem)
        if theirs is None:
            _, _, layer, part = stem.split(".", 3)
            theirs = f"blk.{layer}.{NAMES[part]}"
        part = theirs.split(".")[-1]
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part)
        if heads is not None and config["model_type"] == "llama":
            halves = array.reshape(config[heads], 2, array.shape[0] // config[heads] // 2, -1)
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        encoding = chosen.get(part, chosen[""]) if array.ndim == 2 else "F32"
        tensors[f"{theirs}.{kind}"] = array.shape, NUMBERS[encoding], quantise(array, encoding)
    file.write_bytes(gguf(metadata_of(checkpoint, config), tensors))
    return file


def metadata_of(checkpoint: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Sizes, tokenizer and chat template."""
    kind, told = config["model_type"], json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = {**told["model"]["vocab"], **{each["content"]: each["id"] for each in told["added_tokens"]}}
    special = {each["id"] for each in told["added_tokens"] if each["special"]}
    tokens = {number: token for token, number in vocabulary.items()}
    count = config["vocab_size"]
    eos = config["eos_token_id"]
    return {
        "general.architecture": kind,
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.key_length": config["head_dim"],
        f"{kind}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{kind}.rope.freq_base": float(config["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if '"Digits"' in json.dumps(told["pre_tokenizer"]) else "qwen2",
        "tokenizer.ggml.tokens": [tokens.get(i, f"[PAD{i}]") for i in range(count)],
        "tokenizer.ggml.token_type": [3 if i in special else 1 if i in tokens else 5 for i in range(count)],
        "tokenizer.ggml.merges": [
            each if isinstance(each, str) else " ".join(each) for each in told["model"]["merges"]
        ],
        "tokenizer.ggml.eos_token_id": eos[0] if isinstance(eos, list) else eos,
        "tokenizer.chat_template": _template(checkpoint),
    }


def _template(checkpoint: Path) -> str:
    file = checkpoint / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return json.loads((checkpoint / "tokenizer_config.json").read_text())["chat_template"]


def dequantised(checkpoint: Path, gguf_file: Path, directory: Path) -> Path:
    """The checkpoint with the numbers of the GGUF that was made of it, in fp32."""
    import shutil

    from safetensors.torch import save_file

    from antiphon.checkpoint.gguf import open_gguf
    from antiphon.checkpoint.gguf_model import read_tensor, released_names
    from antiphon.core.quantised import Quantised

    shutil.copytree(checkpoint, directory)
    found, tensors = open_gguf(gguf_file), {}
    for name, own in released_names(found).items():
        tensor = read_tensor(found, own)
        whole = tensor.rows(slice(None)) if isinstance(tensor, Quantised) else tensor
        tensors[name] = torch.tensor(whole)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory
