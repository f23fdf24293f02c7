"""M-RoPE positions against transformers' get_rope_index on random prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.counts import num_audio_tokens, num_image_tokens
from antiphon.models.qwen3_omni.positions import Span, mrope_positions
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


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.integers(1, 5), height=sizes, width=sizes, seconds=st.sampled_from([0.5, 1.0, 0.3]))
def test_video_positions_equal_transformers(
    reference: Any, config: Qwen3OmniConfig, frames: int, height: int, width: int, seconds: float
) -> None:
    tokens, grid = config.tokens, (frames, height, width)
    pads = [tokens.video] * num_image_tokens(grid)
    scene = Scene(config).text([9, 9, tokens.vision_start, *pads, tokens.vision_end, 9])
    positions, following = mrope_positions(len(scene.ids), [Span(3, grid, seconds)])
    expected, delta = theirs(
        reference, scene, video_grid_thw=torch.tensor([grid]), second_per_grids=torch.tensor([seconds])
    )
    np.testing.assert_allclose(positions, expected, rtol=1e-6)
    assert following - len(scene.ids) == pytest.approx(delta)


def test_text_alone_counts_up() -> None:
    positions, following = mrope_positions(4)
    assert positions.tolist() == [[0, 1, 2, 3]] * 3
    assert following == 4


@pytest.mark.parametrize("spans", [[Span(3, (1, 4, 4))], [Span(0, (1, 4, 4)), Span(2, (1, 2, 2))]])
def test_a_span_that_does_not_fit_is_refused(spans: list[Span]) -> None:
    with pytest.raises(ValueError, match="doesn't fit"):
        mrope_positions(6, spans)


@given(frames=st.integers(1, 3000))
def test_audio_tokens_equal_transformers(frames: int) -> None:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    assert num_audio_tokens(frames) == modeling._get_feat_extract_output_lengths(frames)
