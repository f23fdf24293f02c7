"""Shapes from configs agree with those that the package ships."""

from __future__ import annotations

import importlib.util
import json
import sys
from math import prod
from pathlib import Path

import pytest

from antiphon.checkpoint.demo import make_demo
from antiphon.latency.shapes import DecoderShape, FlowVocoderShape, find_shape
from antiphon.models.qwen2_5_omni.family import FAMILY as QWEN25
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.geometry import read_shape
from antiphon.models.text.family import FAMILY as TEXT

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu_decode.py"


def test_the_shape_that_ships_is_that_of_the_released_config(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gpu_decode", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules["gpu_decode"] = benchmark
    spec.loader.exec_module(benchmark)
    make_demo(tmp_path / "full", size="tiny")
    benchmark.write_config(tmp_path / "full")
    config = Qwen3OmniConfig.from_dict(json.loads((tmp_path / "full" / "config.json").read_text()))
    assert read_shape(config, "qwen3-omni-30b-a3b") == find_shape("Qwen3-Omni-30B-A3B")


def test_the_second_familys_shape_is_as_large_as_its_tensors(tmp_path: Path) -> None:
    """But for what runs once a voice, tables of codes, and what takes no products."""
    make_demo(tmp_path / "q25", model="qwen2_5_omni", size="small")
    config = QWEN25.read_config(json.loads((tmp_path / "q25" / "config.json").read_text()))
    shape = QWEN25.read_shape(config, "q25")
    vocoder = shape.stages["token2wav"]
    assert isinstance(vocoder, FlowVocoderShape)
    assert (vocoder.frame_samples, vocoder.block) == (480, 12)
    beside = ("spk_encoder", "codec_embed", "alpha", "beta", "bias")
    tensors = QWEN25.tensor_shapes("token2wav", config).items()
    whole = sum(prod(size) for name, size in tensors if not any(part in name for part in beside))
    assert vocoder.weights == pytest.approx(whole, rel=0.1)
    assert [*shape.stages] == ["encoders", "thinker", "talker", "token2wav"]


def test_a_text_model_has_one_stage(tmp_path: Path) -> None:
    make_demo(tmp_path / "text", model="qwen3", size="tiny")
    config = TEXT.read_config(json.loads((tmp_path / "text" / "config.json").read_text()))
    shape = TEXT.read_shape(config, "text")
    assert [*shape.stages] == ["thinker"]
    thinker = shape.stages["thinker"]
    assert isinstance(thinker, DecoderShape)
    assert thinker.layer_weights_read(5) == thinker.layer_weights_used
    assert (thinker.vocab, thinker.layers) == (config.vocab, config.decoder.num_layers)
