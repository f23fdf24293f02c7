"""VITS against transformers': frames, sound, and sound in windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import VitsModel

from antiphon.core.errors import CheckpointError
from antiphon.models.cascade.vits import Vits
from antiphon.models.cascade.vits_layout import VitsConfig, voice_layout
from antiphon.models.layout import Layout

PHRASES = [[0, 5, 0, 9, 0], [i // 2 % 33 + 1 if i % 2 else 0 for i in range(119)], [7]]


def read(path: Path) -> tuple[VitsConfig, dict[str, torch.Tensor]]:
    config = VitsConfig.from_dict(json.loads((path / "config.json").read_text()))
    return config, load_file(path / "model.safetensors")


def load(config: VitsConfig, tensors: dict[str, torch.Tensor]) -> Vits:
    layout = Layout()
    voice_layout(layout, config)
    return Vits(config, layout.fill(tensors, "cpu", torch.float64))


@pytest.fixture(scope="module")
def voice(cascade_checkpoint: Path) -> Vits:
    return load(*read(cascade_checkpoint / "voice"))


@pytest.fixture(scope="module")
def reference(cascade_checkpoint: Path) -> Any:
    model = VitsModel.from_pretrained(cascade_checkpoint / "voice", dtype=torch.float64).eval()
    return model.requires_grad_(False)


@pytest.mark.parametrize("symbols", PHRASES)
def test_a_phrase_sounds_as_transformers_says_it(voice: Vits, reference: Any, symbols: list[int]):
    expected = reference(torch.tensor([symbols]))
    counts, frames = voice.frames(symbols, seed=0)
    assert len(counts) == len(symbols)
    assert sum(counts) == frames.shape[1]
    torch.testing.assert_close(frames, expected.spectrogram[0], atol=1e-9, rtol=0)
    torch.testing.assert_close(voice.sound(frames[None])[0], expected.waveform[0], atol=1e-9, rtol=0)
    assert expected.waveform.abs().max() > 0.01


def test_a_window_with_its_context_sounds_as_all_of_it(voice: Vits):
    _, frames = voice.frames(PHRASES[1], seed=0)
    whole, context, hop = voice.sound(frames[None])[0], voice.config.context, voice.config.hop
    assert frames.shape[1] > 2 * context + 20
    for first, last in ((0, 8), (context + 2, context + 10), (frames.shape[1] - 5, frames.shape[1])):
        low, high = max(first - context, 0), last + context
        window = voice.sound(frames[None, :, low:high])[0]
        part = window[(first - low) * hop :][: (last - first) * hop]
        torch.testing.assert_close(part, whole[first * hop : last * hop], atol=1e-9, rtol=0)


def test_less_context_does_not_do(voice: Vits):
    _, frames = voice.frames(PHRASES[1], seed=0)
    whole, context, hop = voice.sound(frames[None])[0], voice.config.context - 2, voice.config.hop
    first = 20
    window = voice.sound(frames[None, :, first - context : first + 1 + context])[0]
    part = window[context * hop : (context + 1) * hop]
    assert (part - whole[first * hop :][:hop]).abs().max() > 1e-6


def test_frames_are_the_same_however_they_are_asked_for(voice: Vits, monkeypatch: pytest.MonkeyPatch):
    """The first cost no more than they need; all others are made at once, and where little is spared, all."""
    symbols, context = PHRASES[1] * 2, voice.config.flow_context
    _, whole = voice.frames(symbols, seed=0)
    flow, made = voice._flow, []
    monkeypatch.setattr(voice, "_flow", lambda x: made.append(x.shape[1]) or flow(x))
    _, frames = voice.phrase(symbols, seed=0)
    assert len(frames) == whole.shape[1] > 2 * context + 20
    for end in (20, 20, 25, len(frames)):
        torch.testing.assert_close(frames.until(end)[:, :end], whole[:, :end], atol=1e-9, rtol=0)
    assert made == [20 + context, len(frames) - 20 + context]
    made.clear()
    voice.phrase(symbols, seed=0)[1].until(len(frames) - 2 * context)
    assert made == [len(frames)]


def test_less_context_of_the_flow_does_not_do(voice: Vits):
    symbols = PHRASES[1] * 2
    _, whole = voice.frames(symbols, seed=0)
    _, frames = voice.phrase(symbols, seed=0)
    frames._context -= 2
    assert (frames.until(8) - whole[:, :8]).abs().max() > 1e-9


def test_pipers_residual_blocks_have_one_convolution_a_dilation(cascade_checkpoint: Path):
    _, tensors = read(cascade_checkpoint / "voice")
    values = json.loads((cascade_checkpoint / "voice/config.json").read_text())
    config = VitsConfig.from_dict({**values, "resblock_version": 2})
    tensors = {name.replace(".convs1.", ".convs."): tensor.double() for name, tensor in tensors.items()}
    voice = load(config, tensors)
    x = torch.randn(1, 8, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    made, expected = voice._block("decoder.resblocks.0.", x, 3, (1, 3)), x
    for i, dilation in enumerate((1, 3)):
        name = f"decoder.resblocks.0.convs.{i}."
        h = torch.nn.functional.leaky_relu(expected, 0.1)
        weight, bias = tensors[name + "weight"], tensors[name + "bias"]
        expected = expected + torch.nn.functional.conv1d(h, weight, bias, padding=dilation, dilation=dilation)
    torch.testing.assert_close(made, expected)
    assert torch.isfinite(voice.sound(voice.frames([1, 2, 3], 0)[1][None])).all()


def test_noise_is_the_seeds(cascade_checkpoint: Path):
    _, tensors = read(cascade_checkpoint / "voice")
    values = json.loads((cascade_checkpoint / "voice/config.json").read_text())
    voice = load(VitsConfig.from_dict({**values, "noise_scale": 0.5, "noise_scale_duration": 0.1}), tensors)
    first, second, other = (voice.frames(PHRASES[1], seed) for seed in (1, 1, 2))
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    assert first[0] != other[0] or not torch.equal(first[1], other[1])


@pytest.mark.parametrize(
    "change", [{"model_type": "fastspeech"}, {"num_speakers": 4}, {"hidden_act": "gelu"}]
)
def test_another_voice_is_refused(cascade_checkpoint: Path, change: dict[str, Any]):
    values = json.loads((cascade_checkpoint / "voice/config.json").read_text())
    with pytest.raises(CheckpointError, match=f"voice: .*{next(iter(change.values()))}"):
        VitsConfig.from_dict({**values, **change})
