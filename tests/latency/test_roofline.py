"""A profile from a datasheet: of the right size, monotone, and marked for what it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.assembly.footprint import shape_parameters
from antiphon.core.errors import ConfigError
from antiphon.latency.features import ArFeatures
from antiphon.latency.models import ArModel
from antiphon.latency.profile import Profile, Provenance
from antiphon.latency.roofline import hardware_names, roofline
from antiphon.latency.shapes import (
    DecoderShape,
    EncodersShape,
    FlowVocoderShape,
    ModelShape,
    VocoderShape,
    find_shape,
    shape_names,
)
from latency.steps import ar_step, codec_step, encode_step, image

RELEASED, SECOND = "qwen3-omni-30b-a3b", "qwen2.5-omni-7b"


def made(device: str, ranks: int = 1) -> Profile:
    return roofline(device, find_shape(RELEASED), Provenance(command="test"), ranks=ranks)


def decoder(profile: Profile, stage: str = "thinker") -> ArModel:
    model = profile.stages[stage].model
    assert isinstance(model, ArModel)
    return model


def test_the_released_shape_has_the_released_number_of_weights() -> None:
    """Sizes of Qwen3-Omni-30B-A3B in billions: thinker, talker, predictor, vocoder, towers."""
    stages = find_shape(RELEASED).stages
    thinker, talker, vocoder = stages["thinker"], stages["talker"], stages["code2wav"]
    assert isinstance(thinker, DecoderShape)
    assert isinstance(talker, DecoderShape)
    assert isinstance(vocoder, VocoderShape)
    every = 10**9  # tokens enough to pick every expert
    embedding = thinker.vocab * thinker.hidden
    assert thinker.layers * thinker.layer_weights_read(every) + embedding == pytest.approx(30.22e9, rel=0.01)
    assert thinker.layers * thinker.layer_weights_used + embedding == pytest.approx(3.04e9, rel=0.01)
    assert talker.layers * talker.layer_weights_read(every) == pytest.approx(3.17e9, rel=0.02)
    assert talker.predictor is not None
    predictor = talker.predictor
    assert predictor.layers * predictor.layer_weights_used == pytest.approx(79e6, rel=0.02)
    assert vocoder.weights == pytest.approx(0.216e9, rel=0.2)
    encoders = stages["encoders"]
    assert isinstance(encoders, EncodersShape)
    assert encoders.audio.weights == pytest.approx(0.648e9, rel=0.05)
    assert encoders.vision.weights == pytest.approx(0.539e9, rel=0.25)


def test_the_second_familys_shape_has_its_published_weights() -> None:
    """And its vocoder solves an equation for every window: 36 times the transformer, twice."""
    stages = find_shape(SECOND).stages
    thinker, talker, vocoder = stages["thinker"], stages["talker"], stages["token2wav"]
    assert isinstance(thinker, DecoderShape)
    assert isinstance(talker, DecoderShape)
    assert isinstance(vocoder, FlowVocoderShape)
    assert vocoder.frame_samples == 480, "20 ms"
    assert vocoder.weights == pytest.approx(0.449e9, rel=0.05)
    assert vocoder.weights_read > 25 * vocoder.weights
    encoders = stages["encoders"]
    assert isinstance(encoders, EncodersShape)
    towers = encoders.audio.weights + encoders.vision.weights
    rest = 2 * thinker.vocab * thinker.hidden
    whole = thinker.layers * thinker.layer_weights_used + rest + towers
    assert whole == pytest.approx(8.93e9, rel=0.02)
    assert talker.layers * talker.layer_weights_used == pytest.approx(1.35e9, rel=0.05)
    profile = roofline("H200", find_shape(SECOND), Provenance(command="test"))
    assert 0.001 < profile.step_s(ar_step([(100, 1, True)])) < 0.006


def test_a_talker_with_its_own_vocoder_has_the_weights_that_are_published() -> None:
    """103 billion in all; of the flow transformer 103,117,920, ends and norms among them."""
    stages = find_shape("ming-flash-omni").stages
    thinker, talker = stages["thinker"], stages["talker"]
    assert isinstance(thinker, DecoderShape)
    assert isinstance(talker, DecoderShape)
    assert talker.vocoder is not None
    assert talker.vocoder.flow.weights == pytest.approx(103_117_920, rel=0.03)
    too_many = thinker.experts * thinker.expert_weights - thinker.picks * thinker.expert_weights
    assert shape_parameters(thinker) - too_many == pytest.approx(103e9, rel=0.01)
    assert talker.layers * talker.layer_weights_used == pytest.approx(0.358e9, rel=0.01), "Qwen2-0.5B's"


def test_a_patch_by_hand() -> None:
    """Of one row: ten passes of the flow transformer, 37 positions twice; the aggregator; the decoder."""
    profile = roofline("H200", find_shape("ming-flash-omni"), Provenance())
    block, own = 4 * 1024**2 + 8 * 1024**2, 24 * (4 * 896**2 + 2 * 896 * 7296)
    flow = max(8 * block * 2 / 3.6e6, 2 * 2 * (37 * 8 * block + 2 * 8 * 1024 * 37**2) / 593.4e6)
    us = 10 * (flow + 80) + (8 * block * 2 / 3.6e6 + 80) + (own * 2 / 3.6e6 + 240)
    frame = decoder(profile, "talker").frame
    assert frame is not None
    assert 1e6 * frame.value(1) == pytest.approx(us, rel=1e-9)


def test_a_decode_step_takes_at_least_what_it_reads() -> None:
    """At batch 1 the thinker reads 6.1 GB of layers: 1.3 ms of an H200's 4.8 TB/s."""
    one = made("H200").step_s(ar_step([(100, 1, True)]))
    assert 0.0013 < one < 0.004
    per_token = made("H200").stages["thinker"].block_bytes["kv"] / 16
    assert per_token == 96 * 1024


