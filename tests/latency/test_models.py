"""Predictions are cheap sums of non-negative parts: never negative, and never less for more work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ConfigError
from antiphon.core.plans import CopyBlocks, ints
from antiphon.latency.features import ArFeatures, ar_features, codec_features, encode_features, features_of
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import (
    ArModel,
    AttentionModel,
    CodecModel,
    Collectives,
    EncoderModel,
    LinkModel,
)
from antiphon.latency.profile import Profile, Provenance, Residuals, StageProfile
from latency.steps import ar_models, ar_step, audio, codec_step, encode_step, image, video

ROWS = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 600), st.booleans()), max_size=12)


def test_features_are_those_of_the_paper() -> None:
    step = ar_step([(10, 1, True), (99, 1, True), (5, 3, False)], joins=((2, 20),))
    assert ar_features(step) == ArFeatures(
        num_tokens=5,
        prefill_load=6 + 7 + 8,
        decode_load=11 + 100,
        decode_rows=2,
        emits=2,
        prefill_rows=1,
        joins=1,
        join_tokens=20,
    )


@given(ROWS)
def test_rows_may_be_counted_one_by_one(rows: list[tuple[int, int, bool]]) -> None:
    features = ArFeatures()
    for row in rows:
        features = features.plus(*row)
    assert features == ar_features(ar_step(rows))


WHOLE = ArModel(
    layers=3,
    dense=Ladder((1, 11), (100.0, 200.0)),
    head=Ladder((1, 3), (1000.0, 3000.0)),
    decode=AttentionModel(token_s=7.0, row_s=11.0, base_s=13.0),
    pair_s=5.0,
    chunk_s=17.0,
    frame=Ladder((1, 3), (20_000.0, 40_000.0)),
    step_s=29.0,
    row_s=31.0,
    join_s=37.0,
    join_token_s=41.0,
    collectives=Collectives(LinkModel(19.0, 23.0), count=2, token_bytes=4),
)


@pytest.mark.parametrize(
    ("features", "layer_s", "once_s"),
    [
        (ArFeatures(), 0, 29),
        # f_D = 150 between its knots, gamma = 2 (19 + 23 * 4 * 6)
        (ArFeatures(num_tokens=6), 150 + 1142, 29),
        # eq. (2): 5 * 15 + 17, whatever the number of rows
        (ArFeatures(num_tokens=6, prefill_load=15, prefill_rows=2), 150 + 1142 + 92, 29 + 2 * 31),
        # eq. (3): 7 * 40 + 11 * 3 + 13
        (ArFeatures(num_tokens=6, decode_load=40, decode_rows=3), 150 + 1142 + 326, 29),
        (ArFeatures(emits=2), 0, 29 + 2000 + 30_000),
        (ArFeatures(joins=2, join_tokens=7), 0, 29 + 2 * 37 + 7 * 41),
        (ArFeatures(6, 15, 40, 3, 2, 2, 2, 7), 150 + 1142 + 92 + 326, 29 + 62 + 32_000 + 74 + 287),
    ],
)
def test_a_decoder_s_step_by_hand(features: ArFeatures, layer_s: int, once_s: int) -> None:
    """layers * (f_PA + f_DA + f_D + gamma) + f_head + f_frame, and what comes once: every figure differs."""
    assert WHOLE.layer_s(features) == layer_s
    assert WHOLE.seconds(features) == 3 * layer_s + once_s


@given(ar_models(), ROWS, st.integers(0, 4000), st.integers(1, 600), st.booleans())
def test_another_row_never_makes_a_step_shorter(
    model: ArModel, rows: list[tuple[int, int, bool]], start: int, count: int, emits: bool
) -> None:
    before = ar_features(ar_step(rows))
    after = before.plus(start, count, emits)
    assert 0 <= model.seconds(before) <= model.seconds(after) * (1 + 1e-12)


@given(ar_models(), ROWS, st.integers(0, 4000), st.integers(2, 600))
def test_a_longer_chunk_never_makes_a_step_shorter(
    model: ArModel, rows: list[tuple[int, int, bool]], start: int, count: int
) -> None:
    """What the binary search of OmniServe §3.3.4 rests on."""
    before = ar_features(ar_step(rows))
    shorter = model.seconds(before.plus(start, count, False))
    assert shorter <= model.seconds(before.plus(start, count + 1, False)) * (1 + 1e-12)
    assert shorter <= model.seconds(before.plus(start + 1, count, False)) * (1 + 1e-12)


def test_what_a_codec_step_is_made_of() -> None:
    step = codec_step([(0, 2), (1, 4), (2, 4)], joins=[0])
    assert codec_features(step) == (3, 10, 2)
    assert codec_features(codec_step([(0, 4), (1, 4)], joins=[0])).groups == 2
    assert CodecModel(1.0, 2.0, 3.0, 4.0).seconds(codec_features(step)) == 1 + 2 * 2 + 3 * 3 + 4 * 10


def test_what_an_encoder_step_is_made_of() -> None:
    features = encode_features((audio(2.0), image(64, 32), video(64, 64, 3, 1.0)))
    assert features == (2, 39.0, 2, 2 + 2 * 128, 4 + 2 * 128**2, 64 * 32 + 3 * 64 * 64)
    assert EncoderModel(1.0, 10.0, 0.1, 100.0, 1.0, 0.5, 0.001).seconds(features) == pytest.approx(
        1 + 20 + 3.9 + 200 + 258 + 0.5 * (4 + 2 * 128**2) + 14.336
    )
    large = encode_features((image(64, 64),), most_tokens=3)
    assert (large.visual_tokens, large.visual_load, large.visual_pixels) == (3, 9, 4096)


def a_profile() -> Profile:
    dense = {"at": (1, 8), "values": (0.001, 0.002)}
    return Profile.from_json(
        b'{"stages": {"thinker": {"model": {"type": "ar", "layers": 2, "dense": '
        + str(dense).replace("'", '"').replace("(", "[").replace(")", "]").encode()
        + b', "head": {"at": [1], "values": [0.0]}, "decode": {}}}}, "links": {"host": {"alpha_s": 1.0, '
        b'"beta_s": 0.5}}, "source": "roofline", "provenance": {"model": "m"}}'
    )


def test_a_profile_answers_for_its_stages_and_names_them_otherwise() -> None:
    profile = a_profile()
    assert profile.step_s(ar_step([(3, 1, True)], stage="thinker")) == pytest.approx(0.002)
    with pytest.raises(ConfigError, match=r"no stage 'talker' .*thinker.*antiphon profile"):
        profile.step_s(ar_step([(3, 1, True)], stage="talker"))
    with pytest.raises(ConfigError, match="another kind"):
        profile.step_s(codec_step([(0, 1)], stage="thinker"))
    with pytest.raises(ConfigError, match="another kind"):
        profile.step_s(encode_step((audio(1.0),), stage="thinker"))


def test_a_profile_answers_for_copies() -> None:
    profile, none = a_profile(), ints([])
    assert profile.copy_s(CopyBlocks("thinker", "kv", "host", none, none, 0), 4) == 3.0
    with pytest.raises(ConfigError, match=r"no link to 'device'; it has host"):
        profile.copy_s(CopyBlocks("thinker", "kv", "device", none, none, 0), 4)


@given(ar_models(), st.floats(0, 1), st.integers(0, 99))
def test_a_profile_survives_its_file(model: ArModel, mean: float, steps: int) -> None:
    profile = Profile(
        stages={
            "thinker": StageProfile(model, {"kv": 512}, AttentionModel(1e-6), Residuals(mean, mean, steps)),
            "code2wav": StageProfile(CodecModel(1e-3)),
            "encoders": StageProfile(EncoderModel(1e-3)),
        },
        links={"host": LinkModel(1e-5, 1e-9)},
        source="measured",
        provenance=Provenance("antiphon profile x", "abc", "m", "x", "cpu", "float32", 2, "now", ""),
        decide_s=1e-4,
    )
    again = Profile.from_json(profile.to_json())
    assert again == profile
    step = ar_step([(3, 1, True), (0, 7, False)], stage="thinker")
    assert again.step_s(step) == profile.step_s(step) == model.seconds(ar_features(step))


def test_a_file_that_is_no_profile_is_refused_in_words() -> None:
    for data in (
        b"{}",
        b"no json",
        a_profile().to_json().replace(b"[\n            1,", b"[\n            9,"),
    ):
        with pytest.raises(ConfigError, match=r"x\.json is not a latency profile"):
            Profile.from_json(data, "x.json")
    with pytest.raises(ConfigError, match="has version 9"):
        Profile.from_json(a_profile().to_json().replace(b'"version": 1', b'"version": 9'))


def test_each_step_has_features_of_its_kind() -> None:
    assert features_of(ar_step([])) == ArFeatures()
    assert features_of(codec_step([(0, 3)])).frames == 3  # type: ignore[union-attr]
    assert features_of(encode_step((audio(1.0),))).audio == 1  # type: ignore[union-attr]
    assert np.isclose(AttentionModel(1.0, 2.0, 3.0).seconds(5, 0), 0.0)
