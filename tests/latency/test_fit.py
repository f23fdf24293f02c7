"""Fits find the figures that made the samples, and Algorithm 1 the ladder that was measured."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.rng import stream
from antiphon.latency.features import ArFeatures, CodecFeatures, EncodeFeatures
from antiphon.latency.fit import (
    dense_threshold,
    fit_ar,
    fit_attention,
    fit_codec,
    fit_encoder,
    fit_link,
    nnls,
    residuals,
)
from antiphon.latency.ladder import Ladder, interpolate
from antiphon.latency.models import ArModel, AttentionModel, CodecModel, EncoderModel, LinkModel

POSITIVE = st.floats(1e-3, 10.0)


@given(st.integers(0, 10**6), st.integers(1, 8), st.booleans())
def test_no_other_non_negative_vector_fits_better(seed: int, width: int, thin: bool) -> None:
    """Its gradient vanishes where x is positive and points inwards where it is zero."""
    rng = stream(seed, "nnls")
    matrix, target = rng.normal(size=(width + 4, width)), rng.normal(size=width + 4)
    if thin:
        matrix[:, 0] = matrix[:, -1]
    x = nnls(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    assert (x >= 0).all()
    assert (gradient < 1e-6).all()
    assert (np.abs(gradient[x > 0]) < 1e-6).all()


def test_columns_of_zeros_and_no_columns_are_no_trouble() -> None:
    assert nnls(np.zeros((3, 2)), np.ones(3)).tolist() == [0.0, 0.0]
    assert nnls(np.zeros((3, 0)), np.ones(3)).tolist() == []


@given(st.lists(POSITIVE, min_size=4, max_size=4))
def test_a_vocoder_is_found_again(figures: list[float]) -> None:
    model = CodecModel(*figures)
    rows = [CodecFeatures(s, f, g) for s in (1, 2, 5) for f in (4, 9, 20) for g in (1, 2)]
    found = fit_codec([(row, model.seconds(row)) for row in rows])
    assert found.frame_s == pytest.approx(model.frame_s, rel=1e-6)
    for row in rows:
        assert found.seconds(row) == pytest.approx(model.seconds(row), rel=1e-6)


@given(st.lists(POSITIVE, min_size=7, max_size=7), st.integers(0, 10**6))
def test_encoders_are_found_again(figures: list[float], seed: int) -> None:
    model, rng = EncoderModel(*figures), stream(seed, "encoder")
    rows = [EncodeFeatures(*rng.integers(0, 9, 6).tolist()) for _ in range(60)]
    found = fit_encoder([(row, model.seconds(row)) for row in rows])
    for row in rows:
        assert found.seconds(row) == pytest.approx(model.seconds(row), rel=1e-5)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_links_and_attention_are_found_again(a: float, b: float, c: float) -> None:
    link = LinkModel(a, b)
    found = fit_link([(n, link.seconds(n)) for n in (1, 10, 100)])
    assert (found.alpha_s, found.beta_s) == (pytest.approx(a, rel=1e-6), pytest.approx(b, rel=1e-6))
    attention = AttentionModel(a, b, c)
    grid = [(load, rows) for load in (8, 90, 1000) for rows in (1, 4, 8)]
    again = fit_attention([(*one, attention.seconds(*one)) for one in grid])
    for one in grid:
        assert again.seconds(*one) == pytest.approx(attention.seconds(*one), rel=1e-6)


def drawn(rng: np.random.Generator) -> ArFeatures:
    features = ArFeatures()
    for _ in range(int(rng.integers(0, 9))):
        features = features.plus(int(rng.integers(0, 2000)), 1, True)
    for _ in range(int(rng.integers(0 if features.emits else 1, 3))):
        features = features.plus(int(rng.integers(0, 500)), int(rng.integers(2, 200)), bool(rng.integers(2)))
    joins = int(rng.integers(0, features.prefill_rows + 1))
    return features._replace(joins=joins, join_tokens=40 * joins)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.booleans())
def test_a_decoder_is_found_again(seed: int, has_frame: bool) -> None:
    rng = stream(seed, "ar")
    at = (1, 16, 64, 256, 500)
    draws = Ladder((1, 4, 16), (0.002, 0.004, 0.01))
    nothing = Ladder((1,), (0.0,))
    true = ArModel(
        layers=4,
        dense=Ladder(at, tuple(np.cumsum(rng.uniform(0.0, 0.01, 5)).tolist())),
        head=nothing if has_frame else draws,
        decode=AttentionModel(1e-6, 1e-4, 2e-4),
        pair_s=1e-7,
        chunk_s=1e-4,
        frame=draws if has_frame else None,
        step_s=3e-4,
        row_s=2e-4,
        join_s=1e-3,
        join_token_s=1e-6,
    )
    samples = [(features, true.seconds(features)) for features in (drawn(rng) for _ in range(400))]
    found = fit_ar(
        samples, layers=4, dense_at=at, draws_at=(1, 4, 16), has_frame=has_frame, step_s=true.step_s
    )
    assert (found.frame is not None) == has_frame
    for features, seconds in samples:
        assert found.seconds(features) == pytest.approx(seconds, rel=1e-4)
    assert found.pair_s == pytest.approx(true.pair_s, rel=1e-3)
    assert found.decode.token_s == pytest.approx(true.decode.token_s, rel=1e-3)


def test_residuals() -> None:
    found = residuals([(1.1, 1.0), (0.5, 1.0), (2.0, 2.0)])
    assert found is not None
    assert (found.mean, found.num_steps) == (pytest.approx(0.2), 3)
    assert found.p90 == pytest.approx(0.42)
    assert residuals([]) is None


class Stairs:
    """Flat but for spikes: from each of `spikes` on, one more."""

    def __init__(self, spikes: list[int]) -> None:
        self.spikes = sorted(spikes)
        self.asked: list[int] = []

    def seconds(self, n: int) -> float:
        return 1.0 + bisect_right(self.spikes, n)

    def measure(self, n: int) -> float:
        self.asked.append(n)
        return self.seconds(n)


@given(st.lists(st.integers(2, 4096), max_size=5, unique=True))
def test_algorithm_1_finds_every_spike_in_a_few_measurements_each(spikes: list[int]) -> None:
    stairs = Stairs(spikes)
    ladder = interpolate(stairs.measure, 1, 4096, threshold=0.5)
    for n in range(1, 4097):
        assert abs(ladder.value(n) - stairs.seconds(n)) <= 0.5
    assert len(stairs.asked) == len(set(stairs.asked))
    assert len(stairs.asked) <= 2 + 2 * 13 * len(spikes)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.floats(0.05, 5))
def test_algorithm_1_is_never_off_by_more_than_the_threshold(rises: list[float], threshold: float) -> None:
    values = np.cumsum(rises).tolist()
    ladder = interpolate(lambda n: values[n - 1], 1, len(values), threshold)
    for n, value in enumerate(values, 1):
        assert abs(ladder.value(n) - value) <= threshold + 1e-9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.0, 2.0))
def test_a_thinned_ladder_is_never_far_from_any_knot(rises: list[float], tolerance: float) -> None:
    ladder = Ladder(tuple(range(1, len(rises) + 1)), tuple(np.cumsum(rises).tolist()))
    thin = ladder.thinned(tolerance)
    assert set(thin.at) <= set(ladder.at)
    for n, value in zip(ladder.at, ladder.values, strict=True):
        assert abs(thin.value(n) - value) <= tolerance + 1e-9


def test_what_lies_on_a_line_needs_two_knots() -> None:
    assert Ladder((1, 5, 9, 10), (1.0, 5.0, 9.0, 10.0)).thinned(1e-9).at == (1, 10)


def test_noise_makes_no_ladder_fall() -> None:
    assert Ladder.of([(4, 2.0), (1, 3.0), (8, 5.0)]).values == (3.0, 3.0, 5.0)


def test_a_ladder_goes_on_behind_its_knots() -> None:
    ladder = Ladder((10, 20), (1.0, 2.0))
    assert [ladder.value(n) for n in (0, 1, 10, 15, 20, 40)] == [0.0, 1.0, 1.0, 1.5, 2.0, 4.0]
    assert Ladder((10,), (1.0,)).value(99) == 1.0


def test_the_threshold_is_the_papers_or_a_share_of_the_most() -> None:
    assert dense_threshold(lambda n: 1.0 + n / 100, 200, 0.0) == pytest.approx(0.15)
    assert dense_threshold(lambda n: n / 100, 1000, 0.05) == pytest.approx(0.5)
    assert dense_threshold(lambda n: n / 100, 8, 0.01) == pytest.approx(0.07)
