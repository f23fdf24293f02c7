"""A GGUF as a text model's checkpoint: config, tokenizer, and tensors by the names of released checkpoints.

The names and keys are those of llama.cpp's converters; its metadata becomes a tokenizer in transformers.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphon.checkpoint.gguf import Gguf
from antiphon.checkpoint.side_files import write_json
from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.core.quantised import Quantised

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""What is read, by `general.architecture`: the model type too."""

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BIASED = ("attn_q", "attn_k", "attn_v")
"""Parts that add a bias, in Qwen2 alone."""
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FREQUENCIES = "rope_freqs.weight"
"""What Llama 3 scales its positions by: config.json says the same in other words."""

SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
}
MOST_CHARACTERS = 1 << 20
"""Of a chat template."""
BYTES_ALONE = ("gpt-2", "gpt2", "smollm", "default")
"""Splittings of text that transformers does not list: GPT-2's own, and one that `_split_digits` makes."""
BESIDE = "Put config.json and the tokenizer's files of the model that it was made from into its directory"


def model_config(gguf: Gguf) -> dict[str, Any]:
    """config.json from the metadata; raises CheckpointError for a model that is not read."""
    kind = gguf.get("general.architecture", str)
    if kind not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"{gguf.file} holds the architecture {kind!r:.40}; {names} are read from GGUF")
    if (count := gguf.optional("split.count", int, 1)) > 1:
        raise CheckpointError(
            f"{gguf.file} is one of {count} files that a model was split into; one file is read. "
            "Put them together with llama.cpp's `llama-gguf-split --merge`"
        )
    sizes = {name: gguf.get(f"{kind}.{key}") for name, key in SIZES.items()}
    heads = sizes["num_attention_heads"]
    sizes["num_key_value_heads"] = gguf.optional(f"{kind}.attention.head_count_kv", int, heads)
    sizes["head_dim"] = gguf.optional(
        f"{kind}.attention.key_length", int, sizes["hidden_size"] // max(heads, 1)
    )
    if wrong := {name: size for name, size in sizes.items() if size < 1}:
        raise CheckpointError(f"{gguf.file}: its metadata has sizes that are not above 0: {wrong}")
    head_dim = sizes["head_dim"]
    _check_rotation(gguf, kind, head_dim)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{gguf.file} has no matrix token_embd.weight: it is not a model of text")
    ids = _special_ids(gguf)
    ends = {ids.get("eos"), gguf.optional("tokenizer.ggml.eot_token_id", int, None)} - {None}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": _positive(gguf, f"{kind}.attention.layer_norm_rms_epsilon", None),
        "rope_theta": _positive(gguf, f"{kind}.rope.freq_base", 1e4),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "vocab_size": embedding.shape[0],
        **{f"{name}_token_id": token for name, token in ids.items() if name != "unk"},
        **({"eos_token_id": sorted(ends)} if len(ends) > 1 else {}),
        **sizes,
    }


def _positive(gguf: Gguf, key: str, otherwise: float | None) -> float:
    """A number above 0; raises CheckpointError, also where it is not told and there is no other."""
    told = gguf.get(key, float) if otherwise is None else gguf.optional(key, float, otherwise)
    if not (0 < told < math.inf):
        raise CheckpointError(f"{gguf.file}: metadata {key!r} is {told!r}, not a number above 0")
    return as_written(told)


def _check_rotation(gguf: Gguf, kind: str, head_dim: object) -> None:
    """Raises CheckpointError for positions that are turned otherwise than plainly."""
    scaling = gguf.metadata.get(f"{kind}.rope.scaling.type", "none")
    turned = gguf.metadata.get(f"{kind}.rope.dimension_count", head_dim)
    factors = [gguf.metadata.get(f"{kind}.rope.{name}", 1.0) for name in ("scaling.factor", "scale_linear")]
    is_plain = (
        isinstance(scaling, str)
        and scaling == "none"
        and isinstance(turned, int)
        and turned == head_dim
        and all(isinstance(factor, float | int) and factor in (0, 1) for factor in factors)
    )
    if FREQUENCIES in gguf.tensors or not is_plain:
        raise CheckpointError(
            f"{gguf.file} scales its rotary positions, which its metadata does not say in full. {BESIDE}"
        )


def _special_ids(gguf: Gguf) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in names.items()}
    return {name: gguf.get(key) for name, key in keys.items() if key in gguf.metadata}


