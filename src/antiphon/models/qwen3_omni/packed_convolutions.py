"""The vocoder's convolutions as a CPU computes them fastest in fp32: channels last, packed weights.

The same blocks as in `convolutions`, laid out otherwise: x is [b, n, channels]; an activation writes straight
behind what its convolution remembers; a transposed convolution is an ordinary one whose outputs of one input
lie side by side; a residual unit adds to its input in place. A stream's samples are the same to the last bit
whatever streams are decoded beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.nn.functional as F
from torch import Tensor

from antiphon.models.qwen3_omni.config import VocoderConfig
from antiphon.models.qwen3_omni.memory import Memory
from antiphon.nn.convolutions import PackedConv, as_ordinary
from antiphon.nn.cpu import snake, snake_in_place
from antiphon.nn.products import linear, pack

Params = Mapping[str, Tensor]

RUN = 512
"""Values that an activation's constants are repeated over: many of a core's vectors."""


def weights(params: Params, prefix: str) -> tuple[Tensor, Tensor]:
    return params[prefix + "weight"], params[prefix + "bias"]


class PackedSnake:
    """x + sin^2(x e^alpha) / e^beta per channel (Liu et al. 2020, with a magnitude of its own)."""

    def __init__(self, params: Params, prefix: str) -> None:
        alpha, beta = params[prefix + "alpha"], params[prefix + "beta"]
        times = -(-RUN // len(alpha))
        self._frequency = alpha.exp().repeat(times).numpy()
        self._magnitude = (1.0 / (beta.exp() + 1e-9)).repeat(times).numpy()

    def __call__(self, x: Tensor, memory: Memory, size: int, *, zeros: bool = True) -> Tensor:
        """x [b, n, c] -> the last `size` activations of before, then its own; remembers like `extend`."""
        streams, n, channels = x.shape
        old = memory.recall() if not memory.is_first else x.new_zeros(streams, size if zeros else 0, channels)
        out = x.new_empty(streams, old.shape[1] + n, channels)
        kept = x.new_empty(streams, size, channels)
        arrays = [t.contiguous().numpy() for t in (old, x)]
        snake(*arrays, self._frequency, self._magnitude, out.numpy(), kept.numpy())
        memory.keep(kept)
        return out

    def in_place(self, x: Tensor) -> None:
        """x [b, n, c]."""
        snake_in_place(x.numpy(), self._frequency, self._magnitude)


class PackedUpsample:
    """Behind an activation, a transposed convolution that keeps only what both neighbours of a gap have
    reached: [b, n, in] -> [b, n * stride, out], and `stride` less at a stream's start."""

    def __init__(self, params: Params, snake: str, conv: str, stride: int) -> None:
        self._snake, self._stride = PackedSnake(params, snake), stride
        self._conv = PackedConv(*as_ordinary(*weights(params, conv), stride))

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        x = self._conv(self._snake(x, memory, self._conv.remembered, zeros=False))
        return x.unflatten(2, (self._stride, -1)).flatten(1, 2)


class Repeat:
    """A transposed convolution whose kernel is its stride: a product for each place between two inputs."""

    def __init__(self, params: Params, prefix: str, stride: int) -> None:
        weight, self._bias = as_ordinary(*weights(params, prefix), stride)
        self._weight, self._stride = pack(weight[:, :, 0], 0), stride

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        return linear(x, self._weight, self._bias).unflatten(2, (self._stride, -1)).flatten(1, 2)


class PackedConvNeXt:
    """A depthwise convolution and a pointwise MLP beside the residual."""

    def __init__(self, params: Params, prefix: str) -> None:
        weight, bias = weights(params, prefix + "dwconv.conv.")
        self._conv = PackedConv(weight, bias, groups=len(bias))
        self._norm = weights(params, prefix + "norm.")
        wide, self._wide_bias = weights(params, prefix + "pwconv1.")
        self._wide = pack(wide, 0)
        gamma = params[prefix + "gamma"]
        narrow, bias = weights(params, prefix + "pwconv2.")
        self._narrow = pack(gamma[:, None] * narrow, 0), gamma * bias

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        h = self._conv(memory.extend(x, self._conv.remembered, dim=1))
        h = F.layer_norm(h, (h.shape[-1],), *self._norm, eps=1e-6)
        return linear(F.gelu(linear(h, self._wide, self._wide_bias)), *self._narrow).add_(x)


class First:
    """The convolution that no activation stands before."""

    def __init__(self, params: Params, prefix: str) -> None:
        self._conv = PackedConv(*weights(params, prefix))

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        return self._conv(memory.extend(x, self._conv.remembered, dim=1))


class Last:
    """The activation and the convolution to one channel: [b, n, c] -> [b, n, 1]."""

    def __init__(self, params: Params, snake: str, conv: str) -> None:
        self._snake = PackedSnake(params, snake)
        self._conv = PackedConv(*weights(params, conv))

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        return self._conv(self._snake(x, memory, self._conv.remembered))


class PackedResidualUnit:
    """Adds to x in place: nobody else holds it."""

    def __init__(self, params: Params, prefix: str, dilation: int) -> None:
        self._act1, self._act2 = PackedSnake(params, prefix + "act1."), PackedSnake(params, prefix + "act2.")
        self._wide = PackedConv(*weights(params, prefix + "conv1.conv."), dilation)
        self._point = PackedConv(*weights(params, prefix + "conv2.conv."))

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        h = self._wide(self._act1(x, memory, self._wide.remembered))
        self._act2.in_place(h)
        self._point.add_to(x, h)
        return x


Block = PackedUpsample | Repeat | PackedConvNeXt | First | Last | PackedResidualUnit


class PackedConvolutions:
    """From the transformer's frames [b, n, H] to samples [b, samples]. Takes its layouts from `params`."""

    def __init__(self, config: VocoderConfig, params: Params) -> None:
        self._blocks: list[Block] = [*upsamplers(config, params), *decoder_blocks(config, params)]

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        for block in self._blocks:
            x = block(x, memory)
        return x.squeeze(2)


def upsamplers(config: VocoderConfig, params: Params) -> Iterable[Block]:
    for i, ratio in enumerate(config.upsampling_ratios):
        yield Repeat(params, f"upsample.{i}.0.conv.", ratio)
        yield PackedConvNeXt(params, f"upsample.{i}.1.")


def decoder_blocks(config: VocoderConfig, params: Params) -> Iterable[Block]:
    last = len(config.upsample_rates) + 1
    yield First(params, "decoder.0.conv.")
    for i, rate in enumerate(config.upsample_rates, 1):
        block = f"decoder.{i}.block."
        yield PackedUpsample(params, f"{block}0.", f"{block}1.conv.", rate)
        for j, dilation in enumerate(config.dilations, 2):
            yield PackedResidualUnit(params, f"{block}{j}.", dilation)
    yield Last(params, f"decoder.{last}.", f"decoder.{last + 1}.conv.")