def test_a_decode_step_by_hand() -> None:
    """Memory brings 0.75 * 4.8 TB/s. A layer reads the weights of q, k, v and o, of the router and of eight
    experts, in bf16, and for each token of the past 2 * 4 * 128 elements; the head's are read once."""
    projections, router, expert = 2048 * 128 * 2 * (32 + 4), 2048 * 128, 3 * 2048 * 768
    layer_us = 10 + 2 * (projections + router + 8 * expert) / 3.6e6
    past_us = 1000 * 2 * (2 * 4 * 128) / 3.6e6
    head_us = 2 * 152_064 * 2048 / 3.6e6
    features = ArFeatures(num_tokens=1, decode_load=1000, decode_rows=1, emits=1)
    assert (layer_us, past_us, head_us) == pytest.approx((41.6029, 0.56889, 173.015), rel=1e-5)
    us = 48 * (layer_us + past_us) + head_us + 400
    assert 1e6 * decoder(made("H200")).seconds(features) == pytest.approx(us, rel=1e-9)
    assert us == pytest.approx(2597.26, abs=0.01)


def test_a_prompt_s_step_by_hand() -> None:
    """Products take 0.6 * 989 TFLOPS, two for a weight and token; attention 0.5 of them, four for a pair of
    tokens and element of a head: scores and values."""
    weights = 2048 * 128 * 2 * (32 + 4) + 2048 * 128 + 8 * 3 * 2048 * 768
    layer_us = 10 + 2 * 2048 * weights / 593.4e6
    pairs_us = 2048 * 2049 // 2 * 4 * 32 * 128 / 494.5e6
    features = ArFeatures(num_tokens=2048, prefill_load=2048 * 2049 // 2, prefill_rows=1, emits=1)
    assert (layer_us, pairs_us) == pytest.approx((402.656, 69.5177), rel=1e-5)
    us = 48 * (layer_us + pairs_us) + 173.01504 + 400
    assert 1e6 * decoder(made("H200")).seconds(features) == pytest.approx(us, rel=1e-9)


@pytest.mark.parametrize(("ranks", "crossings"), [(2, 1.0), (4, 1.5)])
def test_collectives_by_hand(ranks: int, crossings: float) -> None:
    """A ring over links of 0.8 * 450 GB/s, twice a layer, with 2048 bf16 elements a token."""
    shared = made("H200", ranks)
    us = 15 + crossings * 64 * 2048 * 2 / 360e3
    assert 1e6 * shared.links["ranks"].seconds(64 * 2048 * 2) == pytest.approx(us, rel=1e-9)
    collectives = decoder(shared).collectives
    assert collectives is not None
    assert 1e6 * collectives.seconds(64) == pytest.approx(2 * us, rel=1e-9)


def test_names_and_numbers_that_mean_nothing_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"no datasheet of 'H900'; did you mean H200\? There are H200.*RTX-4090"
    ):
        made("H900")
    with pytest.raises(ConfigError, match="0 devices"):
        made("H200", 0)
    with pytest.raises(ConfigError, match="8 devices do not divide the thinker's heads, 28"):
        roofline("H200", find_shape(SECOND), Provenance(), ranks=8)
    three_heads = msgspec.structs.replace(find_shape(RELEASED).stages["thinker"], kv_heads=3)
    with pytest.raises(ConfigError, match="2 devices and the thinker's 3 KV heads don't divide each other"):
        roofline("H200", ModelShape("odd", {"thinker": three_heads}), Provenance(), ranks=2)
    with pytest.raises(
        ConfigError, match=r"no shape of a model 'x'\. There are .*2.5-omni-7b, qwen3-omni-30"
    ):
        find_shape("x")
    assert {SECOND, RELEASED} < set(shape_names())