def write_tokenizer(gguf: Gguf, directory: Path) -> None:
    """tokenizer.json, its config and the chat template; raises CheckpointError."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (
            GGUF_PRE_TOKENIZER_SPLITS,
            convert_gguf_tokenizer,
        )
    except ImportError:
        raise CheckpointError(
            f"{gguf.file}: this transformers makes no tokenizer of a GGUF. Upgrade it. Or: {BESIDE}"
        ) from None
    tokens, ids = gguf.get("tokenizer.ggml.tokens", list), _special_ids(gguf)
    _check_tokens(gguf, tokens, ids, {*GGUF_PRE_TOKENIZER_SPLITS, *BYTES_ALONE})
    told = {
        name: gguf.metadata[f"tokenizer.ggml.{key}"]
        for name, key in (
            ("merges", "merges"),
            ("pre_tokenizer_type", "pre"),
            ("add_prefix_space", "add_space_prefix"),
        )
        if f"tokenizer.ggml.{key}" in gguf.metadata
    }
    kinds = gguf.get("tokenizer.ggml.token_type", np.ndarray).tolist()
    told |= {"tokenizer_type": gguf.get("tokenizer.ggml.model", str), "tokens": tokens, "token_type": kinds}
    if "tokenizer.ggml.scores" in gguf.metadata:
        told["scores"] = gguf.get("tokenizer.ggml.scores", np.ndarray).tolist()
    try:
        tokenizer, _ = convert_gguf_tokenizer(gguf.get("general.architecture", str), told)
    except Exception as error:  # tokenizers raises bare Exceptions
        raise CheckpointError(f"{gguf.file}: its metadata makes no tokenizer: {error!s:.200}") from error
    if told.get("pre_tokenizer_type") == "smollm":
        _split_digits(tokenizer)
    if wrong := [
        tokens[number] for number in ids.values() if tokenizer.token_to_id(tokens[number]) != number
    ]:
        raise CheckpointError(
            f"{gguf.file}: the tokenizer that transformers makes of it spells {wrong[0]!r:.60} otherwise. "
            f"{BESIDE}"
        )
    _lay_around(gguf, tokenizer, tokens, ids)
    tokenizer.save(str(directory / "tokenizer.json"))
    if "tokenizer.chat_template" not in gguf.metadata:
        raise CheckpointError(f"{gguf.file} has no chat template in its metadata. {BESIDE}")
    template = gguf.get("tokenizer.chat_template", str)
    if len(template) > MOST_CHARACTERS:
        raise CheckpointError(
            f"{gguf.file}: a chat template of {len(template)} characters; {MOST_CHARACTERS} are read"
        )
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    named = {f"{name}_token": tokens[number] for name, number in ids.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(directory / "tokenizer_config.json", config | named)


def _lay_around(gguf: Gguf, tokenizer: Any, tokens: list[str], ids: dict[str, int]) -> None:
    """The tokens that stand before and behind a raw prompt. Where nothing says it, SentencePiece's have one
    before it, as llama.cpp has it."""
    from tokenizers.processors import TemplateProcessing

    is_piece = gguf.get("tokenizer.ggml.model", str) == "llama"
    before = gguf.optional("tokenizer.ggml.add_bos_token", bool, is_piece)
    behind = gguf.optional("tokenizer.ggml.add_eos_token", bool, False)
    added = {name: (tokens[ids[name]], ids[name]) for name in ("bos", "eos") if name in ids}
    around = [name if adds and name in added else None for name, adds in (("bos", before), ("eos", behind))]
    if any(around):
        first, last = ([added[name][0]] if name else [] for name in around)
        one = [added[name] for name in around if name]
        tokenizer.post_processor = TemplateProcessing(single=[*first, "$A", *last], special_tokens=one)


def _check_tokens(gguf: Gguf, tokens: list[str], ids: dict[str, int], splittings: set[str]) -> None:
    """Raises CheckpointError for special ids that are no tokens, tokens that the embedding has no rows for,
    and a way of splitting text that is not known."""
    turn = gguf.optional("tokenizer.ggml.eot_token_id", int, 0)
    if any(not 0 <= number < len(tokens) for number in (*ids.values(), turn)):
        raise CheckpointError(f"{gguf.file}: special tokens {ids} are not all of its {len(tokens)} tokens")
    rows = gguf.tensors["token_embd.weight"].shape[0]
    if len(tokens) > rows:
        raise CheckpointError(f"{gguf.file}: {len(tokens)} tokens, but an embedding of {rows} rows")
    splitting = gguf.optional("tokenizer.ggml.pre", str, "default")
    if gguf.get("tokenizer.ggml.model", str) == "gpt2" and splitting not in splittings:
        raise CheckpointError(
            f"{gguf.file} splits text as {splitting!r:.40}, which is not known here. {BESIDE}"
        )


def _split_digits(tokenizer: Any) -> None:
    """As SmolLM's: transformers knows no splitting of this name and takes GPT-2's."""
    from tokenizers import pre_tokenizers

    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def released_names(gguf: Gguf) -> dict[str, str]:
    """Tensors by the names of released checkpoints; raises CheckpointError for one that is not known."""
    found: dict[str, str] = {}
    for name in gguf.tensors:
        if name == FREQUENCIES:
            continue
        matched = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        layer, part, kind = matched.groups() if matched else (None, "", "")
        theirs = (WHOLE if layer is None else LAYER).get(part)
        if kind == "bias" and not (part in BIASED and gguf.metadata.get("general.architecture") == "qwen2"):
            theirs = None
        if theirs is None:
            raise CheckpointError(f"{gguf.file}: nothing is known of the tensor {name!r:.80}")
        prefix = "" if layer is None else f"model.layers.{layer}."
        found[f"{prefix}{theirs}.{kind}"] = name
    return found


def read_tensor(gguf: Gguf, name: str) -> Quantised | np.ndarray:
    """One by its own name: a quantised matrix in its blocks, anything else in float32. llama.cpp orders the
    rows of a Llama's q and k otherwise."""
    weight = gguf.tensors[name].in_blocks()
    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(name.split(".")[-2])
    if heads is None or gguf.get("general.architecture", str) != "llama":
        return gguf.read(name) if weight is None else weight
    kind = "llama.attention."
    order = interleaved(
        gguf.tensors[name].shape[0], gguf.metadata.get(kind + heads) or gguf.get(kind + "head_count")
    )
    return gguf.read(name)[order] if weight is None else weight.reordered(order)


def interleaved(rows: int, num_heads: int) -> np.ndarray:
    """Where each row of heads in halves (transformers) is among pairs side by side (llama.cpp)."""
    if num_heads < 1 or rows % (2 * num_heads):
        raise CheckpointError(f"{rows} rows are not {num_heads} heads of pairs")
    return np.arange(rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def as_written(value: float) -> float:
    """The shortest decimal that is this float32."""
    return float(str(np.float32(value)))
