"""Synthetic voices: the same for a seed, and voice to a voice detector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from silero_vad import load_silero_vad

from antiphon.bench.voice import Voices, silence
from antiphon.core.errors import ConfigError


@pytest.fixture(scope="module")
def voices() -> Voices:
    return Voices.synthetic()


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize("seed", range(4))
def test_a_detector_takes_it_for_speech(voices: Voices, seed: int) -> None:
    detector = load_silero_vad()
    pcm = silence(0.5) + voices.speak(3.0, seed, "turn") + silence(0.5)
    samples = soxr.resample(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, 24_000, 16_000)
    frames = [samples[at : at + 512].copy() for at in range(0, len(samples) - 511, 512)]
    likely = np.array([detector(torch.from_numpy(frame), 16_000).item() for frame in frames]) > 0.5
    assert likely[18:108].mean() > 0.85
    assert not likely[:14].any()
    assert not likely[-6:].any()


def test_a_seed_says_the_same(voices: Voices) -> None:
    assert voices.speak(1.0, 5, "a") == voices.speak(1.0, 5, "a") == Voices.synthetic().speak(1.0, 5, "a")
    assert voices.speak(1.0, 5, "a") != voices.speak(1.0, 5, "b")
    assert voices.speak(1.0, 5, "a") != voices.speak(1.0, 6, "a")
    assert len(voices.speak(20.0, 1)) == 20 * 48_000
    assert voices.speak(0.0, 1) == b""


def test_recordings(tmp_path: Path) -> None:
    tone = np.sin(np.arange(8000) / 5)
    soundfile.write(tmp_path / "a.wav", np.stack([tone, 0 * tone], 1), 8000)
    pcm = np.frombuffer(Voices.recorded(tmp_path).speak(2.5, 0), "<i2")
    assert len(pcm) == 60_000
    assert np.abs(pcm[1000:-1000]).max() > 30_000
    with pytest.raises(ConfigError, match=r"no .wav"):
        Voices.recorded(tmp_path / "none")
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    with pytest.raises(ConfigError, match="cannot read"):
        Voices.recorded(tmp_path)
