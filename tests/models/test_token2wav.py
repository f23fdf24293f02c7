"""token2wav's windows: which codes sound when, and that they sound alike whoever is beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from antiphon.checkpoint.demo import make_demo
from antiphon.checkpoint.files import open_checkpoint
from antiphon.core.errors import CheckpointError
from antiphon.models.qwen2_5_omni.family import FAMILY
from antiphon.models.qwen2_5_omni.flow import start_noise
from antiphon.models.qwen2_5_omni.token2wav import Token2Wav, Window, next_window
from antiphon.models.qwen2_5_omni.voices import load_voices
from antiphon.nn.stage_source import StageSource

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("q25") / "tiny", model="qwen2_5_omni", size="tiny", seed=5)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Token2Wav:
    opened = open_checkpoint(str(checkpoint))
    config = FAMILY.read_config(opened.config)
    tensors = opened.read(FAMILY.tensor_names("token2wav", config))
    source = StageSource("token2wav", tensors, config)
    return FAMILY.load_stage(source, (torch.device("cpu"), torch.float64), checkpoint)


def test_a_block_sounds_once_two_more_are_there() -> None:
    assert next_window(0, 35, BLOCK, is_last=False) is None
    assert next_window(0, 36, BLOCK, is_last=False) == Window(0, 36, 0, 12)
    assert next_window(12, 47, BLOCK, is_last=False) is None
    assert next_window(60, 110, BLOCK, is_last=False) == Window(24, 108, 60, 84)
    assert next_window(60, 110, BLOCK, is_last=True) == Window(24, 110, 60, 110)
    assert next_window(60, 60, BLOCK, is_last=True) is None


def test_noise_is_of_the_place_alone() -> None:
    whole = start_noise(0, 100, 8)
    assert torch.equal(start_noise(30, 75, 8), whole[30:75])
    assert abs(float(start_noise(0, 4800, 8).std()) - 1) < 0.02
    assert not torch.equal(whole[:24], whole[24:48])


def streamed(model: Token2Wav, parts: list[list[np.ndarray]], voices: list[str]) -> list[np.ndarray]:
    """Streams fed side by side, a part a step; each ends with its last part."""
    streams = [model.open(voice) for voice in voices]
    heard: list[list[torch.Tensor]] = [[] for _ in streams]
    for step in range(max(map(len, parts))):
        here = [i for i, mine in enumerate(parts) if step < len(mine)]
        ends = [step == len(parts[i]) - 1 for i in here]
        with torch.inference_mode():
            sounds = model.decode([streams[i] for i in here], [parts[i][step][:, None] for i in here], ends)
        for i, sound in zip(here, sounds, strict=True):
            heard[i].append(sound)
    return [torch.cat(pieces).numpy() for pieces in heard]


def test_streams_side_by_side_sound_as_alone(model: Token2Wav) -> None:
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 256, 100), rng.integers(0, 256, 100), rng.integers(0, 256, 41)]
    parts = [np.split(codes[0], [36, 60, 84]), np.split(codes[1], [36, 60, 84]), np.split(codes[2], [36])]
    voices = ["chelsie", "ethan", "nobody"]
    together = streamed(model, parts, voices)
    assert [len(sound) for sound in together] == [480 * len(c) for c in codes]
    for i in range(3):
        (alone,) = streamed(model, [parts[i]], [voices[i]])
        np.testing.assert_allclose(together[i], alone, atol=2e-5)


def test_an_end_without_codes_brings_what_was_held_back(model: Token2Wav) -> None:
    codes = np.random.default_rng(1).integers(0, 256, 40)
    (with_end,) = streamed(model, [np.split(codes, [36])], ["ethan"])
    (end_apart,) = streamed(model, [np.split(codes, [36, 40])], ["ethan"])
    assert len(with_end) == len(end_apart) == 480 * 40
    np.testing.assert_allclose(with_end, end_apart, atol=1e-3)


def test_voices_are_tensors_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    assert list(load_voices(checkpoint)) == ["chelsie", "ethan"]
    with pytest.raises(CheckpointError, match=r"no spk_dict\.pt"):
        load_voices(tmp_path)
    torch.save({"evil": print}, tmp_path / "spk_dict.pt")
    with pytest.raises(CheckpointError, match="does not hold voices"):
        load_voices(tmp_path)
