"""Qwen2.5-Omni's recordings: mel frames as its processor makes them, tokens as its tower does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from antiphon.checkpoint.demo_processor import write_processor
from antiphon.models.qwen2_5_omni.audio import AudioFeatures

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processor")
    write_processor(path, "Qwen2_5OmniProcessor", patch_size=14)
    return path


@pytest.mark.parametrize("length", [321, 399, 400, 1600, 16000, 16001, 36931, 480000 - 700, 480000])
def test_mel_equals_that_of_a_recording_padded_to_the_longest(folder: Path, length: int) -> None:
    samples = (0.1 * np.random.default_rng(length).standard_normal(length)).astype(np.float32)
    extractor = WhisperFeatureExtractor(feature_size=128)
    theirs = extractor(
        samples, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="np"
    )
    mask = theirs["attention_mask"][0].astype(bool)
    ours = AudioFeatures(folder).mel(samples).numpy()
    # a product of another size may round its last bit otherwise
    np.testing.assert_allclose(ours, theirs["input_features"][0][:, mask], rtol=0, atol=2e-7)


def test_what_cannot_be_heard_is_refused(folder: Path) -> None:
    audio = AudioFeatures(folder)
    with pytest.raises(ValueError, match="at least 321 samples, got 320"):
        audio.frames(320)
    with pytest.raises(ValueError, match="at most 480000 samples"):
        audio.tokens(480001)
    with pytest.raises(ValueError, match="not finite"):
        audio.mel(np.full(1000, np.nan, np.float32))
    assert [audio.tokens(n) for n in (321, 16000, 32000)] == [1, 25, 50]
