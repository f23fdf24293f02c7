"""M-RoPE positions against transformers' get_rope_index on random prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor

from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen_media.positions import MediumSpan, mrope_positions
from antiphon.models.qwen_media.preprocess_shapes import num_audio_tokens
from models.scenes import Scene

sizes = st.integers(1, 5).map(lambda n: 2 * n)
pieces = st.one_of(
    st.tuples(st.just("text"), st.integers(1, 9)),
    st.tuples(st.just("audio"), st.integers(1, 450)),
    st.tuples(st.just("image"), st.tuples(st.just(1), sizes, sizes)),
)


def build(config: Qwen3OmniConfig, layout: list[tuple[str, Any]]) -> Scene:
    scene = Scene(config)
    for kind, value in layout:
        if kind == "text":
            scene.text([9] * value)
        else:
            getattr(scene, kind)(value)
    return scene


def theirs(reference: Any, scene: Scene, **more: Any) -> tuple[np.ndarray, float]:
    kwargs = scene.kwargs()
    frames = kwargs.get("feature_attention_mask")
    positions, delta = reference.thinker.get_rope_index(
        kwargs["input_ids"],
        kwargs.get("image_grid_thw"),
        attention_mask=kwargs["attention_mask"],
        audio_seqlens=None if frames is None else frames.sum(-1),
        **more,
    )
    return positions[:, 0].numpy(), float(delta)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=st.lists(pieces, min_size=1, max_size=7))
def test_positions_equal_transformers(
    reference: Any, config: Qwen3OmniConfig, layout: list[tuple[str, Any]]
) -> None:
    scene = build(config, layout)
    positions, following = mrope_positions(len(scene.ids), scene.spans, config.positions_per_second)
    expected, delta = theirs(reference, scene)
    assert np.array_equal(positions, expected)
    assert following - len(scene.ids) == delta


rates = st.sampled_from([0.5, 1.0, 0.3, 2 / 3, 2.0, 2 / 29.97])
grids = st.tuples(st.integers(1, 6), sizes, sizes)
silent = st.tuples(st.just("video"), st.tuples(grids, rates))
sounding = st.tuples(st.just("film"), st.tuples(grids, rates, st.integers(1, 450)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=st.lists(st.one_of(pieces, silent), min_size=1, max_size=7))
def test_positions_with_videos_equal_transformers(
    reference: Any, config: Qwen3OmniConfig, layout: list[tuple[str, Any]]
) -> None:
    check_equal(reference, build(config, layout), config)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=st.lists(st.one_of(pieces, sounding), min_size=1, max_size=6))
def test_positions_of_videos_with_sound_equal_transformers(
    reference: Any, config: Qwen3OmniConfig, layout: list[tuple[str, Any]]
) -> None:
    check_equal(reference, build(config, layout), config, use_audio_in_video=True)


def check_equal(reference: Any, scene: Scene, config: Qwen3OmniConfig, **more: Any) -> None:
    """To the bit."""
    positions, following = mrope_positions(
        len(scene.ids), scene.spans + scene.sounds, config.positions_per_second
    )
    films = [span for span in scene.spans if span.grid[0] and scene.ids[span.start] != config.tokens.image]
    expected, delta = theirs(
        reference,
        scene,
        video_grid_thw=torch.tensor([span.grid for span in films]) if films else None,
        second_per_grids=torch.tensor([span.seconds_per_frame for span in films]),
        **more,
    )
    assert np.array_equal(positions, expected)
    assert np.float32(following - len(scene.ids)) == np.float32(delta)


@given(
    grid=grids, seconds=st.sampled_from([0.5, 1.0, 0.3, 2 / 3, 1 / 13, 2 / 29.97]), sound=st.integers(1, 90)
)
def test_order_equals_the_reference_processor(grid: tuple[int, int, int], seconds: float, sound: int) -> None:
    span = MediumSpan(0, grid, seconds, audio_tokens=sound)
    ours = "".join("v" if place < span.visual_tokens else "a" for place in span.order(13))
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2),
        **{f"{name}_token": name[0] for name in ("video", "audio")},
        audio_bos_token="<",
        audio_eos_token=">",
    )
    theirs = Qwen3OmniMoeProcessor.replace_video_with_audio_token(
        processor,
        {"video_grid_thw": np.array([grid]), "video_second_per_grid": [seconds]},
        0,
        {"num_audio_tokens": [sound]},
        0,
        position_id_per_seconds=13.0,
    )
    assert f"<{ours}>" == theirs
    assert (np.sort(span.order(13)) == np.arange(span.num_tokens)).all()


def test_silent_and_sounding_videos_side_by_side(reference: Any, config: Qwen3OmniConfig) -> None:
    """transformers knows only one kind in a prompt; here each is what it is alone, moved behind the other."""
    first = build(config, [("text", 3), ("video", ((2, 4, 6), 0.3))])
    second = build(config, [("film", ((3, 4, 4), 0.5, 130)), ("text", 4)])
    check_equal(reference, first, config)
    check_equal(reference, second, config, use_audio_in_video=True)
    head, following = mrope_positions(len(first.ids), first.spans)
    tail, _ = mrope_positions(len(second.ids), second.spans)
    both = build(
        config, [("text", 3), ("video", ((2, 4, 6), 0.3)), ("film", ((3, 4, 4), 0.5, 130)), ("text", 4)]
    )
    positions, _ = mrope_positions(len(both.ids), both.spans)
    assert np.array_equal(positions[:, : len(first.ids)], head)
    np.testing.assert_allclose(positions[:, len(first.ids) :], tail + following, rtol=1e-6)


def test_text_alone_counts_up() -> None:
    positions, following = mrope_positions(4)
    assert positions.tolist() == [[0, 1, 2, 3]] * 3
    assert following == 4


@pytest.mark.parametrize(
    "spans", [[MediumSpan(3, (1, 4, 4))], [MediumSpan(0, (1, 4, 4)), MediumSpan(2, (1, 2, 2))]]
)
def test_a_span_that_does_not_fit_is_refused(spans: list[MediumSpan]) -> None:
    with pytest.raises(ValueError, match="doesn't fit"):
        mrope_positions(6, spans)


@given(frames=st.integers(1, 3000))
def test_audio_tokens_equal_transformers(frames: int) -> None:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    assert num_audio_tokens(frames) == modeling._get_feat_extract_output_lengths(frames)
