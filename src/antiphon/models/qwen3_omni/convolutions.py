"""The vocoder's convolutions as torch operators, on any device and in any type: x is [b, channels, n]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.qwen3_omni.config import VocoderConfig
from antiphon.models.qwen3_omni.memory import Memory


class Convolutions:
    """From the transformer's frames [b, n, H] to samples [b, samples]."""

    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor]) -> None:
        self._blocks = [*upsamplers(config, params), *decoder_blocks(config, params)]

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        x = x.transpose(1, 2)
        for block in self._blocks:
            x = block(x, memory)
        return x.squeeze(1)


class Conv:
    """A causal convolution: x [b, in, n] -> [b, out, n]."""

    def __init__(self, params: Mapping[str, Tensor], prefix: str, dilation: int = 1) -> None:
        self.weight, self.bias, self.dilation = params[prefix + "weight"], params[prefix + "bias"], dilation
        self.remembered = (self.weight.shape[2] - 1) * dilation
        self.groups = len(self.bias) if self.weight.shape[1] == 1 and len(self.bias) > 1 else 1

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        if self.remembered:
            x = memory.extend(x, self.remembered)
        return F.conv1d(x, self.weight, self.bias, dilation=self.dilation, groups=self.groups)


class Upsample:
    """A transposed convolution that keeps only what both neighbours of a gap have reached: [b, in, n] ->
    [b, out, n * stride], and `stride` less at a stream's start where the kernel is longer than the stride."""

    def __init__(self, params: Mapping[str, Tensor], prefix: str, stride: int) -> None:
        self.weight, self.bias, self.stride = params[prefix + "weight"], params[prefix + "bias"], stride
        self.trimmed = self.weight.shape[2] - stride

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        if self.trimmed:
            x = memory.extend(x, 1, zeros=False)
        x = F.conv_transpose1d(x, self.weight, self.bias, stride=self.stride)
        return x[..., self.trimmed : x.shape[-1] - self.trimmed]


class Snake:
    """x + sin^2(x e^alpha) / e^beta per channel (Liu et al. 2020, with a magnitude of its own)."""

    def __init__(self, params: Mapping[str, Tensor], prefix: str) -> None:
        self.frequency = params[prefix + "alpha"].exp()[:, None]
        self.magnitude = 1.0 / (params[prefix + "beta"].exp() + 1e-9)[:, None]

    def __call__(self, x: Tensor, memory: Memory | None = None) -> Tensor:
        return torch.addcmul(x, self.magnitude, (x * self.frequency).sin_().square_())


class ConvNeXt:
    """A depthwise convolution and a pointwise MLP beside the residual."""

    def __init__(self, params: Mapping[str, Tensor], prefix: str) -> None:
        self.conv = Conv(params, prefix + "dwconv.conv.")
        self.norm = params[prefix + "norm.weight"], params[prefix + "norm.bias"]
        self.wide = params[prefix + "pwconv1.weight"], params[prefix + "pwconv1.bias"]
        self.narrow = params[prefix + "pwconv2.weight"], params[prefix + "pwconv2.bias"]
        self.gamma = params[prefix + "gamma"]

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        h = self.conv(x, memory).transpose(1, 2)
        h = F.layer_norm(h, (h.shape[-1],), *self.norm, eps=1e-6)
        h = F.linear(F.gelu(F.linear(h, *self.wide)), *self.narrow)
        return x + (self.gamma * h).transpose(1, 2)


class ResidualUnit:
    def __init__(self, params: Mapping[str, Tensor], prefix: str, dilation: int) -> None:
        self.act1, self.conv1 = (
            Snake(params, prefix + "act1."),
            Conv(params, prefix + "conv1.conv.", dilation),
        )
        self.act2, self.conv2 = Snake(params, prefix + "act2."), Conv(params, prefix + "conv2.conv.")

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x), memory)), memory)


Block = Conv | Upsample | Snake | ConvNeXt | ResidualUnit


def upsamplers(config: VocoderConfig, params: Mapping[str, Tensor]) -> Iterable[Block]:
    for i, ratio in enumerate(config.upsampling_ratios):
        yield Upsample(params, f"upsample.{i}.0.conv.", ratio)
        yield ConvNeXt(params, f"upsample.{i}.1.")


def decoder_blocks(config: VocoderConfig, params: Mapping[str, Tensor]) -> Iterable[Block]:
    last = len(config.upsample_rates) + 1
    yield Conv(params, "decoder.0.conv.")
    for i, rate in enumerate(config.upsample_rates, 1):
        yield Snake(params, f"decoder.{i}.block.0.")
        yield Upsample(params, f"decoder.{i}.block.1.conv.", rate)
        for j, dilation in enumerate(config.dilations, 2):
            yield ResidualUnit(params, f"decoder.{i}.block.{j}.", dilation)
    yield Snake(params, f"decoder.{last}.")
    yield Conv(params, f"decoder.{last + 1}.conv.")