@pytest.mark.parametrize("name", hardware_names())
def test_every_device_makes_a_profile_that_says_what_it_is(name: str) -> None:
    profile = made(name.lower())
    again = Profile.from_json(profile.to_json())
    assert again == profile
    assert (profile.source, profile.provenance.device, profile.provenance.model) == (
        "roofline",
        name,
        RELEASED,
    )
    assert "not measured" in profile.provenance.notes
    assert all(stage.residuals is None for stage in profile.stages.values())
    steps = [
        ar_step([(100, 1, True)]),
        ar_step([(100, 1, True)], stage="talker"),
        codec_step([(0, 4)]),
        encode_step((image(320, 320),)),
    ]
    assert all(profile.step_s(step) > 0 for step in steps)


@settings(deadline=None)
@given(st.sampled_from(hardware_names()), st.integers(1, 20000), st.integers(0, 5000), st.integers(1, 900))
def test_more_work_never_takes_less(name: str, tokens: int, more: int, rows: int) -> None:
    profile = made(name)
    for stage in ("thinker", "talker"):
        model = decoder(profile, stage)
        fewer = model.seconds(ArFeatures(num_tokens=tokens, emits=rows))
        assert fewer <= model.seconds(ArFeatures(num_tokens=tokens + more, emits=rows + 1))


def test_several_devices_share_the_work_and_pay_for_it() -> None:
    alone, shared = made("H200"), made("H200", 4)
    assert shared.provenance.device == "4 x H200"
    features = ArFeatures(num_tokens=4096, prefill_load=8_000_000, prefill_rows=1)
    quarter = decoder(shared).seconds(features)
    assert decoder(alone).seconds(features) / 4 < quarter < decoder(alone).seconds(features)
    assert decoder(shared).collectives is not None
    assert shared.links["ranks"].seconds(0) > 0
    assert "ranks" not in alone.links


def test_a_stage_that_speaks_pays_for_its_frames() -> None:
    talker = decoder(made("H200"), "talker")
    assert talker.frame is not None
    assert talker.frame.value(1) > 15 * 5 * 10e-6
    assert decoder(made("H200")).frame is None
