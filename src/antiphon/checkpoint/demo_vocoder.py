"""Weights of the demo vocoder: every branch audible, the waveform bounded.

A vocoder with ordinary random weights is silent or clips everywhere, and then waveform checks prove nothing.
Works in place on a transformers code2wav module; knows nothing of files or of the other parts.
"""

from __future__ import annotations

import math
from typing import Any

import torch

WAVEFORM_RMS, MURMUR_RMS = 0.1, 0.06
"""Of full scale; the murmur peaks at about ten times its rms and should not clip."""
BRANCH_SCALE = 0.3
"""Layer scales and ConvNeXt gammas: large enough that every layer shows in the waveform."""
MURMUR_UNIT_GAIN = 0.1
MURMUR_CYCLES = ((2, 3), (0, 0, 1, 2), (0,), (0,))
"""Tones of each sample-rate change, in cycles per input sample; output channels take turns. Input rates are
50, 400, 2000 and 8000 Hz, so these hum at 100 and 150 Hz with overtones up to about 1 kHz. Whole cycles keep
overlapping kernels in phase."""
MURMUR_LAST = (1.0, 1.0, 1.0, 0.0, -1.0, -1.0, -1.0)
"""Weakens what lies below hearing and above speech."""
NUM_CALIBRATION_FRAMES = 64


@torch.no_grad()
def fill_vocoder(vocoder: Any, generator: torch.Generator, *, murmur: bool) -> None:
    """Fill every parameter; `murmur` smooths the upsampling kernels, so that it hums rather than hisses."""
    for name, parameter in sorted(vocoder.named_parameters()):
        _fill(name, parameter, vocoder.config.num_quantizers, generator)
    if murmur:
        _smooth(vocoder)
    _set_loudness(vocoder, generator, MURMUR_RMS if murmur else WAVEFORM_RMS)


def _fill(name: str, parameter: torch.Tensor, num_quantizers: int, generator: torch.Generator) -> None:
    if name.endswith(("gamma", "layer_scale.scale")):
        parameter.normal_(BRANCH_SCALE, 0.1 * BRANCH_SCALE, generator=generator)
    elif name == "code_embedding.weight":
        # The embeddings of all groups are averaged; this keeps the mean at unit variance.
        parameter.normal_(0, math.sqrt(num_quantizers), generator=generator)
    elif parameter.dim() >= 2:
        parameter.normal_(0, _fan_in(name, parameter) ** -0.5, generator=generator)
    elif "norm" in name and name.endswith("weight"):
        parameter.normal_(1, 0.1, generator=generator)
    else:
        parameter.normal_(0, 0.02, generator=generator)


def _is_transposed(name: str) -> bool:
    return "block.1.conv" in name or (name.startswith("upsample") and ".0.conv" in name)


def _fan_in(name: str, weight: torch.Tensor) -> int:
    """Inputs that meet in one output; a transposed convolution here overlaps at most two of them in time."""
    return weight.shape[0] * 2 if _is_transposed(name) else weight[0].numel()


def _smooth(vocoder: Any) -> None:
    """Turn the sample-rate changes into soft tones, and let the units after them add only little
    roughness."""
    for block, cycles in zip(vocoder.decoder[1:-2], MURMUR_CYCLES, strict=True):
        weight = block.block[1].conv.weight
        _, channels, taps = weight.shape
        turn = 2 * math.pi * torch.arange(taps) / (taps // 2)
        tones = torch.stack([(turn * cycles[channel % len(cycles)]).cos() for channel in range(channels)])
        mixing = weight.mean(-1, keepdim=True) * math.sqrt(taps)
        weight.copy_(mixing * tones * torch.hann_window(taps) * math.sqrt(2))
        for unit in block.block[2:]:
            unit.conv2.conv.weight.mul_(MURMUR_UNIT_GAIN)
    last = vocoder.decoder[-1].conv.weight
    last.copy_(last.mean(-1, keepdim=True) * torch.tensor(MURMUR_LAST))


def _set_loudness(vocoder: Any, generator: torch.Generator, rms: float) -> None:
    config = vocoder.config
    shape = (1, config.num_quantizers, NUM_CALIBRATION_FRAMES)
    codes = torch.randint(0, config.codebook_size, shape, generator=generator)
    last, heard = vocoder.decoder[-1].conv, []
    hook = last.register_forward_hook(lambda _module, _inputs, output: heard.append(output))
    try:
        vocoder(codes)
    finally:
        hook.remove()
    gain = rms / heard[0].std()
    last.weight.mul_(gain)
    last.bias.copy_((last.bias - heard[0].mean()) * gain)
