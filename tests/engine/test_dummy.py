"""`load_format="dummy"`: an engine from config, tokenizer and side files alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import Qwen3OmniMoeConfig

from antiphon import Omni, Request, Sampling
from antiphon.core.config import EngineOptions
from antiphon.core.errors import CheckpointError, ConfigError
from antiphon.engine import load
from antiphon.graphs import find_graph
from antiphon.models.qwen3_omni.family import FAMILY

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
CONTEXT = {"max_position_embeddings": 65536, "rope_parameters": ROPE, "norm_topk_prob": True}
RELEASED = {
    "thinker_config": {
        "text_config": {
            **CONTEXT, "vocab_size": 152064, "hidden_size": 2048, "intermediate_size": 768,
            "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        },
        "audio_config": {"output_dim": 2048},
        "vision_config": {"out_hidden_size": 2048},
        "audio_token_id": 151675, "audio_start_token_id": 151669, "vision_start_token_id": 151652,
        "position_id_per_seconds": 13, "audio_end_token_id": 151670,
    },
    "talker_config": {
        "text_config": {
            **CONTEXT, "vocab_size": 3072, "hidden_size": 1024, "intermediate_size": 2048,
            "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
            "moe_intermediate_size": 384, "shared_expert_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 6,
        },
        "code_predictor_config": {"num_code_groups": 16}, "num_code_groups": 16, "spatial_merge_size": 2,
        "accept_hidden_layer": 24, "codec_bos_id": 2149, "codec_eos_token_id": 2150, "codec_pad_id": 2148,
        "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
        "speaker_id": {"ethan": 2302}, "audio_token_id": 151675, "audio_start_token_id": 151669,
    },
    "code2wav_config": {},
}  # fmt: skip
"""The sizes of Qwen3-Omni-30B-A3B as released."""

BRIEF = {"thinker": Sampling(max_tokens=6), "talker": Sampling(max_tokens=6)}


@pytest.fixture(scope="module")
def weightless(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(
        shutil.copytree(
            tiny_checkpoint,
            tmp_path_factory.mktemp("dummy") / "tiny",
            ignore=shutil.ignore_patterns("*.safetensors*"),
        )
    )


def speak(path: Path, **options) -> tuple[list[int], list[list[int]]]:
    omni = Omni(path, device="cpu", load_format="dummy", **options)
    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    contents = ["Say something.", [{"audio": 0.1 * noise}, "What was that?"]]
    replies = omni.generate([Request(content, sampling=BRIEF) for content in contents])
    for reply in replies:
        assert reply.status in ("completed", "incomplete"), reply.message
        assert len(reply.audio)
        assert np.isfinite(reply.audio).all()
        assert np.abs(reply.audio).max() > 0
    return (
        [token for reply in replies for token in reply.token_ids["thinker"][:, 0].tolist()],
        [frame for reply in replies for frame in reply.token_ids["talker"].tolist()],
    )


def test_it_answers_and_speaks_without_weights(weightless: Path) -> None:
    text, frames = speak(weightless)
    assert speak(weightless) == (text, frames)
    assert speak(weightless, dummy_seed=1) != (text, frames)
    assert len(set(text)) > 2
    assert len({tuple(frame) for frame in frames}) > 2


def test_bfloat16_stays_finite(weightless: Path) -> None:
    speak(weightless, dtype="bfloat16")


def test_experts_and_routers_are_not_zero(weightless: Path) -> None:
    talker = Omni(weightless, device="cpu", load_format="dummy").engine.executors["talker"].runner._model
    for layer in talker.new_pages.__self__.layers:
        for weight in (layer.mixture.router, layer.mixture.gate_up, layer.mixture.down):
            assert (weight.flatten(1).std(1) > 0.05).all()


def test_without_dummy_the_weights_are_missed(weightless: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no weights"):
        Omni(weightless, device="cpu")


def test_formats_are_known_by_name() -> None:
    with pytest.raises(ConfigError, match="load_format is 'random'; it must be one of auto, dummy"):
        EngineOptions(load_format="random")


def test_the_released_size_is_counted_from_its_config() -> None:
    values = Qwen3OmniMoeConfig(**RELEASED).to_dict()
    config = FAMILY.read_config(values)
    node = FAMILY.read_geometry(config, {}, EngineOptions())
    shapes = load.tensor_shapes(find_graph(values["model_type"]), node, FAMILY, config)
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    assert count == pytest.approx(35.26e9, abs=0.005e9)
