"""Text models of which the package has the shape: the published number of weights, and steps by hand."""

from __future__ import annotations

import pytest

from antiphon.assembly.footprint import kv_token_bytes, shape_parameters
from antiphon.latency.features import ArFeatures
from antiphon.latency.models import ArModel
from antiphon.latency.profile import Provenance
from antiphon.latency.roofline import roofline
from antiphon.latency.shapes import DecoderShape, find_shape, shape_name


def decoder(name: str) -> DecoderShape:
    (stage,) = find_shape(name).stages.values()
    assert isinstance(stage, DecoderShape)
    return stage


def model_on(device: str, name: str, ranks: int = 1) -> ArModel:
    made = roofline(device, find_shape(name), Provenance(), ranks=ranks).stages["thinker"].model
    assert isinstance(made, ArModel)
    return made


@pytest.mark.parametrize(
    ("name", "published", "biases"),
    [
        ("llama-3-8b", 8_030_261_248, 0),
        ("llama-3.1-8b", 8_030_261_248, 0),
        ("llama-2-13b", 13_015_864_320, 0),
        ("llama-2-70b", 68_976_648_192, 0),
        ("yi-34b", 34_388_917_248, 0),
        ("qwen2-7b", 7_615_616_512, 28 * (3584 + 2 * 4 * 128)),
        ("qwen2.5-32b", 32_763_876_352, 64 * (5120 + 2 * 8 * 128)),
    ],
)
def test_a_shape_has_the_published_number_of_weights(name: str, published: int, biases: int) -> None:
    """To the last one: two norms a layer and one at the end are no matrices, nor are the biases of Qwen2's
    queries, keys and values."""
    shape = decoder(name)
    norms = (2 * shape.layers + 1) * shape.hidden
    assert shape_parameters(shape) + norms + biases == published
    assert shape.heads * shape.head_dim == shape.hidden


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama-3-8b", 128),
        ("llama-2-13b", 800),
        ("llama-2-70b", 320),
        ("yi-34b", 240),
        ("qwen2-7b", 56),
        ("qwen2.5-32b", 256),
    ],
)
def test_the_kv_of_a_token_in_bf16(name: str, kib: int) -> None:
    """Layers x 2 x KV heads x 128 x 2 bytes: 0.82 MB of Llama-2-13B, whose heads share none."""
    assert kv_token_bytes(decoder(name), "bfloat16") == kib * 1024


def test_a_decode_step_of_llama_3_8b_on_an_a6000_by_hand() -> None:
    """Memory brings 0.75 * 768 GB/s; a layer reads its matrices and, of each token of the past, 2 * 8 * 128
    elements; the head is read once."""
    layer = 4096 * 128 * 2 * (32 + 8) + 3 * 4096 * 14336
    layer_us = 10 + 2 * layer / 576e3
    past_us = 1000 * 2 * (2 * 8 * 128) / 576e3
    head_us = 2 * 128_256 * 4096 / 576e3
    features = ArFeatures(num_tokens=1, decode_load=1000, decode_rows=1, emits=1)
    us = 32 * (layer_us + past_us) + head_us + 400
    assert 1e6 * model_on("a6000", "llama-3-8b").seconds(features) == pytest.approx(us, rel=1e-9)
    assert us == pytest.approx(27_005, abs=1), "37 tokens a second"


def test_a_prompt_s_step_of_llama_3_8b_on_a_4090_by_hand() -> None:
    """Products take 0.6 * 165 TFLOPS, attention over the prompt's pairs 0.5 of them."""
    weights = 4096 * 128 * 2 * (32 + 8) + 3 * 4096 * 14336
    layer_us = 10 + 2 * 1024 * weights / 99e6
    pairs = 1024 * 1025 // 2
    pairs_us = pairs * 4 * 32 * 128 / 82.5e6
    head_us = 2 * 128_256 * 4096 / 756e3
    features = ArFeatures(num_tokens=1024, prefill_load=pairs, prefill_rows=1, emits=1)
    us = 32 * (layer_us + pairs_us) + head_us + 400
    assert 1e6 * model_on("4090", "llama-3-8b").seconds(features) == pytest.approx(us, rel=1e-9)
    assert us == pytest.approx(149_825, abs=1), "6,800 tokens a second"


def test_four_a100_share_llama_2_70b_by_hand() -> None:
    """A quarter of each layer at 0.75 * 2039 GB/s, and after attention and MLP a ring of four over 0.8 * 300
    GB/s: each of 8192 bf16 elements crosses 1.5 times."""
    layer = 8192 * 128 * 2 * (64 + 8) + 3 * 8192 * 28672
    layer_us = 12 + 2 * layer / 4 / 1529.25e3
    ring_us = 2 * (15 + 1.5 * 2 * 8192 / 240e3)
    head_us = 2 * 32_000 * 8192 / 4 / 1529.25e3
    features = ArFeatures(num_tokens=1, decode_load=0, decode_rows=1, emits=1)
    us = 80 * (layer_us + ring_us) + head_us + 500
    assert 1e6 * model_on("a100", "llama-2-70b", 4).seconds(features) == pytest.approx(us, rel=1e-9)
    assert us == pytest.approx(26_343, abs=1)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("01-ai/Yi-34B-Chat", "yi-34b"),
        ("Qwen/Qwen2.5-32B-Instruct", "qwen2.5-32b"),
        ("Qwen/Qwen2.5-Omni-7B", "qwen2.5-omni-7b"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "qwen3-omni-30b-a3b"),
        ("qwen2-7b", "qwen2-7b"),
        ("checkpoints/demo", None),
    ],
)
def test_a_released_model_is_known_by_its_hub_id(model: str, name: str | None) -> None:
    assert shape_name(model) == name
