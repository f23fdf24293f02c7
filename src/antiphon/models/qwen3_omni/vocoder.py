"""The vocoder: codec frames to a 24 kHz waveform, chunk by chunk, exactly as if all frames were decoded at
once.

16 code embeddings averaged -> a transformer with a sliding window -> two upsampling blocks -> four decoder
blocks. Everything is causal but for the transposed convolutions, which look one input ahead; so a stream's
first chunk is 555 samples short and every later one is whole. What a stream must remember lies in one tuple
of tensors: frames done, the window's keys and values, the last inputs of every convolution. Each has the
streams on dimension 0 and a size that never changes, so streams at different places of their speech are
decoded together (see `gather_states`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.qwen3_omni.config import VocoderConfig
from antiphon.nn.layers import gated_mlp, rms_norm
from antiphon.nn.rope import Rope, rotate

State = tuple[Tensor, ...]
"""What streams remember between chunks: the frames done int64 [b], then tensors [b, ...] in the order of use.
"""


class Vocoder:
    """All of code2wav. Run it in fp32 where the waveform must be right: in bf16 chunks and whole differ
    audibly.
    """

    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.embedding = params["code_embedding"]
        offsets = torch.arange(config.num_codebooks, device=self.embedding.device)
        self.offsets = (offsets * config.codebook_size)[:, None]
        self.transformer = Transformer(config, params)
        self.blocks = [*upsamplers(config, params), *decoder_blocks(config, params)]

    def decode(self, codes: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """codes int64 [b, codebooks, n] of b streams and what they remember (None: all start here) ->
        pcm [b, samples] in [-1, 1] and the new state; `config.num_samples` says how many samples.
        """
        memory = Memory(state)
        done = codes.new_zeros(codes.shape[0]) if state is None else memory.recall()
        memory.keep(done + codes.shape[2])
        x = F.embedding(codes + self.offsets, self.embedding).mean(1)
        x = self.transformer(x, done, memory).transpose(1, 2)
        for block in self.blocks:
            x = block(x, memory)
        return x.squeeze(1).clamp(-1, 1), memory.state


def gather_states(states: Sequence[State]) -> State:
    """Streams decoded together from now on (none of them at its first chunk): rows in order."""
    return tuple(torch.cat(parts) for parts in zip(*states, strict=True))


def split_state(state: State) -> list[State]:
    """The inverse: one state of one row per stream."""
    return list(zip(*(part.split(1) for part in state), strict=True))


class Memory:
    """The state while a chunk passes through: read in the order of use, written anew in the same order."""

    def __init__(self, state: State | None) -> None:
        self.old: Iterator[Tensor] | None = None if state is None else iter(state)
        self.new: list[Tensor] = []

    @property
    def is_first(self) -> bool:
        return self.old is None

    @property
    def state(self) -> State:
        return tuple(self.new)

    def recall(self) -> Tensor:
        assert self.old is not None
        return next(self.old)

    def keep(self, tensor: Tensor) -> None:
        self.new.append(tensor)

    def extend(self, x: Tensor, size: int, *, dim: int = -1, zeros: bool = True) -> Tensor:
        """Put the last `size` inputs of this place before x along `dim` (at the start: zeros, or nothing) and
        remember the last `size` of the result."""
        if not self.is_first:
            x = torch.cat((self.recall(), x), dim)
        elif zeros:
            shape = list(x.shape)
            shape[dim] = size
            x = torch.cat((x.new_zeros(shape), x), dim)
        self.keep(x.narrow(dim, x.shape[dim] - size, size).clone())
        return x


class Transformer:
    """Layers with a sliding window of attention and a learned scale on each branch."""

    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.norm = params["pre_transformer.norm"]
        self.rope = Rope(config.head_dim, config.rope_theta, None, self.norm.device)
        self.layers = [
            TransformerLayer(config, params, f"pre_transformer.layers.{i}.") for i in range(config.num_layers)
        ]

    def __call__(self, x: Tensor, done: Tensor, memory: Memory) -> Tensor:
        """x [b, n, H] after `done` int64 [b] frames -> [b, n, H]."""
        place = torch.arange(x.shape[1], device=x.device)
        cos, sin = self.rope.cos_sin(done[:, None] + place, x.dtype)
        mask = self.mask(place, done)
        for layer in self.layers:
            x = layer(x, cos, sin, mask, memory)
        return rms_norm(x, self.norm, self.config.rms_eps)

    def mask(self, place: Tensor, done: Tensor) -> Tensor:
        """bool [b, 1, n, remembered + n]: causal, inside the window, and not before the stream began."""
        remembered = self.config.sliding_window - 1
        keys = torch.arange(-remembered, len(place), device=place.device)
        distance = place[:, None] - keys
        near = (distance >= 0) & (distance < self.config.sliding_window)
        begun = keys >= -done[:, None]
        return (near & begun[:, None])[:, None]


class TransformerLayer:
    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor], prefix: str) -> None:
        self.config = config
        self.input_norm, self.post_norm = params[prefix + "input_norm"], params[prefix + "post_norm"]
        self.qkv, self.o = params[prefix + "qkv"], params[prefix + "o"]
        self.gate_up, self.down = params[prefix + "gate_up"], params[prefix + "down"]
        self.attention_scale, self.mlp_scale = (
            params[prefix + "attention_scale"],
            params[prefix + "mlp_scale"],
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        x = x + self.attention_scale * self.attention(x, cos, sin, mask, memory)
        h = rms_norm(x, self.post_norm, self.config.rms_eps)
        return x + self.mlp_scale * gated_mlp(h, self.gate_up, self.down)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        config = self.config
        heads, kv_heads, remembered = config.num_heads, config.num_kv_heads, config.sliding_window - 1
        h = F.linear(rms_norm(x, self.input_norm, config.rms_eps), self.qkv)
        h = h.unflatten(-1, (-1, config.head_dim))
        qk = rotate(h[:, :, : heads + kv_heads], cos, sin)
        k = memory.extend(qk[:, :, heads:], remembered, dim=1)
        v = memory.extend(h[:, :, heads + kv_heads :], remembered, dim=1)
        q, k, v = qk[:, :, :heads].transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads != kv_heads)
        return F.linear(out.transpose(1, 2).flatten(2), self.o)


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

DILATIONS = (1, 3, 9)


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
        for j, dilation in enumerate(DILATIONS, 2):
            yield ResidualUnit(params, f"decoder.{i}.block.{j}.", dilation)
    yield Snake(params, f"decoder.{last}.")
    yield Conv(params, f"decoder.{last + 1}.conv.")
